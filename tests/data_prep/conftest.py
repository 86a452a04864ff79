from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from data_prep.__main__ import app

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


def kspace_of(x):
    axes = (-2, -1)
    return np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x, axes), axes=axes, norm="ortho"), axes).astype(np.complex64)


@pytest.fixture
def make_volume():
    """Writes a file in fastMRI's layout: k-space of 64 x 48, target of 32 x 32."""

    def make(path, seed=0, n=3, width=48, scale=1.0, keys=("reconstruction_esc",), patient=None, header=True, **extra):
        path.parent.mkdir(parents=True, exist_ok=True)
        x = scale * phantom((n, 64, width), seed)
        with h5py.File(path, "w") as file:
            file["kspace"] = extra.pop("kspace", kspace_of(x))
            left = width // 2 - 16
            for key in keys:
                file[key] = np.abs(x[:, 16:48, left : left + 32]).astype(np.float32)
            if header:
                file["ismrmrd_header"] = HEADER.format(width=width, maximum=width - 1, center=width // 2)
            if patient is not None:
                file.attrs["patient_id"] = patient
            for name, value in extra.items():
                file[name] = value
        return path

    return make


@pytest.fixture
def prep():
    """Runs the command line in this process; the noise and mask knobs fit the small images."""

    def run(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def shared_data():
    """The read-only folder of example data beside the repository."""
    folder = Path(__file__).parents[2] / ".." / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no shared example data beside this checkout")
    return folder
