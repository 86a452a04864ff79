"""One fastMRI volume: what its HDF5 file holds, and the magnitude image that serves as ground truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import h5py
import numpy as np

from data_prep.mri.ismrmrd_header import Encoding, parse_header
from data_prep.mri.normalisation import VolumeRange, crop_or_pad
from data_prep.mri.sampling import check_fully_sampled
from data_prep.run.manifest import PrepError, SkipError

if TYPE_CHECKING:
    from numpy.typing import NDArray


Coils = Literal["single", "multi"]
Target = Literal["auto", "esc", "rss"]
Chosen = Literal["middle", "all"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
RECONSTRUCTIONS = ("reconstruction_esc", "reconstruction_rss")
COMPUTED = {"single": "ifft(kspace)", "multi": "rss(ifft(kspace))"}
FASTMRI_SIZE = (320, 320)
COILS_OF_RANK = {3: "single", 4: "multi"}


@contextmanager
def open_volume(path: Path) -> Iterator[h5py.File]:
    """Opens an HDF5 file, or says whether it is cut short or never was one.

    Raises:
        PrepError: the file is empty, not HDF5, truncated, damaged, or a read from it fails.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise PrepError(_why_unreadable(path, str(error))) from error
    with file:
        yield file


def _why_unreadable(path: Path, error: str) -> str:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(512)
    except OSError as problem:
        return f"cannot be read ({problem.strerror})"
    if size == 0:
        return "empty file (0 bytes)"
    if not start.startswith(SIGNATURE):
        kind = "looks like a web page or XML" if start.lstrip()[:1] == b"<" else "the HDF5 signature is missing"
        return f"not an HDF5 file ({kind}; {size} bytes)"
    if "truncated" in error:
        return f"truncated HDF5 file: {size} bytes are there, the file says it has more; download it again"
    return f"damaged HDF5 file ({size} bytes): download it again"


@dataclass(frozen=True)
class Wanted:
    """What is asked of each file."""

    coils: Coils = "single"
    target: Target = "auto"
    slices: Chosen = "middle"


@dataclass(frozen=True)
class Volume:
    """A volume that passed every check.

    Attributes:
        path: the file.
        name: its path below the source folder.
        digest: SHA-256 of its bytes.
        subject: patient identifier when the file has one, else the digest. Never stored as it is.
        target: dataset that gives the ground truth, or how it is computed.
        slices: indices of the chosen slices.
        size: (H, W) of the target.
        range: smallest and largest value of the whole target volume, raw units.
        spacing: row and column spacing in mm, NaN where unknown.
        note: what a user should know.
    """

    path: Path
    name: str
    digest: str
    subject: str
    target: str
    slices: tuple[int, ...]
    size: tuple[int, int]
    range: VolumeRange
    spacing: tuple[float, float]
    note: str = ""
    whole = True  # `range` is that of the whole volume, whatever slices are chosen


def read_kspace(file: h5py.File, index: int) -> NDArray[np.complexfloating]:
    """One slice of k-space, (H, W) or (coils, H, W), complex.

    Raises:
        PrepError: it cannot be read, is not complex, or holds NaN or infinite values.
    """
    k = read_numbers(file, "kspace", index)
    if not np.iscomplexobj(k):
        raise PrepError(f"kspace is {k.dtype}, expected complex: its imaginary part is lost")
    return k


