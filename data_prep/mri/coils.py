"""Compress receive coils, estimate their sensitivity maps from the fully sampled centre (ESPIRiT), and combine coil images.

A coil c sees the image x through its complex sensitivity S_c: k_c = F S_c x + noise. Arrays are (C, H, W) with rows
as readout and columns as phase encoding; k-space is centred, its origin at n//2 (es_medical/physics/fourier.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from einops import rearrange
from numpy.lib.stride_tricks import sliding_window_view

from data_prep.mri.normalisation import crop_or_pad
from data_prep.mri.resample import sinc_resample
from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_CENTER = 6  # rows and columns of the calibration block: 5 leave a residual of 7 % for 8 coils, 6 of 4 %, 8 of 1 %
MOST_CENTER = 24  # more cost time and no longer sharpen the maps
WIDEST_KERNEL = 6
KERNEL_SHARE = 3  # the block is this many kernels wide: fewer give more unknowns than equations, and maps of noise
SIGNAL = 0.02  # noise level unknown: singular values of the calibration matrix below this share of the largest count as noise
LEAST_SIGNAL = 0.01  # smallest such share when the level is known: truncated objects also cause small singular values
MARGIN = 1.3  # over the largest singular value of white noise; between 1 and 1.6 the maps are equally good
COARSE = 96  # maps of larger images are computed on this grid (a kernel spans only 6 samples): ten times faster at 320 x 320


def compression_matrix(kspace: NDArray[np.complexfloating], n: int, n_center: int) -> NDArray[np.complexfloating]:
    """Compression matrix to the n virtual coils with most of the energy in the centre of k-space (Buehrer et al. 2007).

    Its rows are orthonormal, strongest first, so white noise stays white with the same standard deviation; the largest
    entry of each row is real and positive. With n coils or fewer there is nothing to compress: the identity.

    Args:
        kspace: (C, H, W), prewhitened. Only the `n_center` central columns are used.
        n: number of virtual coils.
        n_center: fully sampled columns around zero frequency.

    Returns:
        (min(n, C), C).

    Raises:
        PrepError: fewer than one virtual coil is requested, or the centre is zero or not finite.
    """
    if n < 1:
        raise PrepError(f"{n} virtual coils asked for, expected at least 1")
    coils = len(kspace)
    return np.eye(coils, dtype=kspace.dtype) if n >= coils else _principal(_calibration(kspace, n_center)[0])[:n]


def _principal(block: NDArray[np.complexfloating]) -> NDArray[np.complexfloating]:
    """U^H of the singular value decomposition U s V^H of a block (C, rows, columns): all C virtual coils, (C, C)."""
    samples = block.reshape(len(block), -1).astype(np.complex128)  # (C, samples)
    virtual = np.linalg.eigh(samples @ samples.conj().T)[1][:, ::-1].conj().T  # (C, C), strongest first
    largest = np.take_along_axis(virtual, np.abs(virtual).argmax(1)[:, None], 1)  # (C, 1)
    return (virtual * np.exp(-1j * np.angle(largest))).astype(block.dtype)


def apply(matrix: NDArray[np.complexfloating], kspace: NDArray[np.complexfloating]) -> NDArray[np.complexfloating]:
    """Multiply a (D, C) matrix with k-space or images (C, H, W) along the coils -> (D, H, W), in their precision."""
    return np.tensordot(matrix, kspace, axes=1).astype(kspace.dtype, copy=False)


def sensitivity_maps(
    kspace: NDArray[np.complexfloating], n_center: int, sigma: float | None = None, support: float = 0.6
) -> NDArray[np.complex64]:
    """Coil sensitivity maps S by ESPIRiT (Uecker et al., MRM 71:990-1001, 2014), computed by sigpy.

    Only the central block of `n_center` columns and as many rows is used, so undersampled k-space gives the same maps; they
    do not depend on its scale. Where the largest eigenvalue exceeds `support`, sum_c |S_c|^2 = 1; elsewhere there is no
    signal, and S = 0. Maps are defined up to a common phase: that of the strongest virtual coil is set to zero, which is
    smooth wherever that coil has signal, and the mean phase of the combined image is set to zero.

    The noise level separates signal from noise in the calibration matrix. If it is unknown, maps are useless for noise above
    about 3 % of the image maximum, and less sharp than possible for noise below that.

    Args:
        kspace: (C, H, W), fully sampled in the centre, prewhitened.
        n_center: fully sampled columns around zero frequency.
        sigma: standard deviation of the noise on each real and imaginary part of a sample of `kspace`, None if unknown.
        support: smallest eigenvalue, between 0 and 1, that counts as object; 0.8 leaves holes in noisy heads.

    Returns:
        (C, H, W) complex64, finite everywhere.

    Raises:
        PrepError: sigpy is missing; the block is too small, zero or not finite; or it contains no signal.
    """
    rows, columns = kspace.shape[-2:]
    block, peak = _calibration(kspace, n_center)  # (C, H, n_center)
    side = min(n_center, rows, MOST_CENTER)
    if side < LEAST_CENTER:
        raise PrepError(
            f"a fully sampled centre of {n_center} columns and {rows} rows is too small for sensitivity maps: at least "
            f"{LEAST_CENTER} of each are needed, better 16 (a larger --center-fraction gives more columns)"
        )
    square = crop_or_pad(block, (side, side)).astype(np.complex64)
    if not square.any():
        raise PrepError(f"the {side} x {side} samples in the centre of kspace are zero: coil sensitivities cannot be estimated")
    virtual = _principal(square)  # (C, C), unitary
    kernel = min(WIDEST_KERNEL, max(side // KERNEL_SHARE, 3))
    threshold = SIGNAL if sigma is None else _noise_share(square, kernel, sigma / peak)
    maps = _espirit(apply(virtual, square), kernel, threshold, (rows, columns), support)
    maps = apply(virtual.conj().T, maps)  # (C, H, W)
    if not maps.any():
        raise PrepError(f"the {side} x {side} samples in the centre of k-space hold no signal common to the coils")
    combined = combine(_image(square, (rows, columns)), maps)
    return maps * np.exp(1j * np.angle((np.abs(combined) * combined).sum())).astype(np.complex64)


def _calibration(kspace: NDArray[np.complexfloating], n_center: int) -> tuple[NDArray[np.complexfloating], float]:
    """The central columns (C, H, n_center) divided by their largest magnitude, and that magnitude."""
    if not 1 <= n_center <= kspace.shape[-1]:
        raise PrepError(f"{n_center} central columns of {kspace.shape[-1]} asked for")
    start = kspace.shape[-1] // 2 - n_center // 2  # index W // 2 is zero frequency
    block = kspace[..., start : start + n_center]
    peak = float(np.abs(block).max())  # NaN if any value is
    if not 0 < peak < np.inf:
        problem = "zero" if peak == 0 else "not finite"
        raise PrepError(f"the {n_center} central columns of kspace are {problem}: coil sensitivities cannot be estimated")
    return (block / peak).astype(kspace.dtype), peak


def _noise_share(square: NDArray[np.complex64], kernel: int, sigma: float) -> float:
    """Largest singular value of the calibration matrix for noise alone, as a share of its largest singular value.

    White noise in an m x n matrix has singular values up to std (sqrt(m) + sqrt(n)) (Marchenko and Pastur, 1967).
    """
    windows = sliding_window_view(square, (kernel, kernel), axis=(1, 2))  # (C, p, q, kernel, kernel)
    matrix = rearrange(windows, "c p q a b -> (p q) (c a b)")
    noise = np.sqrt(2) * sigma * np.sqrt(matrix.shape).sum()
    return max(LEAST_SIGNAL, float(MARGIN * noise / np.linalg.norm(matrix, 2)))


def _espirit(
    block: NDArray[np.complex64], kernel: int, threshold: float, size: tuple[int, int], support: float
) -> NDArray[np.complex64]:
    """Maps (C, H, W) from the central block of k-space (C, side, side); the phase of coil 0 is zero."""
    grid = (min(size[0], COARSE), min(size[1], COARSE))
    maps, eigenvalue = _eigenmaps(crop_or_pad(block, grid), block.shape[-1], kernel, threshold)  # (C, h, w), (h, w)
    maps, eigenvalue = _interpolated(maps, size), _interpolated(eigenvalue[None], size)[0]
    norm = rss(maps)
    inside = (eigenvalue > support) & (norm > 0)  # (H, W)
    return np.divide(maps, norm, out=np.zeros_like(maps), where=inside)


def _eigenmaps(
    calibration: NDArray[np.complex64], side: int, kernel: int, threshold: float
) -> tuple[NDArray[np.complex64], NDArray[np.float32]]:
    """Eigenvectors and eigenvalues of ESPIRiT for k-space that is zero outside the central `side` x `side` block."""
    try:
        from sigpy.mri.app import EspiritCalib
    except ImportError as error:
        raise PrepError("sensitivity maps need sigpy: pip install 'es_medical[coils]'") from error
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 where no coil has signal
        maps, eigenvalue = EspiritCalib(
            calibration,
            calib_width=side,
            thresh=threshold,
            kernel_width=kernel,
            crop=0,
            max_iter=30,
            output_eigenvalue=True,
            show_pbar=False,
        ).run()
    valid = np.isfinite(maps).all(0) & np.isfinite(eigenvalue[0])
    return np.where(valid, maps, 0), np.where(valid, eigenvalue[0], 0)


def _interpolated(x: NDArray, size: tuple[int, int]) -> NDArray:
    """Periodic cubic interpolation (C, h, w) -> (C, H, W) of the same field of view; index n//2 maps to N//2."""
    if x.shape[1:] == size:
        return x
    from scipy.ndimage import map_coordinates

    axes = [(np.arange(new) - new // 2) * (old / new) + old // 2 for old, new in zip(x.shape[1:], size, strict=True)]
    coordinates = np.meshgrid(*axes, indexing="ij")
    return np.stack([map_coordinates(channel, coordinates, order=3, mode="grid-wrap") for channel in x]).astype(x.dtype)


def _image(kspace: NDArray[np.complexfloating], size: tuple[int, int]) -> NDArray[np.complexfloating]:
    """F^-1 k of a central block of k-space, zero-filled to `size`."""
    return sinc_resample(crop_or_pad(kspace, size), size).image


def combine(images: NDArray[np.complexfloating], maps: NDArray[np.complexfloating]) -> NDArray[np.complexfloating]:
    """Combine coil images in the least-squares sense, x = sum_c conj(S_c) x_c: (C, H, W) -> (H, W)."""
    return (maps.conj() * images).sum(0)


def rss(images: NDArray[np.complexfloating]) -> NDArray[np.floating]:
    """Root of the sum of squares over coils, (C, H, W) -> (H, W).

    >>> float(rss(np.array([[[3.0]], [[4j]]]))[0, 0])
    5.0
    """
    return np.sqrt((np.abs(images) ** 2).sum(0))
