"""Writing a slice file whole: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from es_medical.data.schema import SCHEMA, SPLITS, SliceHeader, SliceRecord

ATTRIBUTES = ("modality", "tool_version", "seed", "sigma", "acceleration", "center_fraction", "digest", "encoded_lines")


PIXELS = ("measurement", "maps", "image")  # datasets of one chunk for each slice
GROWTH = 64  # slices by which they grow


class Shapes(NamedTuple):
    """Shapes of one measurement and of one image, those that a mask may have, and that of a matrix (empty: none)."""

    measurement: tuple[int, ...]
    image: tuple[int, ...]
    masks: tuple[tuple[int, ...], ...]
    matrix: tuple[int, ...] = ()

    @classmethod
    def kspace(cls, size: tuple[int, int], coils: int = 0) -> Self:
        """K-space of complex images of `size`, with an axis for coils where there are any."""
        return cls((2, coils, *size) if coils else (2, *size), (2, *size), (size[1:], size))

    @classmethod
    def sinogram(cls, size: tuple[int, int], shape: tuple[int, int]) -> Self:
        """Sinograms of `shape` (views, detectors)."""
        return cls((1, *shape), (1, *size), (shape[:1], shape))

    @classmethod
    def pixels(cls, size: tuple[int, int], channels: int) -> Self:
        """Images with missing values."""
        return cls((channels, *size), (channels, *size), (size[1:], size, (channels, *size)))

    @classmethod
    def rows(cls, size: tuple[int, int], m: int) -> Self:
        """Products of images with a matrix of m rows."""
        return cls((m,), (1, *size), ((m,),), (m, size[0] * size[1]))


class Row(NamedTuple):
    """One slice as it is written: arrays by name of dataset, and single numbers and names."""

    pixels: dict[str, np.ndarray]
    values: dict[str, Any]


class SliceWriter:
    """Writes a slice file under a temporary name and publishes it whole.

    The temporary file stands beside the target. A clean exit flushes, syncs and renames it, so a reader sees the old
    file or the new one and never half of one; an exception deletes it and leaves an older file as it was.

    Args:
        path: the file to publish.
        header: what holds for every slice.
        size: (H, W) of every slice.
        with_image: whether the file holds ground truth.
        coils: number of coils of every slice, each with its sensitivity map; 0 for measurements without a coil axis.
        shapes: of what is measured; None for k-space.

    Raises:
        ValueError: the mask or matrix does not fit, sigma is negative or infinite, a record does not fit the file, or no slice
            was written.
    """

    def __init__(
        self,
        path: str | Path,
        header: SliceHeader,
        size: tuple[int, int],
        with_image: bool = True,
        coils: int = 0,
        shapes: Shapes | None = None,
    ) -> None:
        self.path = Path(path)
        self.header = header
        self.size = size
        self.with_image = with_image
        self.coils = coils
        self.shapes = Shapes.kspace(size, coils) if shapes is None else shapes
        self._rows: list[dict[str, Any]] = []
        if tuple(header.mask.shape) not in self.shapes.masks:
            found = " x ".join(map(str, header.mask.shape))
            raise ValueError(f"mask of {found} entries does not fit measurements of shape {self.shapes.measurement}")
        if math.isinf(header.sigma) or header.sigma < 0:
            raise ValueError(f"noise level sigma {header.sigma:g}: expected a finite number, at least 0")
        matrix = () if header.matrix is None else tuple(header.matrix.shape)
        if matrix != self.shapes.matrix:
            raise ValueError(f"matrix of shape {matrix}: these measurements need {self.shapes.matrix or 'none'}")

    @property
    def temporary(self) -> Path:
        """The name under which the file grows; one per target, so that nothing piles up after a power cut."""
        return self.path.with_name(f".{self.path.name}.partial")

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = h5py.File(self.temporary, "w")
        try:
            _create(self._file, self.header, self.shapes.image, _columns(self.shapes, self.with_image, self.coils))
        except BaseException:
            self._discard()
            raise
        self._pixels = {name: self._file[name] for name in PIXELS if name in self._file}  # finding them anew takes longer
        return self

    def append(self, record: SliceRecord) -> None:
        """Adds one slice after the others."""
        row = self._row(record)
        for name, pixels in row.pixels.items():
            data = self._pixels[name]
            if self.n % GROWTH == 0:
                data.resize(self.n + GROWTH, axis=0)
            data.id.write_direct_chunk((self.n, *[0] * pixels.ndim), np.ascontiguousarray(pixels))  # one slice is one chunk
        self._rows.append(row.values)

    @property
    def n(self) -> int:
        """Number of slices so far."""
        return len(self._rows)

    def rollback(self, n: int) -> None:
        """Keeps the first n slices and takes the others back, as those of a volume that turned out to be broken."""
        del self._rows[n:]

    def set_data_range(self, start: int, values: Sequence[float]) -> None:
        """Fills in `data_range` from row `start` on: the maximum of a volume is known after its last slice."""
        for row, value in zip(self._rows[start:], values, strict=True):
            row["data_range"] = value

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

    def _row(self, record: SliceRecord) -> Row:
        if record.split not in SPLITS:
            raise ValueError(f"split {record.split!r} of slice {record.id}: expected one of {', '.join(SPLITS)}")
        if (record.image is not None) != self.with_image:
            raise ValueError(
                f"slice {record.id}: image {'given' if record.image is not None else 'missing'}, file holds "
                f"{'images' if self.with_image else 'none'}"
            )
        if (record.maps is not None) != bool(self.coils):
            raise ValueError(f"slice {record.id}: maps {'missing' if self.coils else 'given'}, file is of {self.coils} coils")
        pixels = {"measurement": _pixels(record.measurement, "measurement", record.id, self.shapes.measurement)}
        if record.maps is not None:
            pixels["maps"] = _pixels(record.maps, "maps", record.id, self.shapes.measurement)
        if record.image is not None:
            pixels["image"] = _pixels(record.image, "image", record.id, self.shapes.image)
        values = {
            "id": record.id,
            "subject": record.subject,
            "volume": record.volume,
            "split": record.split,
            "scale": (record.scale, record.offset),
            "spacing": record.spacing,
            "data_range": record.data_range,
            "slice": record.slice,
            "sigma": self.header.sigma if math.isnan(record.sigma) else record.sigma,
            "peak": record.peak,
            "position": record.position,
            "orientation": record.orientation,
            "slice_spacing": record.slice_spacing,
        }
        return Row(pixels, values)

    def _publish(self) -> None:
        for name, data in self._file.items():
            if name not in ("mask", "matrix"):
                data.resize(self.n, axis=0)
        for name in self._rows[0]:
            self._file[name][...] = [row[name] for row in self._rows]
        self._file.flush()
        self._file.close()
        _sync(self.temporary)
        os.replace(self.temporary, self.path)  # noqa: PTH105  the atomic rename
        _sync(self.path.parent)

    def _discard(self) -> None:
        try:
            self._file.close()
        except (OSError, RuntimeError):  # a full disk: HDF5 cannot even flush; the first error is the one to tell
            pass
        finally:
            self.temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pixels(x: Tensor, name: str, key: str, shape: tuple[int, ...]) -> np.ndarray:
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} of slice {key} has shape {tuple(x.shape)}, expected {shape}")
    if not x.is_floating_point():
        raise ValueError(f"{name} of slice {key} is {x.dtype}, expected real floating point (real, imaginary)")
    return x.detach().cpu().to(torch.float32).numpy()


def _columns(shapes: Shapes, with_image: bool, coils: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape of a row and type of each dataset."""
    text = h5py.string_dtype()
    columns: dict[str, tuple[tuple[int, ...], Any]] = {
        "measurement": (shapes.measurement, np.float32),
        "id": ((), text),
        "subject": ((), text),
        "volume": ((), text),
        "split": ((), text),
        "scale": ((2,), np.float64),
        "spacing": ((2,), np.float32),
        "data_range": ((), np.float32),
        "slice": ((), np.int64),
        "sigma": ((), np.float64),
        "peak": ((), np.float32),
        "position": ((3,), np.float64),
        "orientation": ((6,), np.float64),
        "slice_spacing": ((), np.float64),
    }
    return (
        columns
        | ({"image": (shapes.image, np.float32)} if with_image else {})
        | ({"maps": (shapes.measurement, np.float32)} if coils else {})
    )


def _create(
    file: h5py.File, header: SliceHeader, image: tuple[int, ...], columns: dict[str, tuple[tuple[int, ...], Any]]
) -> None:
    for name, (shape, dtype) in columns.items():
        chunks = (1, *shape) if name in PIXELS else (256, *shape)  # one pixel slice per chunk
        file.create_dataset(name, (0, *shape), dtype, maxshape=(None, *shape), chunks=chunks)
    file["mask"] = header.mask.detach().cpu().to(torch.uint8).numpy()
    file.attrs["schema"] = SCHEMA
    if header.matrix is not None:
        file["matrix"] = header.matrix.detach().cpu().to(torch.float32).numpy()
    file.attrs["size"] = image[1:]
    file.attrs["channels"] = image[0]
    file.attrs["operator"] = json.dumps(dict(header.operator), sort_keys=True)
    file.attrs["configuration"] = json.dumps(dict(header.configuration), sort_keys=True)
    file.attrs["source_digests"] = json.dumps(dict(header.source_digests), sort_keys=True)
    for name in ATTRIBUTES:
        file.attrs[name] = getattr(header, name)
