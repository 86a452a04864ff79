"""Write a slice file atomically: a reader sees the old file or the complete new one."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from es_medical.data.hdf5 import write_text, write_texts
from es_medical.data.schema import COLUMNS, PIXELS, SCHEMA, SPLITS, TEXT_CHECKSUM, SliceHeader, SliceRecord, text_checksum
from es_medical.data.whole_hdf5 import whole_hdf5

ATTRIBUTES = ("modality", "tool_version", "seed", "sigma", "acceleration", "center_fraction", "digest", "encoded_lines")
GROWTH = 64  # number of slices by which the pixel datasets grow


class Shapes(NamedTuple):
    """Shapes of a measurement and an image, allowed shapes of the mask, and shape of the matrix (empty: none)."""

    measurement: tuple[int, ...]
    image: tuple[int, ...]
    masks: tuple[tuple[int, ...], ...]
    matrix: tuple[int, ...] = ()

    @classmethod
    def kspace(cls, size: tuple[int, int], coils: int = 0) -> Self:
        """K-space of complex images of `size`, with a coil axis if there are coils."""
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


class SliceWriter:
    """Write a slice file under a temporary name, and rename it when it is complete.

    The temporary file is next to the target. A clean exit flushes, syncs and renames it, so a reader sees the old file or the
    complete new one; an exception deletes it and leaves an older file unchanged.

    Args:
        path: the file to publish.
        header: what holds for every slice.
        size: (H, W) of every slice.
        with_image: whether the file holds ground truth.
        coils: number of coils of every slice, each with its sensitivity map; 0 for measurements without a coil axis.
        shapes: shapes of measurements and images; None for k-space.

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
        self._pixel_shapes = {"measurement": self.shapes.measurement}
        self._pixel_shapes |= {"maps": self.shapes.measurement} if coils else {}
        self._pixel_shapes |= {"image": self.shapes.image} if with_image else {}
        self._rows: list[dict[str, Any]] = []
        if tuple(header.mask.shape) not in self.shapes.masks:
            found = " x ".join(map(str, header.mask.shape))
            raise ValueError(f"mask of {found} entries does not fit measurements of shape {self.shapes.measurement}")
        if math.isinf(header.sigma) or header.sigma < 0:
            raise ValueError(f"noise level sigma {header.sigma:g}: expected a finite number, at least 0")
        matrix = () if header.matrix is None else tuple(header.matrix.shape)
        if matrix != self.shapes.matrix:
            raise ValueError(f"matrix of shape {matrix}: these measurements need {self.shapes.matrix or 'none'}")

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            self._file, self._check = opened.enter_context(whole_hdf5(self.path, durable=True))
            _create(self._file, self._stored_shapes())
            _describe(self._file, self.header, self.shapes.image)
            self._opened = opened.pop_all()
        self._pixels = {name: self._file[name] for name in self._stored_shapes()}  # looking them up again is slower
        return self

    def append(self, record: SliceRecord) -> None:
        """Append one slice."""
        values = self._values(record)
        for name, pixels in self._checked_pixels(record).items():
            data = self._pixels[name]
            if self.n % GROWTH == 0:
                data.resize(self.n + GROWTH, axis=0)
            data.id.write_direct_chunk((self.n, *[0] * pixels.ndim), pixels)  # one slice is one chunk
            values["checksum"][PIXELS.index(name)] = zlib.crc32(pixels.data)
        self._check()  # a full disk ends the preparation now, not after hours
        self._rows.append(values)

    @property
    def n(self) -> int:
        """Number of slices so far."""
        return len(self._rows)

    def rollback(self, n: int) -> None:
        """Keep the first n slices and discard the others, such as those of a volume that turned out to be broken."""
        del self._rows[n:]

    def set_data_range(self, start: int, values: Sequence[float]) -> None:
        """Set `data_range` from row `start` on: the maximum of a volume is known only after its last slice."""
        for row, value in zip(self._rows[start:], values, strict=True):
            row["data_range"] = value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._opened.__exit__(kind, error, tb)
            return
        with self._opened:
            self._finish()

    def _stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the pixels that are in the file itself."""
        return self._pixel_shapes

    def _checked_pixels(self, record: SliceRecord) -> dict[str, np.ndarray]:
        if (record.image is not None) != self.with_image:
            raise ValueError(
                f"slice {record.id}: image {'given' if record.image is not None else 'missing'}, file holds "
                f"{'images' if self.with_image else 'none'}"
            )
        if (record.maps is not None) != bool(self.coils):
            raise ValueError(f"slice {record.id}: maps {'missing' if self.coils else 'given'}, file is of {self.coils} coils")
        shapes = self._pixel_shapes.items()
        return {name: _pixels(getattr(record, name), name, record.id, shape) for name, shape in shapes}

    def _values(self, record: SliceRecord) -> dict[str, Any]:
        if record.split not in SPLITS:
            raise ValueError(f"split {record.split!r} of slice {record.id}: expected one of {', '.join(SPLITS)}")
        values = {name: getattr(record, name) for name in COLUMNS if name not in ("scale", "checksum")}
        sigma = self.header.sigma if math.isnan(record.sigma) else record.sigma
        return values | {"scale": (record.scale, record.offset), "sigma": sigma, "checksum": [0] * len(PIXELS)}

    def _finish(self) -> None:
        """Trim the datasets to the slices that were written, and write the other columns."""
        if self.n == 0:
            raise ValueError(f"no slice to write to {self.path.name}: an empty data set is an error")
        for name, data in self._file.items():
            if name not in ("mask", "matrix") and not data.is_virtual:
                data.resize(self.n, axis=0)
        for name in COLUMNS:
            values = [row[name] for row in self._rows]
            if name in self._file:
                self._file[name][...] = values
            else:
                write_texts(self._file, name, values)


def _pixels(x: Tensor, name: str, key: str, shape: tuple[int, ...]) -> np.ndarray:
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} of slice {key} has shape {tuple(x.shape)}, expected {shape}")
    if not x.is_floating_point():
        raise ValueError(f"{name} of slice {key} is {x.dtype}, expected real floating point (real, imaginary)")
    return x.detach().cpu().to(torch.float32).contiguous().numpy()


def _create(file: h5py.File, pixels: Mapping[str, tuple[int, ...]]) -> None:
    """Make empty, resizable datasets for all but text: one chunk per slice for pixels, 256 rows per chunk for the others.

    HDF5 checks the other numbers whenever they are read; the pixels have checksums in a column, which are checked once, since
    a training reads them again and again.
    """
    columns = {name: (shape, np.float32) for name, shape in sorted(pixels.items())}
    first = {name: columns[name] for name in columns if name == "measurement"}
    for name, (shape, dtype) in (first | COLUMNS | columns).items():
        chunks = (1 if name in pixels else 256, *shape)
        if not h5py.check_string_dtype(np.dtype(dtype)):
            maxshape, checked = (None, *shape), name not in pixels
            file.create_dataset(name, (0, *shape), dtype, maxshape=maxshape, chunks=chunks, fletcher32=checked)


def _describe(file: h5py.File, header: SliceHeader, image: tuple[int, ...]) -> None:
    """Write what holds for every slice."""
    file.create_dataset("mask", data=header.mask.detach().cpu().to(torch.uint8).numpy(), fletcher32=True)
    file.attrs["schema"] = SCHEMA
    if header.matrix is not None:
        file.create_dataset("matrix", data=header.matrix.detach().cpu().to(torch.float32).numpy(), fletcher32=True)
    file.attrs["size"], file.attrs["channels"] = image[1:], image[0]
    for name in ("operator", "configuration", "source_digests"):
        write_text(file.attrs, name, json.dumps(dict(getattr(header, name)), sort_keys=True))
    for name in ATTRIBUTES:
        value = getattr(header, name)
        if isinstance(value, str):
            write_text(file.attrs, name, value)
        else:
            file.attrs[name] = value
    file.attrs[TEXT_CHECKSUM] = text_checksum(file.attrs)
