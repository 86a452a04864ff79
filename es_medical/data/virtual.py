"""Slice files whose pixels lie in other files, their parts: HDF5 virtual data sets.

HDF5 itself gives fill values, without an error, where a part is missing or cannot be opened. So a slice file keeps the name and
the size of each of its parts, which are checked when it is opened, and its fill value is NaN, which no slice holds.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from es_medical.data.hdf5 import PARTS_KEPT, write_text
from es_medical.data.writer import SliceWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from es_medical.data.schema import SliceRecord


class Place(NamedTuple):
    """Where the pixels of a slice lie: the slice file that holds them, and the row in it."""

    part: Path
    row: int


class VirtualWriter(SliceWriter):
    """Write a slice file that leads to the pixels in its parts; the measurement of each record is a `Place`.

    The parts lie below the folder of the file, and are found beside it wherever the folder is moved.
    """

    def append(self, record: SliceRecord) -> None:
        """Append one slice, whose pixels stay where they are."""
        self._rows.append(self._values(record) | {"place": record.measurement})

    def _stored_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def _finish(self) -> None:
        runs = list(_runs([row["place"] for row in self._rows]))
        names = {part: part.relative_to(self.path.absolute().parent).as_posix() for part, _, _ in runs}
        checksums = {part: _checksums(part) for part in names}
        for row in self._rows:
            row["checksum"] = checksums[row["place"].part][row["place"].row]
        for name, shape in self._pixel_shapes.items() if self.n else ():
            layout, at = h5py.VirtualLayout((self.n, *shape), np.float32), 0
            for part, first, stop in runs:
                source = h5py.VirtualSource(names[part], name, (len(checksums[part]), *shape), np.float32)
                layout[at : at + stop - first] = source[first:stop]
                at += stop - first
            self._file.create_virtual_dataset(name, layout, fillvalue=np.nan)
        sizes = {name: part.stat().st_size for part, name in names.items()}
        write_text(self._file.attrs, PARTS_KEPT, json.dumps(sizes))
        super()._finish()


def _checksums(part: Path) -> NDArray[np.uint32]:
    with h5py.File(part, "r") as file:
        return file["checksum"][()]


def _runs(places: Sequence[Place]) -> Iterator[tuple[Path, int, int]]:
    """Consecutive rows of a part as (part, first, one past the last): HDF5 looks through all of them at each access."""
    for (part, _), group in groupby(enumerate(places), key=lambda item: (item[1].part, item[1].row - item[0])):
        rows = [place.row for _, place in group]
        yield part, rows[0], rows[-1] + 1
