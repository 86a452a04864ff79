"""Read HDF5 files in fastMRI's layout: check their content, and give their recorded k-space as a `RawVolume`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from data_prep.mri.ismrmrd_header import Encoding, parse_header
from data_prep.mri.partitions import central
from data_prep.run.manifest import PrepError, SkipError
from es_medical.data.hdf5 import PARTS, as_complex, complex_fields, damage_as, links, missing_filter, overstated, why_closed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_prep.run.store import Stored
    from es_medical.data.geometry import Geometry


SIGNATURE = b"\x89HDF\r\n\x1a\n"
RECONSTRUCTIONS = ("reconstruction_esc", "reconstruction_rss")
FASTMRI_SIZE = (320, 320)
FINEST = 8  # largest ratio of pixels and samples along an axis, and of their widths: scanners interpolate by 2 or 4
COILS_OF_RANK = {3: "single", 4: "multi"}


@contextmanager
def open_volume(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file of raw data; the error says whether it is truncated or not HDF5 at all.

    Raises:
        SkipError: a slice file of es_medical.
        PrepError: the file is empty, not HDF5, truncated or damaged.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise PrepError(why_closed(error) or _why_unreadable(path, str(error))) from error
    with file, damage_as(PrepError("damaged HDF5 file, or one with a broken link: download it again")):
        _check_links(path)
        if "schema" in file.attrs and "measurement" in file:
            raise SkipError("a slice file of es_medical, not raw data")
        yield file


def _check_links(path: Path) -> None:
    """Raise PrepError if a part of a file's data lies in a file that is missing: HDF5 reads zeros there."""
    missing = links(path).missing
    if missing:
        count = f"{len(missing)} other files are" if len(missing) > 1 else "another file is"
        cause = f"broken link: a part of its data lies in another file, and {count} missing"
        raise PrepError(cause, f"({', '.join(missing[:3])})")


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
        return f"truncated HDF5 file: it has {size} bytes, its header announces more; download it again"
    return f"damaged HDF5 file ({size} bytes): download it again"


@dataclass(frozen=True, kw_only=True)
class CheckedVolume:
    """A file that passed the checks, and what will be taken from it.

    Attributes:
        path: the file, or an object of a store.
        name: its path below the source folder.
        digest: SHA-256 of its bytes.
        subject: patient identifier when the file has one, else the digest. Never stored as it is.
        slices: indices of the chosen slices.
        size: (H, W) of the reconstruction.
        target: dataset that gives the ground truth, or how it is computed.
        note: what a user should know.
        whole: whether all slices of the volume are examined or taken.
    """

    path: Path | Stored
    name: str
    digest: str
    subject: str
    slices: tuple[int, ...]
    size: tuple[int, int]
    target: str
    note: str = ""
    whole: bool = True


def reconstructed_size(encoding: Encoding, recorded: tuple[int, ...]) -> tuple[int, int]:
    """(H, W) of the reconstruction, fastMRI's where unknown; raises PrepError for one no scanner makes of (H, W) samples."""
    size = encoding.size or FASTMRI_SIZE
    if encoding.size and any(n > FINEST * samples for n, samples in zip(size, recorded, strict=True)):
        raise PrepError(f"a reconstruction of {size} pixels from {recorded} samples: expected {FINEST} times as many at most")
    if cause := unlike(encoding.spacing, encoding.pixel):
        raise PrepError(f"reconstructed and recorded grid have {cause}")
    return size


def unlike(one: tuple[float, float], other: tuple[float, float]) -> str:
    """Why pixels (row and column spacing in mm) are too different to come from each other, or ""; unknown ones are not.

    >>> unlike((1.0, 1.0), (0.5, 1.0)), unlike((1.0, 1.0), (float("nan"), 1.0))
    ('', '')
    """
    if all(not (a > FINEST * b or b > FINEST * a) for a, b in zip(one, other, strict=True)):
        return ""
    widths = " and ".join(f"{rows:.3g} x {columns:.3g}" for rows, columns in (one, other))
    return f"pixels of {widths} mm: {FINEST} times as wide at most expected"