def read_numbers(file: h5py.File, name: str, index: int | None = None) -> NDArray:
    """A dataset, or one row of it. Raises PrepError when it cannot be read or holds NaN or infinite values."""
    what = name if index is None else f"{name} slice {index}"
    try:
        x = _dataset(file, name)[() if index is None else index]
    except OSError as error:
        raise PrepError(f"{what} cannot be read: damaged or truncated data") from error
    if not np.isfinite(x).all():
        raise PrepError(f"{what} holds NaN or infinite values")
    return x


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset of numbers."""
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        members = f" of {named(data)}" if isinstance(data, h5py.Group) else ""
        raise PrepError(f"{name} is a {type(data).__name__.lower()}{members}, expected a dataset of numbers")
    if data.dtype.names:
        complex_fields = "; HDF5 stores complex numbers as fields r, i" if name == "kspace" else ""
        raise PrepError(f"{name} has the fields {', '.join(data.dtype.names)}, expected plain numbers{complex_fields}")
    if data.dtype.kind not in "biufc":
        raise PrepError(f"{name} holds values of type {data.dtype}, expected numbers")
    return data


def magnitude(k: NDArray[np.complexfloating]) -> NDArray[np.floating]:
    """|F^-1 k|, root sum of squares over coils if there are any; F centred and orthonormal, origin n//2.

    >>> round(float(magnitude(np.full((4, 6), 1 / np.sqrt(24), np.complex64))[2, 3]), 6)
    1.0
    """
    axes = (-2, -1)
    x = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(k, axes), axes=axes, norm="ortho"), axes)  # (..., H, W)
    return np.abs(x) if x.ndim == 2 else np.sqrt((np.abs(x) ** 2).sum(0))


def read_target(file: h5py.File, target: str, index: int, size: tuple[int, int]) -> NDArray[np.floating]:
    """One slice of the ground truth, (H, W), in raw units, cropped or padded to `size` in the image domain."""
    if target not in RECONSTRUCTIONS:
        return crop_or_pad(magnitude(read_kspace(file, index)), size)
    x = read_numbers(file, target, index)
    if np.iscomplexobj(x):
        x = np.abs(x)
    if x.min() < 0:
        raise PrepError(f"{target} slice {index} has negative values (down to {x.min():g}): not a magnitude image")
    return crop_or_pad(x, size)


def inspect(path: Path, name: str, digest: str, wanted: Wanted) -> Volume:
    """Checks a file slice by slice and finds what will be taken from it; one slice is in memory at a time.

    Raises:
        SkipError: a mask with lines left out and no reconstruction; a slice file of es_medical.
        PrepError: anything else that keeps the file from being used.
    """
    with open_volume(path) as file:
        if "schema" in file.attrs and "measurement" in file:
            raise SkipError("a slice file of es_medical, not raw data")
        n = _check_kspace(file, wanted.coils)
        encoding = parse_header(scalar(file, "ismrmrd_header"))
        target = _target(file, wanted)
        size = _check_target(file, target, n, encoding)
        chosen = (n // 2,) if wanted.slices == "middle" else tuple(range(n))
        extremes = [_extremes(file, target, i, size) for i in range(n)]
        padding = _check_samples(file, target, n, chosen, encoding)
        subject = patient(file) or digest
    varied = tuple(i for i in chosen if extremes[i][1] > extremes[i][0])
    if not varied:
        raise PrepError(f"every chosen slice is constant (slice {chosen[0]}: {extremes[chosen[0]][0]:g})")
    low, high = min(e[0] for e in extremes), max(e[1] for e in extremes)
    left_out = f"{len(chosen) - len(varied)} constant slices left out" if len(varied) < len(chosen) else ""
    note = "; ".join(part for part in (left_out, padding) if part)
    return Volume(path, name, digest, subject, target, varied, size, VolumeRange(low, high), encoding.spacing, note)


def _extremes(file: h5py.File, target: str, index: int, size: tuple[int, int]) -> tuple[float, float]:
    x = read_target(file, target, index, size)
    return float(x.min()), float(x.max())


def scalar(file: h5py.File, name: str) -> bytes | str:
    """A dataset that is one text, or an empty string."""
    data = file.get(name)
    value = data[()] if isinstance(data, h5py.Dataset) and data.size == 1 else ""
    value = value.item() if isinstance(value, np.ndarray) else value
    return value if isinstance(value, bytes | str) else ""


def shape_of(file: h5py.File, name: str) -> tuple[int, ...]:
    """Shape of a dataset of numbers."""
    return tuple(_dataset(file, name).shape or ())  # None: a dataset without data


def patient(file: h5py.File) -> str:
    """The patient's identifier, or an empty string: 7, 7.0, "7", b"7" and arrays of one of them are the same patient."""
    value = file.attrs.get("patient_id", "")
    if isinstance(value, np.ndarray | np.generic) and value.size == 1:
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, h5py.Empty) or np.size(value) == 0 or (isinstance(value, float) and np.isnan(value)):
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def _check_kspace(file: h5py.File, coils: Coils) -> int:
    """Number of slices; the coil axis is told by the rank."""
    shape, ranks = kspace_shape(file), {"single": 3, "multi": 4}
    if len(shape) != ranks[coils]:
        kind = {3: "single-coil", 4: "multi-coil"}.get(len(shape), f"rank {len(shape)}")
        other = "multi" if coils == "single" else "single"
        hint = f": give --coils {other} for such files" if len(shape) == ranks[other] else ""
        raise PrepError(f"kspace of shape {shape} is {kind}, expected {coils}-coil{hint}")
    check_not_empty(shape)
    return int(shape[0])


