"""Read the slices of an HDF5 file as a torch data set."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info

from es_medical.data.hdf5 import damage_as, read_into
from es_medical.data.schema import PIXELS, SPLITS, damaged, open_slices, read_header


class Items(list[dict[str, Any]]):
    """The items of a batch whose pixels were read into one tensor; `batch` is what torch's default collate makes of them."""

    def __init__(self, batch: dict[str, Any]) -> None:
        self.batch = batch
        items = ({name: values[i] for name, values in batch.items()} for i in range(len(batch["id"])))
        super().__init__(item | {"index": int(item["index"])} for item in items)


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Batch items as torch's default collate does; the pixels of `Items` are not copied."""
    return items.batch if isinstance(items, Items) else default_collate(list(items))


class SliceDataset(Dataset[dict[str, Any]]):
    """The slices of one split, read one at a time.

    An item is a dict: ``measurement`` float32 (2, H, W), or (2, C, H, W) together with ``maps`` of the same shape, or a
    sinogram (1, views, detectors); ``image`` (2 or 1, H, W) float32 if the file holds one and `with_image` is set; ``sigma``,
    ``peak`` and ``data_range`` float32 scalars; ``scale`` and ``offset`` float64 scalars (raw = stored * scale + offset);
    ``id`` str; ``index`` int (row of the file). torch's default collate batches it.

    The HDF5 handle is opened on first use in each process, so the data set can be pickled (spawn) and forked.

    Args:
        path: slice file.
        split: ``train``, ``val``, ``test``, or None for all slices.
        with_image: False does not read the ground truth, as if there were none.
        limit: at most this many slices, spread evenly over the split.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a slice file; an unknown or empty split; a limit below 1.
    """

    def __init__(self, path: str | Path, split: str | None = None, with_image: bool = True, limit: int | None = None) -> None:
        if split is not None and split not in SPLITS:
            raise ValueError(f"split {split!r}: expected one of {', '.join(SPLITS)}, or None for all")
        if limit is not None and limit < 1:
            raise ValueError(f"limit {limit}: expected at least 1")
        self.path = str(path)
        self.split = split
        self.header = read_header(path)
        self.with_image = with_image and self.header.has_image
        self._file: h5py.File | None = None
        self._pixels: dict[str, h5py.Dataset] = {}
        self._pid = -1
        self._load_columns(limit)

    def _load_columns(self, limit: int | None) -> None:
        with open_slices(self.path) as file, damage_as(damaged(self.path)):
            rows = np.arange(self.header.n)
            if self.split is not None:
                rows = rows[file["split"].asstr()[:] == self.split]
            if rows.size == 0:
                raise ValueError(f"{self.path} holds no slice of split {self.split!r} (it holds {self.header.splits})")
            if limit is not None and limit < rows.size:
                rows = rows[np.arange(limit) * rows.size // limit]
            self.rows = rows
            self._ids = np.char.encode(file["id"].asstr()[:][rows].astype(str), "utf-8")  # no per-item Python object
            self._scale = file["scale"][:][rows]
            self._data_range = file["data_range"][:][rows]
            self._sigma = file["sigma"][:][rows] if "sigma" in file else np.full(len(rows), self.header.sigma)
            self._peak = file["peak"][:][rows] if "peak" in file else np.ones(len(rows))
            self._checksums = file["checksum"][:] if "checksum" in file else None
            self._compared = np.zeros((self.header.n, len(PIXELS)), bool)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> list[str]:
        """The salted hashes of the slices, in order."""
        return [key.decode() for key in self._ids]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Items:
        """Read the items of a batch, for torch's loader: with `collate`, pixels are copied from the file once."""
        at = np.asarray(indices)
        rows, names = self.rows[at], ("measurement", *["maps"] * bool(self.header.coils), *["image"] * self.with_image)
        self._handle()
        with damage_as(damaged(self.path)):
            pixels = {name: self._read(name, rows) for name in names}
        return Items({
            **pixels,
            "sigma": torch.from_numpy(self._sigma[at]).float(),
            "peak": torch.from_numpy(self._peak[at]).float(),
            "data_range": torch.from_numpy(self._data_range[at]).float(),
            "scale": torch.from_numpy(self._scale[at, 0]),
            "offset": torch.from_numpy(self._scale[at, 1]),
            "id": [key.decode() for key in self._ids[at]],
            "index": torch.from_numpy(rows),
        })  # fmt: skip

    def acquisition(self, index: int) -> dict[str, Any]:
        """Read how a slice was acquired, without its pixels: its noise level and, if there are coils, their ``maps``."""
        item: dict[str, Any] = {"sigma": torch.tensor(self._sigma[index], dtype=torch.float32)}
        if self.header.coils:
            self._handle()
            item["maps"] = self._read("maps", self.rows[[index]])[0]
        return item

    def _read(self, name: str, rows: np.ndarray) -> Tensor:
        """Read the pixels of rows; their checksums are compared at the first reading in this process."""
        values, kind, checksums = _read(self._pixels[name], rows), PIXELS.index(name), self._checksums
        for pixels, row in zip(values.numpy(), rows.tolist(), strict=True):
            if checksums is not None and not self._compared[row, kind] and zlib.crc32(pixels.data) != checksums[row, kind]:
                raise ValueError(
                    f"the {name} of slice {row} in {self.path} is not what was written: copy the file again, or make it anew "
                    "with data_prep (in a file that was changed on purpose, delete the dataset 'checksum')"
                )
            self._compared[row, kind] = True
        return values

    def _handle(self) -> None:
        """Open the file in this process: a handle inherited through fork would share its file position with the parent."""
        if self._file is None or self._pid != os.getpid():
            self._close()
            self._file, self._pid = open_slices(self.path), os.getpid()
            self._pixels = {name: self._file[name] for name in PIXELS if name in self._file}  # looking them up again is slow

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None, "_pixels": {}, "_pid": -1}


def _read(data: h5py.Dataset, rows: np.ndarray) -> Tensor:
    """Read rows into one new tensor; in a worker process it is in shared memory, so that it gets to the trainer uncopied."""
    shape = (len(rows), *data.shape[1:])
    if get_worker_info() is None:
        values = torch.empty(shape)
    else:  # as torch's default collate does
        values = torch.empty(0).set_(torch.UntypedStorage._new_shared(4 * math.prod(shape))).view(shape)
    for place, row in zip(values.numpy(), rows.tolist(), strict=True):
        read_into(place, data, row)
    return values