def read_kspace(file: h5py.File, index: int, data: h5py.Dataset | None = None) -> NDArray[np.complexfloating]:
    """One slice of k-space, (H, W) or (coils, H, W), complex.

    Raises:
        PrepError: it cannot be read, is not complex, or holds NaN or infinite values.
    """
    k = read_numbers(file, "kspace", index, data)
    if not np.iscomplexobj(k):
        raise PrepError(f"kspace is {k.dtype}, expected complex: its imaginary part is lost")
    return k


def _is_pairs(data: h5py.Dataset) -> bool:
    """Whether k-space is stored as floats with a last axis of 2: no slice has so few columns."""
    return data.dtype.kind == "f" and len(data.shape or ()) in (4, 5) and data.shape[-1] == 2


def read_numbers(file: h5py.File, name: str, index: int | None = None, data: h5py.Dataset | None = None) -> NDArray:
    """A dataset, or one row of it. Raises PrepError when it cannot be read or holds NaN or infinite values.

    Args:
        file: the file.
        name: of the dataset.
        index: of the row; None for all.
        data: the dataset, if a row of it was read before: to look it up and check it takes longer than to read it.
    """
    what = name if index is None else f"{name} slice {index}"
    if data is None:
        data = _dataset(file, name)
        if cause := overstated(data, whole=index is None) or missing_filter(data):
            raise PrepError(f"{what} {cause}")
    try:
        x = data[() if index is None else index]
    except OSError as error:
        raise PrepError(f"{what} cannot be read: damaged or truncated data") from error
    x = as_complex(x, name == "kspace" and _is_pairs(data))
    if not _finite(x):
        raise PrepError(f"{what} holds NaN or infinite values")
    return x


def _finite(x: NDArray) -> bool:
    """Whether all values are finite; so they are where their sum is, which is found in half the time."""
    with np.errstate(all="ignore"):
        parts = x.view(x.real.dtype) if x.flags.c_contiguous else x  # numpy adds complex numbers more slowly
        return bool(np.isfinite(parts.sum()) or np.isfinite(x).all())


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset of numbers."""
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        members = f" of {named(data)}" if isinstance(data, h5py.Group) else ""
        raise PrepError(f"{name} is a {type(data).__name__.lower()}{members}, expected a dataset of numbers")
    if name == "kspace" and complex_fields(data.dtype):
        return data
    if data.dtype.names:
        known = ", or ".join(" and ".join(parts) for parts in PARTS)
        wanted = f"complex numbers, or the fields {known}" if name == "kspace" else "plain numbers"
        raise PrepError(f"{name} has {len(data.dtype.names)} fields, expected {wanted}")
    if data.dtype.kind not in "biufc":
        raise PrepError(f"{name} holds values of type {data.dtype}, expected numbers")
    return data


def scalar(file: h5py.File, name: str) -> bytes | str:
    """The value of a dataset that holds a single text, else an empty string."""
    data = file.get(name)
    value = data[()] if isinstance(data, h5py.Dataset) and data.size == 1 else ""
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value  # not of ragged values
    return value if isinstance(value, bytes | str) else ""


def shape_of(file: h5py.File, name: str) -> tuple[int, ...]:
    """Shape of a dataset of numbers; that of complex numbers if k-space is stored as pairs."""
    data = _dataset(file, name)
    shape = tuple(data.shape or ())  # None: a dataset without data
    return shape[:-1] if name == "kspace" and _is_pairs(data) else shape


def patient(file: h5py.File) -> str:
    """The patient's identifier, or an empty string: 7, 7.0, "7", b"7" and arrays of one of them are the same patient."""
    value = file.attrs.get("patient_id", "")
    if isinstance(value, np.ndarray | np.generic) and value.size == 1:
        value = value.item()
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")  # h5py gives bytes that are no text as surrogates
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, h5py.Empty) or np.size(value) == 0 or (isinstance(value, float) and np.isnan(value)):
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def kspace_shape(file: h5py.File) -> tuple[int, ...]:
    """Shape of the k-space. Raises PrepError if there is none; the message says what the file holds."""
    if "kspace" not in file:
        raise PrepError(without_kspace(file))
    return shape_of(file, "kspace")


def check_not_empty(shape: tuple[int, ...]) -> None:
    """Raise PrepError for k-space without slices or samples."""
    if 0 in shape:
        raise PrepError(f"kspace of shape {shape} holds no {'slices' if shape[0] == 0 else 'samples'}")


