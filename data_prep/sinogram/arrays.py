"""Arrays in TIFF, .npy, MATLAB and HDF5 files, of which a part at a time is read."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from data_prep.mri.fastmri_file import SIGNATURE, open_volume
from data_prep.run.manifest import PrepError, SkipError
from es_medical.data.hdf5 import missing_filter

MATLAB = b"MATLAB 5.0 MAT-file"
MATLAB_HDF5 = b"MATLAB 7.3 MAT-file"
USER_BLOCK = 512  # bytes before the HDF5 part of a MATLAB 7.3 file
NPY = b"\x93NUMPY"
SUFFIXES = (".h5", ".hdf5", ".hdf", ".nxs", ".mat", ".npy", ".tif", ".tiff")
TIFFS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
MOST_PAGES, MOST_TAGS = 100_000, 500
FREE_BYTES, PACKED = 2**24, 1100  # of pixels, and for each byte of a compressed file: deflate packs 1032 into one
LISTED = 8  # names of arrays in an error
Index = tuple[Any, ...]


class ArrayError(PrepError):
    """An array that is not there, or one of several: their names, which may be private, are for the terminal only."""

    def __init__(self, cause: str, names: list[str]) -> None:
        super().__init__(cause)
        self.detail = f"(there are {', '.join(names[:LISTED]) or 'none'})"


class Table(NamedTuple):
    """An array of numbers in a file: its shape, and a function that reads the part at an index."""

    shape: tuple[int, ...]
    read: Callable[[Index], NDArray[np.floating]]


def format_of(path: Path) -> str:
    """The format of a file by its first bytes: "hdf5", "mat", "npy", "tiff", or "".

    Raises:
        PrepError: it cannot be read, or has another format than its name says.
    """
    try:
        with path.open("rb") as file:
            start = file.read(USER_BLOCK + len(SIGNATURE))
    except OSError as error:
        raise PrepError(f"cannot be read ({error.strerror})") from error
    if SIGNATURE in (start[: len(SIGNATURE)], start[USER_BLOCK:]):
        return "hdf5"
    formats = {"mat": (MATLAB,), "npy": (NPY,), "tiff": TIFFS}
    found = next((name for name, starts in formats.items() if start.startswith(starts)), "")
    if not found and path.suffix.lower() in SUFFIXES:
        what = "it holds a web page or XML" if start.lstrip()[:1] == b"<" else "another format, or damaged"
        raise PrepError(f"not a {path.suffix.lower()} file: {what}" if start else "empty file (0 bytes)")
    return found


def table(path: Path, name: str | None = None) -> Table:
    """The array of a file.

    Args:
        path: the file.
        name: which array, of an HDF5 or .mat file with several.

    Raises:
        SkipError: another format.
        PrepError: the file is damaged, has no such array or several, or no real numbers.
    """
    kind = format_of(path)
    readers = {
        "hdf5": _hdf5,
        "mat": _matlab,
        "npy": lambda path, _: _whole(_npy, path),
        "tiff": lambda path, _: _whole(_tiff, path),
    }
    if kind not in readers:
        raise SkipError("no array: expected HDF5, .mat, .npy or TIFF")
    return readers[kind](path, name)


def _whole(open_: Callable[[Path], NDArray], path: Path) -> Table:
    x = open_(path)
    _check(x.shape, x.dtype)
    return Table(x.shape, lambda index: np.asarray(open_(path)[index], float))


def _npy(path: Path) -> NDArray:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # numpy raises many kinds on damaged bytes
        raise PrepError("damaged .npy file, or one of Python objects") from error


def _tiff(path: Path) -> NDArray:
    import tifffile

    _check_pages(path)
    try:
        return np.asarray(tifffile.memmap(path, mode="r"))
    except Exception:  # compressed, or damaged: many kinds
        return _decoded(path)


def _check_pages(path: Path) -> None:
    """Raise PrepError unless all pages and their tags lie in the file, and none comes back: tifffile has no bound on them."""
    size = path.stat().st_size
    with path.open("rb") as file:

        def number(at: int, length: int) -> int:
            file.seek(at)
            return int.from_bytes(file.read(length), "little" if little else "big")

        start = file.read(4)
        little, word = start[:2] == b"II", 8 if 43 in start[2:] else 4
        count, entry = (8, 20) if word == 8 else (2, 12)
        at, seen = number(word, word), set[int]()
        while at:
            tags, first = number(at, count), at + count
            if at in seen or len(seen) == MOST_PAGES or tags > MOST_TAGS or first + entry * tags + word > size:
                raise PrepError("damaged TIFF file: its pages or tags do not fit into it")
            seen.add(at)
            lengths = (number(place + 4, word) for place in range(first, first + entry * tags, entry))
            if any(length > size for length in lengths):
                raise PrepError("damaged TIFF file: a tag is longer than the file")
            at = number(first + entry * tags, word)


@lru_cache(maxsize=2)
def _decoded(path: Path) -> NDArray:
    import tifffile

    most = FREE_BYTES + PACKED * path.stat().st_size
    try:
        with tifffile.TiffFile(path) as file:
            if file.series[0].nbytes > most:
                raise PrepError(f"damaged TIFF file: its header says {file.series[0].nbytes} bytes of pixels")
            return np.asarray(file.asarray())
    except PrepError:
        raise
    except Exception as error:  # tifffile raises many kinds on damaged bytes
        why = "its compression needs the package imagecodecs" if "imagecodecs" in str(error) else type(error).__name__
        raise PrepError(f"damaged or unknown TIFF file ({why})") from error


@lru_cache(maxsize=2)
def matlab_variables(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file before version 7.3. Raises PrepError for a damaged one."""
    from scipy.io import loadmat

    try:
        return dict(loadmat(path, simplify_cells=True))
    except Exception as error:  # scipy raises many kinds on damaged bytes
        raise PrepError(f"damaged MATLAB file ({type(error).__name__})") from error


