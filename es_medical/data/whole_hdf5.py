"""Write an HDF5 file whole or not at all; a full disk is an error that names it, not the end of the process."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import h5py

from es_medical.data.atomic import whole_or_not

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FORMAT = ("v110", "v110")  # of HDF5: the first in which all metadata have checksums


class NewHDF5(NamedTuple):
    """An HDF5 file that is being written, and `check`, which raises OSError if something could not be written."""

    file: h5py.File
    check: Callable[[], None]


@contextmanager
def whole_hdf5(path: Path, durable: bool = False) -> Iterator[NewHDF5]:
    """Make an HDF5 file next to `path` under a temporary name, and rename it at the end, as `whole_or_not`.

    HDF5 cannot close a file after it failed to write to it: at the exit of the process it ends by signal 11. So it is told that
    everything is written, and the error is kept. Call `check` where going on would take long; it is called at the end.

    Args:
        path: the file to write; its folder must exist.
        durable: wait until the file and its new name are on the disk.

    Raises:
        OSError: no space is left, or the file cannot be written for another reason.
    """
    with whole_or_not(path, durable) as part, _Written(str(part), "w+") as written:

        def check() -> None:
            if written.error is not None:
                raise OSError(written.error.errno, os.strerror(written.error.errno or 0), str(path))

        try:
            with h5py.File(written, "w", libver=FORMAT) as file:
                yield NewHDF5(file, check)
        finally:
            check()


class _Written(FileIO):
    """A file that keeps the first error of writing in place of raising it, and writes nothing more."""

    error: OSError | None = None

    def write(self, data: "ReadableBuffer") -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self.error is None and rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return self.tell() if size is None else size
