"""HDF5 files as they are found: damaged, locked, compressed by something else, or with a part of their data in other files."""

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb
from typing import NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

FILTERS = {32000: "LZF", 32001: "Blosc", 32004: "LZ4", 32008: "Bitshuffle", 32013: "ZFP", 32015: "Zstandard", 32026: "Blosc2"}
"""Names of the usual filters by their registered numbers."""
DEFLATE_RATIO = 1100  # deflate packs at most 1032 bytes into one
PARTS = (("real", "imag"), ("re", "im"), ("r", "i"))  # names of the fields of complex numbers, in any case
PARTS_KEPT = "parts"  # attribute of a slice file whose pixels lie in other files: their names and sizes, see data/virtual.py
FREE, VIRTUAL = 2**24, 2**30  # bytes that may be read whatever the file stores; of a virtual dataset, which stores none itself


def raised_by_h5py(error: BaseException) -> bool:
    """Whether an error comes from inside h5py: damaged bytes and broken links raise there errors of many types."""
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and "h5py" in frames[-1].replace("\\", "/").split("/")


@contextmanager
def damage_as(stated: Exception) -> Iterator[None]:
    """Raise `stated` in place of whatever h5py raises."""
    try:
        yield
    except Exception as error:
        if not raised_by_h5py(error):
            raise
        raise stated from error


def overstated(data: h5py.Dataset, whole: bool = True) -> str:
    """Why a dataset (or a row of it, if not `whole`) must not be read: the file stores far less, the rest are fill values."""
    if data.shape is None:
        return "holds no values"
    stored, needed = data.id.get_storage_size(), data.nbytes // (1 if whole else max((1, *data.shape[:1])))
    if needed <= (VIRTUAL if data.is_virtual else FREE + DEFLATE_RATIO * stored):
        return ""
    return f"has the shape {data.shape}: {needed} bytes to read, the file stores {stored}"


def why_closed(error: OSError) -> str:
    """Why a whole file can't be opened, and what to do: its lock, or a file system without locks; "" for another cause."""
    if "unable to lock file" not in str(error):
        return ""
    anyway = "set HDF5_USE_FILE_LOCKING=FALSE in the environment to read it anyway"
    if error.errno in (errno.EAGAIN, errno.EACCES):
        return f"locked: another program has it open for writing; wait until that ends, or, if none does, {anyway}"
    return f"on a file system without file locks: {anyway}"


def missing_filter(data: h5py.Dataset) -> str:
    """What is not installed to decompress a dataset, by its name and number, and the way out; "" if nothing is missing.

    The filters of the package hdf5plugin are loaded once they are needed.
    """
    properties = data.id.get_create_plist()
    codes = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if not all(map(h5py.h5z.filter_avail, codes)):
        with suppress(ImportError):
            import hdf5plugin  # noqa: F401 - loads its filters
    missing = [f"{FILTERS.get(code, 'a filter')} ({code})" for code in codes if not h5py.h5z.filter_avail(code)]
    return f"is compressed by {' and '.join(missing)}, which is not installed: pip install hdf5plugin" if missing else ""


def lost_parts(file: h5py.File) -> str:
    """Which parts of a slice file are missing or changed, see `es_medical.data.virtual`; "" if none."""
    kept = json.loads(read_text(file.attrs, PARTS_KEPT, "{}"))
    lost = sorted(name for name, size in kept.items() if _size(Path(file.filename).parent / name) != size)
    if not lost:
        return ""
    folder = Path(lost[0]).parent
    return f"{len(lost)} of the {len(kept)} parts with its pixels are missing or changed: keep the folder {folder} beside it"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def write_text(attributes: h5py.AttributeManager, name: str, text: str) -> None:
    """Write text of a fixed length: HDF5 checks it up to 64 kB, and can loop without end in a damaged heap of other text."""
    content = text.encode()
    attributes.create(name, content, dtype=h5py.string_dtype("utf-8", max(len(content), 1)))


def write_texts(file: h5py.File, name: str, texts: Sequence[str]) -> None:
    """Write a column of text, as long as its longest one: HDF5 has checksums of it, of text of any length it has none."""
    contents = [text.encode() for text in texts]
    values = np.array(contents, h5py.string_dtype("utf-8", max(1, *map(len, contents))))
    file.create_dataset(name, data=values, chunks=(min(256, len(values)),), fletcher32=True)


