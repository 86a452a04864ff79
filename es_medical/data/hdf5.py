"""What damaged HDF5 files raise, and datasets that claim more than their file holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

import h5py

DEFLATE_RATIO = 1100  # deflate packs at most 1032 bytes into one
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
