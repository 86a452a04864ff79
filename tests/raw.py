"""Raw k-space for tests: a phantom and a header."""

import numpy as np

AXES = (-2, -1)
HEADER = """<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>64</x><y>{width}</y><z>1</z></matrixSize></encodedSpace>
<reconSpace><matrixSize><x>32</x><y>32</y><z>1</z></matrixSize>
<fieldOfView_mm><x>160</x><y>128</y><z>3</z></fieldOfView_mm></reconSpace>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>{maximum}</maximum><center>{center}</center>
</kspace_encoding_step_1></encodingLimits></encoding></ismrmrdHeader>"""


def phantom(shape, seed=0):
    """Smooth, asymmetric, complex image (slices, rows, columns): a blob near the upper left, and a random one."""
    n, height, width = shape
    rows, columns = np.mgrid[:height, :width]
    u, v = (rows - height // 2) / 12, (columns - width // 2) / 12
    rng = np.random.default_rng(seed)
    blobs = [
        np.exp(-((u + 0.6) ** 2) - (v + 0.3) ** 2) + 0.5 * np.exp(-((u - a) ** 2) - (v - b) ** 2) for a, b in rng.random((n, 2))
    ]
    return np.stack(blobs) * np.exp(0.01j * columns)


def seen_by_coils(x, coils):
    """Images (n, H, W) as smooth coils around them see them, (n, coils, H, W)."""
    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]] - np.array(x.shape[1:])[:, None, None] // 2
    angles = 2 * np.pi * np.arange(coils) / coils
    distance = [(rows - 20 * np.sin(a)) ** 2 + (columns - 20 * np.cos(a)) ** 2 for a in angles]
    return x[:, None] * np.stack([np.exp(-d / 900 + 1j * a) for d, a in zip(distance, angles, strict=True)])


def to_kspace(x):
    """Centred orthonormal FFT of images (..., H, W), in double precision."""
    return np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x, AXES), axes=AXES, norm="ortho"), AXES)


def to_image(k):
    return np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(k, AXES), axes=AXES, norm="ortho"), AXES)


def kspace_of(x):
    return to_kspace(x).astype(np.complex64)


def complex_noise(shape, seed=0):
    """Independent standard normal real and imaginary parts: as images they have no symmetry."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