def named(file: h5py.File) -> str:
    """What a file holds: names that belong to a known layout are listed, others only counted (they may name a patient)."""
    usual = {"kspace", "mask", "ismrmrd_header", "dataset", *RECONSTRUCTIONS}
    others = sum(name not in usual for name in file)  # one that is no text is given as bytes
    known = sorted(name for name in file if name in usual)
    return ", ".join([*known, *([f"{others} other{'s' if others > 1 else ''}"] if others else [])]) or "nothing"


def without_kspace(file: h5py.File) -> str:
    """Message for a file without k-space: what it holds instead."""
    found = named(file)
    raw = isinstance(file.get("dataset"), h5py.Group) and "xml" in file["dataset"]
    return f"no dataset kspace (found: {found})" + (": an ISMRMRD raw file, give --measurements real" if raw else "")


class FastMRIVolume:
    """A file in fastMRI's layout as a `RawVolume`, read slice by slice.

    Args:
        file: the open HDF5 file: `kspace` (slices, H, W) or (slices, coils, H, W), or partitions of a 3-D acquisition where
            the header announces as many; optional `mask` (W,), `ismrmrd_header` and `reconstruction_*`, which gives the size
            of the reconstruction.

    Raises:
        PrepError: there is no such k-space, or the mask does not fit.
    """

    noise_covariance: NDArray[np.complexfloating] | None = None
    note = ""

    def __init__(self, file: h5py.File) -> None:
        shape = kspace_shape(file)
        if len(shape) not in COILS_OF_RANK:
            raise PrepError(f"kspace of shape {shape} has rank {len(shape)}, expected (slices, H, W) or (slices, coils, H, W)")
        check_not_empty(shape)
        self._file, self._data = file, None
        self.n_slices, self.coils = shape[0], shape[1] if COILS_OF_RANK[len(shape)] == "multi" else 0
        self.size: tuple[int, int] = (shape[-2], shape[-1])
        self.encoding = self._encoding()
        self.slices = self._slices()
        self.mask = self._mask()
        self.subject = patient(file)

    def kspace(self, index: int) -> NDArray[np.complexfloating]:
        """One slice, (H, W) or (coils, H, W), complex64; see `read_kspace`."""
        k = read_kspace(self._file, index, self._data)
        self._data = self._data or self._file["kspace"]
        if k.dtype.itemsize > 8 and np.abs(k).max() > np.finfo(np.float32).max:
            raise PrepError(f"kspace slice {index} has values up to {np.abs(k).max():g}, too large for single precision")
        return k.astype(np.complex64, copy=False)

    def geometry(self, index: int) -> Geometry | None:
        """None: the layout holds no orientation."""
        return None

    def _slices(self) -> range | tuple[()]:
        """Slices inside the reconstructed field of view if the header announces the partitions of a 3-D acquisition."""
        announced, found = self.encoding.partitions, self.n_slices
        if announced > 1 and announced != found:
            raise PrepError(f"the header announces {announced} partitions of a 3-D acquisition, kspace has {found}")
        return central(announced, self.encoding.kept) if announced > 1 else ()

    def _encoding(self) -> Encoding:
        """Encoding of the header, with the size of the stored reconstruction and the pixel spacing of the stored k-space.

        A stored reconstruction is the centre of the image of the stored k-space, so it has the same pixels.
        """
        encoding = parse_header(scalar(self._file, "ismrmrd_header"))
        if encoding.recorded is not None:
            rows, columns = (m / n for m, n in zip(encoding.recorded, self.size, strict=True))
            encoding = encoding._replace(pixel=(encoding.pixel[0] * rows, encoding.pixel[1] * columns))
        stored = [shape_of(self._file, key) for key in RECONSTRUCTIONS if key in self._file]
        if not stored or len(stored[0]) != 3 or 0 in stored[0]:
            return encoding
        spacing = encoding.pixel if np.isfinite(encoding.pixel).all() else encoding.spacing
        return encoding._replace(size=stored[0][1:], spacing=spacing)

    def _mask(self) -> NDArray[np.bool_] | None:
        if "mask" not in self._file:
            return None
        mask = np.squeeze(read_numbers(self._file, "mask"))
        if mask.shape != (self.size[1],) or not np.isin(mask, (0, 1)).all():
            raise PrepError(f"mask of shape {mask.shape}: expected 0 or 1 for each of the {self.size[1]} columns of kspace")
        return mask.astype(bool)
