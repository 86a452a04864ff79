"""Writing a slice file whole: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from es_medical.data.schema import SCHEMA, SPLITS, SliceHeader, SliceRecord


class SliceWriter:
    """Writes a slice file under a temporary name and publishes it whole.

    The temporary file stands beside the target. A clean exit flushes, syncs and renames it, so a reader sees the old
    file or the new one and never half of one; an exception deletes it and leaves an older file as it was.

    Args:
        path: the file to publish.
        header: what holds for every slice.
        size: (H, W) of every slice.
        with_image: whether the file holds ground truth.

    Raises:
        ValueError: the mask does not fit `size`, a record does not fit the file, or no slice was written.
    """

    def __init__(self, path: str | Path, header: SliceHeader, size: tuple[int, int], with_image: bool = True) -> None:
        self.path = Path(path)
        self.header = header
        self.size = size
        self.with_image = with_image
        self.n = 0
        if tuple(header.mask.shape) not in {size[1:], size}:
            raise ValueError(f"mask of shape {tuple(header.mask.shape)} does not fit slices of size {size}")

    @property
    def temporary(self) -> Path:
        """The name under which the file grows; one per target, so that nothing piles up after a power cut."""
        return self.path.with_name(f".{self.path.name}.partial")

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = h5py.File(self.temporary, "w")
        try:
            _create(self._file, self.header, self.size, self.with_image)
        except BaseException:
            self._discard()
            raise
        return self

    def append(self, record: SliceRecord) -> None:
        """Adds one slice after the others."""
        row = self._row(record)
        for name, value in row.items():
            self._file[name].resize(self.n + 1, axis=0)
            self._file[name][self.n] = value
        self.n += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._discard()
            return
        if self.n == 0:
            self._discard()
            raise ValueError(f"no slice to write to {self.path.name}: an empty data set is an error")
        try:
            self._publish()
        except BaseException:
            self._discard()
            raise

    def _row(self, record: SliceRecord) -> dict[str, Any]:
        if record.split not in SPLITS:
            raise ValueError(f"split {record.split!r} of slice {record.id}: expected one of {', '.join(SPLITS)}")
        if (record.image is not None) != self.with_image:
            raise ValueError(
                f"slice {record.id}: image {'given' if record.image is not None else 'missing'}, file holds "
                f"{'images' if self.with_image else 'none'}"
            )
        row = {
            "measurement": self._pixels(record.measurement, "measurement", record.id),
            "id": record.id,
            "subject": record.subject,
            "split": record.split,
            "scale": (record.scale, record.offset),
            "spacing": record.spacing,
            "data_range": record.data_range,
            "slice": record.slice,
        }
        return row | ({"image": self._pixels(record.image, "image", record.id)} if record.image is not None else {})

    def _pixels(self, x: Tensor, name: str, key: str) -> np.ndarray:
        if tuple(x.shape) != (2, *self.size):
            raise ValueError(f"{name} of slice {key} has shape {tuple(x.shape)}, expected {(2, *self.size)}")
        if not x.is_floating_point():
            raise ValueError(f"{name} of slice {key} is {x.dtype}, expected real floating point (real, imaginary)")
        return x.detach().cpu().to(torch.float32).numpy()

    def _publish(self) -> None:
        self._file.flush()
        self._file.close()
        _sync(self.temporary)
        os.replace(self.temporary, self.path)  # noqa: PTH105  the atomic rename
        _sync(self.path.parent)

    def _discard(self) -> None:
        self._file.close()
        self.temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(file: h5py.File, header: SliceHeader, size: tuple[int, int], with_image: bool) -> None:
    text = h5py.string_dtype()
    columns: dict[str, tuple[tuple[int, ...], Any]] = {
        "measurement": ((2, *size), np.float32),
        "id": ((), text),
        "subject": ((), text),
        "split": ((), text),
        "scale": ((2,), np.float64),
        "spacing": ((2,), np.float32),
        "data_range": ((), np.float32),
        "slice": ((), np.int64),
    }
    if with_image:
        columns["image"] = ((2, *size), np.float32)
    for name, (shape, dtype) in columns.items():
        chunks = (1, *shape) if len(shape) > 1 else (256, *shape)  # one pixel slice per chunk
        file.create_dataset(name, (0, *shape), dtype, maxshape=(None, *shape), chunks=chunks)
    file["mask"] = header.mask.detach().cpu().to(torch.uint8).numpy()
    file.attrs["schema"] = SCHEMA
    file.attrs["configuration"] = json.dumps(dict(header.configuration), sort_keys=True)
    file.attrs["source_digests"] = json.dumps(dict(header.source_digests), sort_keys=True)
    for name in ("modality", "tool_version", "seed", "sigma", "acceleration", "center_fraction", "digest"):
        file.attrs[name] = getattr(header, name)
