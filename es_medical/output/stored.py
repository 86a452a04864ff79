"""Images of slices in an HDF5 file: written as they come, and read again a volume at a time, so that few are in memory."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from es_medical.data.whole_hdf5 import whole_hdf5


class StoredImages:
    """Images (N, ...) of an HDF5 dataset that stays in the file; rows are read in any order, as from an array."""

    def __init__(self, data: h5py.Dataset) -> None:
        self.data, self.shape = data, data.shape

    def __getitem__(self, rows: int | np.integer | NDArray[np.int64]) -> NDArray[Any]:
        return np.stack([self.data[row] for row in rows]) if isinstance(rows, np.ndarray) else self.data[int(rows)]


class ImageFile:
    """An HDF5 file of images that appears whole or not at all, by `close`; images are added at the end of its datasets."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._opened = ExitStack()
        self.file, self._check = self._opened.enter_context(whole_hdf5(path))

    def append(self, images: Mapping[str, NDArray[Any]]) -> None:
        """Write images (B, ...) of each name."""
        for name, values in images.items():
            data = self.file[name] if name in self.file else self.create(name, (0, *values.shape[1:]), values.dtype)
            data.resize(len(data) + len(values), 0)
            data[len(data) - len(values) :] = values
        self._check()

    def create(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> h5py.Dataset:
        """Make a dataset of images, which HDF5 checks when they are read."""
        one = shape[1:]
        return self.file.create_dataset(name, shape, dtype, maxshape=(None, *one), chunks=(1, *one), fletcher32=True)

    def sort(self, order: NDArray[np.int64]) -> None:
        """Put all images into an order, if it is another one: those of one name are in memory then."""
        if (np.diff(order) < 0).any():
            for data in self.file.values():
                data[...] = data[()][order]

    def close(self, error: BaseException | None = None) -> None:
        """Give the file its name or, after an error, remove it."""
        self._opened.__exit__(type(error) if error else None, error, None)