def read_text(attributes: h5py.AttributeManager, name: str, default: str = "") -> str:
    """Read text of a fixed length, or of any, as files of before have it. Raises KeyError if it is absent without a default."""
    value = attributes.get(name, default) if default else attributes[name]
    return value.decode() if isinstance(value, bytes) else str(value)


def read_into(x: NDArray[np.float32], data: h5py.Dataset, row: int) -> None:
    """Read the pixels of one slice into an array.

    Raises:
        ValueError: they lie in a part that cannot be read: HDF5 gives fill values, which are NaN.
    """
    data.read_direct(x, row)
    if np.isnan(x.flat[0]) and data.is_virtual:  # in this order: with 2000 parts the second takes 20 ms
        name = data.name.lstrip("/")
        raise ValueError(f"{data.file.filename}: {name} of row {row} lies in another file, which is missing or damaged")


class Links(NamedTuple):
    """The other files that hold a part of an HDF5 file's data.

    Attributes:
        files: those that are there.
        missing: names of those that are not.
    """

    files: frozenset[Path]
    missing: tuple[str, ...]


def links(path: Path) -> Links:
    """Find the files that an HDF5 file leads to: external links, virtual datasets and external storage, and theirs in turn.

    HDF5 itself reads zeros where the source of a virtual dataset is missing.

    Raises:
        OSError: the file, or one of them, can't be opened.
    """
    found, missing, queue = set[Path](), set[str](), [path]
    while queue:
        here = queue.pop()
        for name in _names(here):
            files = _resolved(name, here)
            missing |= set() if files else {name}
            new = [file for file in files if file not in found and file != path.resolve()]
            found.update(new)
            queue.extend(new)
    return Links(frozenset(found), tuple(sorted(missing)))


def _names(path: Path) -> set[str]:
    """Names of other files in an HDF5 file, as it holds them; none in a file of another kind (external storage)."""
    found = set[str]()

    def link(_: str, one: object) -> None:
        if isinstance(one, h5py.ExternalLink):
            found.add(str(one.filename))

    def item(_: str, one: object) -> None:
        if isinstance(one, h5py.Dataset):
            found.update(str(name) for name, *_ in one.external or ())
            found.update(str(source.file_name) for source in (one.virtual_sources() if one.is_virtual else ()))

    if h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            file.visititems_links(link)
            file.visititems(item)
    return found - {"."}  # the file itself


def _resolved(name: str, here: Path) -> list[Path]:
    """The files of a name in an HDF5 file, beside it or in the working directory; `%b` stands for the numbers of a series."""
    pattern = name.replace("%b", "*")
    for place in (here.parent / pattern, Path(pattern), here.parent / Path(pattern).name):
        files = [place] if pattern == name else sorted(place.parent.glob(place.name))
        if files and all(file.is_file() for file in files):
            return [file.resolve() for file in files]
    return []


def as_complex(x: NDArray, pairs: bool = False) -> NDArray:
    """Join real and imaginary part: the fields of compound values (see `PARTS`), or a last axis of 2 if they are `pairs`.

    >>> as_complex(np.array([[1.0, 2.0]]), pairs=True)
    array([1.+2.j])
    """
    fields = complex_fields(x.dtype)
    if fields is None and not pairs:
        return x
    real, imaginary = (x[fields[0]], x[fields[1]]) if fields else (x[..., 0], x[..., 1])
    return real + 1j * imaginary if real.dtype.itemsize > 4 else real.astype(np.float32) + np.complex64(1j) * imaginary


def complex_fields(dtype: np.dtype) -> tuple[str, str] | None:
    """The names of the real and the imaginary part among the fields of compound values, or None if they are others.

    >>> complex_fields(np.dtype([("Im", "f4"), ("Re", "f4")]))
    ('Re', 'Im')
    """
    given = {name.lower(): name for name in dtype.names or ()}
    found = next((parts for parts in PARTS if given.keys() == {*parts}), None)
    plain = found is not None and all(dtype[given[part]].kind in "fiu" and not dtype[given[part]].shape for part in found)
    return (given[found[0]], given[found[1]]) if found and plain else None