def kspace_shape(file: h5py.File) -> tuple[int, ...]:
    """Shape of the k-space. Raises PrepError where there is none; the message says what the file is."""
    if "kspace" not in file:
        raise PrepError(without_kspace(file))
    return shape_of(file, "kspace")


def check_not_empty(shape: tuple[int, ...]) -> None:
    """Raise PrepError for k-space without slices or samples."""
    if 0 in shape:
        raise PrepError(f"kspace of shape {shape} holds no {'slices' if shape[0] == 0 else 'samples'}")


def named(file: h5py.File) -> str:
    """What a file holds, by name where the name is one of the layouts: any other may be a patient's."""
    usual = {"kspace", "mask", "ismrmrd_header", "dataset", *RECONSTRUCTIONS}
    others = sum(name not in usual for name in file)
    known = [name for name in sorted(file) if name in usual]
    return ", ".join([*known, *([f"{others} other{'s' if others > 1 else ''}"] if others else [])]) or "nothing"


def without_kspace(file: h5py.File) -> str:
    """Say what a file without k-space is."""
    found = named(file)
    raw = isinstance(file.get("dataset"), h5py.Group) and "xml" in file["dataset"]
    return f"no dataset kspace (found: {found})" + (": an ISMRMRD raw file, give --measurements real" if raw else "")


def _target(file: h5py.File, wanted: Wanted) -> str:
    keys = RECONSTRUCTIONS if wanted.target == "auto" else (f"reconstruction_{wanted.target}",)
    for key in keys:
        if key in file:
            return key
    if wanted.target != "auto":
        raise PrepError(f"no dataset {keys[0]} (found: {named(file)})")
    if "mask" in file and not (read_numbers(file, "mask") == 1).all():
        raise SkipError("undersampled (stored mask, no reconstruction): no ground truth to simulate measurements from")
    return COMPUTED[wanted.coils]


def _check_target(file: h5py.File, target: str, n: int, encoding: Encoding) -> tuple[int, int]:
    """(H, W) of the target: its own, or for a computed one that of the header, or fastMRI's 320 x 320."""
    if target not in RECONSTRUCTIONS:
        return encoding.size or FASTMRI_SIZE
    shape = shape_of(file, target)
    if len(shape) != 3 or shape[0] != n or 0 in shape:
        raise PrepError(f"{target} has shape {shape}, expected (slices, rows, columns) with {n} slices as kspace")
    return int(shape[1]), int(shape[2])


def _check_samples(file: h5py.File, target: str, n: int, chosen: tuple[int, ...], encoding: Encoding) -> str:
    """Refuses k-space with NaN, and a ground truth computed from undersampled k-space; a note on padding."""
    if target not in RECONSTRUCTIONS:
        return check_fully_sampled((read_kspace(file, i) for i in range(n)), encoding.measured)
    for i in chosen:
        read_kspace(file, i)
    return ""
