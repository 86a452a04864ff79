"""Read the slices of an HDF5 file as a torch data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset

from es_medical.data.hdf5 import damage_as, read_row
from es_medical.data.schema import SPLITS, damaged, open_slices, read_header


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

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> list[str]:
        """The salted hashes of the slices, in order."""
        return [key.decode() for key in self._ids]

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = int(self.rows[index])
        file = self._handle()
        with damage_as(damaged(self.path)):
            item: dict[str, Any] = {
                "measurement": torch.from_numpy(read_row(file, "measurement", row))
            }  # (2, H, W) or (2, C, H, W)
            if self.header.coils:
                item["maps"] = torch.from_numpy(read_row(file, "maps", row))  # (2, C, H, W)
            if self.with_image:
                item["image"] = torch.from_numpy(read_row(file, "image", row))  # (2, H, W)
        scale, offset = self._scale[index]
        return item | {
            "sigma": torch.tensor(self._sigma[index], dtype=torch.float32),
            "peak": torch.tensor(self._peak[index], dtype=torch.float32),
            "data_range": torch.tensor(self._data_range[index], dtype=torch.float32),
            "scale": torch.tensor(scale, dtype=torch.float64),
            "offset": torch.tensor(offset, dtype=torch.float64),
            "id": self._ids[index].decode(),
            "index": row,
        }

    def acquisition(self, index: int) -> dict[str, Any]:
        """Read how a slice was acquired, without its pixels: its noise level and, if there are coils, their ``maps``."""
        item: dict[str, Any] = {"sigma": torch.tensor(self._sigma[index], dtype=torch.float32)}
        if self.header.coils:
            item["maps"] = torch.from_numpy(read_row(self._handle(), "maps", int(self.rows[index])))
        return item

    def _handle(self) -> h5py.File:
        """File handle of this process: one inherited through fork would share its file position with the parent."""
        if self._file is None or self._pid != os.getpid():
            self._close()
            self._file, self._pid = open_slices(self.path), os.getpid()
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None, "_pid": -1}