def _matlab(path: Path, name: str | None) -> Table:
    arrays = {key: x for key, x in matlab_variables(path).items() if isinstance(x, np.ndarray)}
    x = arrays[_chosen({key: x.shape for key, x in arrays.items()}, name)]
    _check(x.shape, x.dtype)
    return Table(x.shape, lambda index: np.asarray(x[index], float))


def _hdf5(path: Path, name: str | None) -> Table:
    with open_volume(path) as file:
        shapes = dict[str, tuple[int, ...]]()
        file.visititems(lambda key, x: shapes.update({key: x.shape}) if isinstance(x, h5py.Dataset) else None)
        chosen = _chosen(shapes, name)
        _check(file[chosen].shape, file[chosen].dtype)
        if cause := missing_filter(file[chosen]):
            raise PrepError(f"{chosen} {cause}")

    def read(index: Index) -> NDArray[np.floating]:
        with open_volume(path) as file:
            try:
                return np.asarray(file[chosen][index], float)
            except (OSError, KeyError) as error:
                raise PrepError(f"{chosen} cannot be read: damaged or truncated data") from error

    return Table(shapes[chosen], read)


def _chosen(shapes: dict[str, tuple[int, ...]], name: str | None) -> str:
    """The array of that name, or the only one with two axes or three."""
    if name is not None:
        if name.strip("/") not in shapes:
            raise ArrayError(f"no array {name!r}", sorted(shapes))
        return name.strip("/")
    candidates = sorted(key for key, shape in shapes.items() if len(shape) in (2, 3) and min(shape) > 1)
    if len(candidates) != 1:
        raise ArrayError(f"{len(candidates)} arrays of two or three axes: give `dataset` in the geometry", candidates)
    return candidates[0]


def _check(shape: tuple[int, ...], dtype: np.dtype) -> None:
    if dtype.kind not in "uif" or not all(shape):
        raise PrepError(f"array of shape {shape}, {dtype}: expected real numbers")
