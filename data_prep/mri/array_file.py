"""Read k-space, whose axes the user states, and sampling masks from plain arrays: .npy, or .mat of any version."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np

from data_prep.mri.fastmri_file import SIGNATURE
from data_prep.mri.ismrmrd_header import Encoding
from data_prep.run.manifest import PrepError
from es_medical.data.hdf5 import as_complex, complex_fields

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from es_medical.data.geometry import Geometry

SUFFIXES = (".npy", ".mat")
AXES = ("slice", "coil", "readout", "phase", "partition")
DIGITS = 4  # of acceleration and centre of a mask without nominal ones: what is printed can be typed as a knob
MATLAB_HEADER = 512  # bytes before the HDF5 signature of a .mat file of version 7.3


def read_arrays(path: Path) -> dict[str, NDArray]:
    """Read every array of numbers of a file by its name, axes in the order of the program that wrote it.

    Raises:
        PrepError: the file cannot be read.
    """
    try:
        if path.suffix.lower() == ".npy":
            return {"": np.load(path, allow_pickle=False)}
        with path.open("rb") as file:
            start = file.read(MATLAB_HEADER + len(SIGNATURE))
        return _new_matlab(path) if SIGNATURE in (start[:8], start[MATLAB_HEADER:]) else _old_matlab(path)
    except PrepError:
        raise
    except Exception as error:  # numpy and scipy raise errors of many kinds for damaged files
        raise PrepError(f"cannot be read as {path.suffix.lower()}: damaged, truncated or another kind of file") from error


def _old_matlab(path: Path) -> dict[str, NDArray]:
    from scipy.io import loadmat

    return {name: x for name, x in loadmat(path).items() if isinstance(x, np.ndarray) and x.dtype.kind in "biufc"}


def _new_matlab(path: Path) -> dict[str, NDArray]:
    """Version 7.3 is HDF5, with reversed axes and complex numbers as fields real, imag."""
    with h5py.File(path, "r") as file:
        data = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
        return {name: as_complex(x[()]).T for name, x in data.items() if complex_fields(x.dtype) or x.dtype.kind in "biufc"}


class ArrayVolume:
    """K-space of a .npy or .mat file as a `RawVolume`; its axes are the stated ones, k = 0 is at index n//2.

    Args:
        path: the file.
        axes: what each axis is, in order: names among `AXES`, with readout and phase; a partition axis is kz.
        variable: name of the array; "" if there is a single complex one with as many axes.

    Raises:
        PrepError: no such array, or it is not complex or not finite.
    """

    noise_covariance: NDArray[np.complexfloating] | None = None
    mask: NDArray[np.bool_] | None = None
    subject = ""
    note = ""

    def __init__(self, path: Path, axes: tuple[str, ...], variable: str = "") -> None:
        stat = path.stat()
        self._k = k = _kept(path, stat.st_mtime_ns, stat.st_size, axes, variable)  # (slices or partitions, coils, H, W)
        self.n_slices, coils = k.shape[:2]
        self.coils: int = coils if "coil" in axes else 0
        self.size: tuple[int, int] = (k.shape[2], k.shape[3])
        self.encoding = Encoding(size=self.size)
        self.slices = range(self.n_slices) if "partition" in axes else ()

    def kspace(self, index: int) -> NDArray[np.complexfloating]:
        """K-space of one slice, (H, W) or (coils, H, W), complex64."""
        k = np.ascontiguousarray(self._k[index], np.complex64)
        return k if self.coils else k[0]

    def geometry(self, index: int) -> Geometry | None:
        """None: such files hold no orientation."""
        return None


@lru_cache(maxsize=2)
def _kept(path: Path, _: int, __: int, axes: tuple[str, ...], variable: str) -> NDArray:
    """K-space of a file, in memory for its next slices as long as the file does not change."""
    return _ordered(_chosen(read_arrays(path), axes, variable), axes)


def read_axes(text: str) -> tuple[str, ...]:
    """Names of the axes in order; raises PrepError for others.

    >>> read_axes("readout, phase, coil")
    ('readout', 'phase', 'coil')
    """
    axes = tuple(part.strip().lower() for part in text.split(","))
    if len({*axes}) < len(axes) or not {"readout", "phase"} <= {*axes} <= {*AXES} or {"slice", "partition"} <= {*axes}:
        raise PrepError(
            f"--axes {text}: expected readout and phase, and any of coil, and slice or partition (kz), each once, in order"
        )
    return axes


def _chosen(arrays: dict[str, NDArray], axes: tuple[str, ...], variable: str) -> NDArray:
    """The array that is k-space."""
    if variable and variable not in arrays:
        raise PrepError(f"no array of the name given as --variable among {len(arrays)} arrays")
    found = [arrays[variable]] if variable else [x for x in arrays.values() if np.iscomplexobj(x) and x.ndim == len(axes)]
    if len(found) != 1:
        shapes = ", ".join(str(x.shape) for x in found) or "none"
        raise PrepError(
            f"complex arrays with the {len(axes)} axes of --axes: {shapes}; expected one"
            + (": give its name as --variable" if found else f" among {len(arrays)} arrays")
        )
    k = found[0]
    if not np.iscomplexobj(k):
        raise PrepError(f"k-space is {k.dtype}, expected complex: its imaginary part is lost")
    if k.ndim != len(axes) or 0 in k.shape:
        raise PrepError(f"k-space has the shape {k.shape}, --axes names {len(axes)} axes")
    if not np.isfinite(k).all():
        raise PrepError("k-space holds NaN or infinite values")
    return k


def _ordered(k: NDArray, axes: tuple[str, ...]) -> NDArray:
    """(slices or partitions, coils, H, W): rows are the readout."""
    through = "partition" if "partition" in axes else "slice"
    present = [axes.index(name) for name in (through, "coil", "readout", "phase") if name in axes]
    k = k.transpose(present)
    k = k if "coil" in axes else k[..., None, :, :]
    return k if through in axes else k[None]


class GivenMask(NamedTuple):
    """A sampling mask that is not drawn.

    Attributes:
        measured: (W,) columns or (H, W) samples of k-space, bool; zero frequency is at index n//2.
        acceleration: encoded columns / measured ones, or samples of the grid / measured ones.
        center_fraction: share of them in the fully sampled centre.
        encoded_lines: columns that the acceleration refers to; 0 for all.
    """

    measured: NDArray[np.bool_]
    acceleration: float
    center_fraction: float
    encoded_lines: int = 0

    @property
    def text(self) -> str:
        """The mask as the configuration of a file holds it: a digit for each column, or size and digest of samples."""
        if self.measured.ndim == 1:
            return "".join("01"[int(one)] for one in self.measured)
        height, width = self.measured.shape
        digest = hashlib.sha256(np.packbits(self.measured).tobytes()).hexdigest()[:16]
        return f"{height} x {width}, {int(self.measured.sum())} samples, {digest}"


def read_mask_file(path: Path, name: str = "") -> GivenMask:
    """Read a mask of 0 and 1 for the columns (W,) or the samples (H, W) of k-space, rows along the readout.

    A 2-D mask with equal rows is one of columns. The acceleration of a slice file is its nominal one; that of the others is
    counted.

    Args:
        path: a slice file, .npy, or .mat.
        name: variable of a .mat file; "" if it holds a single array that can be a mask.

    Raises:
        PrepError: the file holds no such mask.
        ValueError: another file that is no slice file.
    """
    if path.suffix.lower() not in SUFFIXES:
        from es_medical.data import read_header

        header = read_header(path)
        encoded = header.encoded_lines or header.mask.shape[-1]
        return GivenMask(header.mask.numpy(), header.acceleration, header.center_fraction, encoded)
    arrays = {key: array for key, array in read_arrays(path).items() if not name or key == name}
    fitting = {key: mask for key, array in arrays.items() if (mask := _as_mask(array)) is not None}
    if len(fitting) != 1:
        found = f"{len(fitting)} masks of 0 and 1 among {len(arrays)} arrays"
        hint = f"named {name}" if name else "give the variable's name as --mask-variable"
        raise PrepError(f"--mask-from {path.name}: {found} {hint}; expected one of shape (W,) or (H, W)")
    return counted(next(iter(fitting.values())))


def counted(measured: NDArray[np.bool_]) -> GivenMask:
    """A mask with the acceleration and the centre that its entries have.

    Raises:
        PrepError: zero frequency, index n//2, is not measured.

    >>> counted(np.array([0, 1, 1, 0, 1, 0], bool))[1:]
    (2.0, 0.1667, 6)
    """
    import torch

    from es_medical.physics.masks import center_block
    from es_medical.splits import unit_of

    rows, columns = center_block(torch.from_numpy(np.atleast_2d(measured)))
    if not rows:
        middle = " and ".join(f"{n // 2} of {n}" for n in measured.shape)
        raise PrepError(f"the mask does not measure zero frequency, expected at index {middle}: shift it there (fftshift)")
    counts = measured
    if unit_of(torch.from_numpy(measured)) == "lines":  # as of a drawn mask, whatever rows were recorded
        counts = np.asarray(np.atleast_2d(measured).any(0))
        rows, columns = center_block(torch.from_numpy(counts[None]))
    shares = counts.size / counts.sum(), rows * columns / counts.size
    acceleration, center_fraction = (float(f"{share:.{DIGITS}g}") for share in shares)
    return GivenMask(measured, acceleration, center_fraction, measured.shape[-1])


def _as_mask(array: NDArray) -> NDArray[np.bool_] | None:
    """A mask (W,) or (H, W), or None for other values or shapes."""
    values = np.squeeze(array)
    if values.ndim not in (1, 2) or values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all() or not values.any():
        return None
    measured = values.astype(bool)
    return measured[0] if measured.ndim == 2 and (measured == measured[:1]).all() else measured
