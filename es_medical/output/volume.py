"""The slices of one volume, ready to be written: magnitudes or Hounsfield units, and their grid."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from es_medical.data.geometry import Geometry
from es_medical.data.stack import Grid, regular_grid
from es_medical.metrics.image import real_valued

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Columns = dict[str, Any]
"""Arrays of all slices by name, slices along the first axis; images are `StoredImages`."""
Flagged = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]


@dataclass(frozen=True, eq=False)
class Volume:
    """One volume as it is written.

    Attributes:
        name: first part of its file names.
        subject: salted hash of the subject.
        images: `reconstruction` and `spread`, each (slices, H, W), in raw units.
        indices: number of each slice in the volume, in the order of the images.
        geometries: plane of each slice: recorded for all slices, or `Geometry.nominal` for all slices.
        remarks: what a reader of each slice should know, such as values that were cut; none, or "", where there is nothing.
    """

    name: str
    subject: str
    images: Mapping[str, Floats]
    indices: npt.NDArray[np.int64]
    geometries: tuple[Geometry, ...]
    remarks: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.images["reconstruction"].shape[1:]
        return rows, columns

    @property
    def nominal(self) -> bool:
        """Whether the orientation is assumed."""
        return any(plane.assumed for plane in self.geometries)

    def grid(self) -> Grid:
        """The regular grid of the slices, in the order of their numbers.

        Raises:
            ValueError: the slices are not parallel, share a place, or lie on no regular grid.
        """
        return regular_grid(self.geometries, self.indices)


def volume_names(subjects: list[str], slices: list[int]) -> list[str]:
    """Name the volume of each slice: its subject, with a number from the second volume of a subject on.

    A new volume of a subject begins where an index repeats.

    >>> volume_names(["a", "a", "b", "a", "a"], [3, 4, 3, 3, 4])
    ['a', 'a', 'b', 'a_2', 'a_2']
    """
    counts: dict[str, int] = {}
    seen: dict[str, set[int]] = {}
    names = []
    for subject, index in zip(subjects, slices, strict=True):
        if subject not in seen or index in seen[subject]:
            counts[subject], seen[subject] = counts.get(subject, 0) + 1, set()
        seen[subject].add(index)
        names.append(subject if counts[subject] == 1 else f"{subject}_{counts[subject]}")
    return names


def check_flag(flag: float) -> float:
    """Return the fraction of the range above which a half-width is wide; raises ValueError if it is not positive."""
    if not 0 < float(flag) < float("inf"):
        raise ValueError(f"flag is a fraction of the image's range, a positive number, got {flag}")
    return float(flag)


def flagged(columns: Columns, parts: Mapping[str, npt.NDArray[np.int64]], flag: float) -> Iterator[Flagged]:
    """Find the pixels whose half-width is above `flag` times the range of their volume, and log how many there are.

    The range is the largest minus the smallest displayed value (magnitudes for MR), in raw units, over all slices of the
    volume; for photographs over the image.

    Args:
        columns: with `halfwidth` (N, 1, H, W) and `reconstruction` (N, C, H, W) in stored units, `scale` (N, 2), `slice` (N,).
        parts: name of each volume or image -> its rows.
        flag: fraction of the range.

    Yields:
        The rows of a part and its flagged pixels, uint8 (rows, 1, H, W).
    """
    for name, rows in parts.items():
        scale, offset = (column[:, None, None, None] for column in columns["scale"][rows].T)
        raw = real_valued(torch.from_numpy(columns["reconstruction"][rows])).numpy() * scale + offset
        wide = (columns["halfwidth"][rows] * scale > flag * np.ptp(raw)).astype(np.uint8)
        _report(name, wide, columns["slice"][rows], flag)
        yield rows, wide


def interval_volume(columns: Columns, rows: npt.NDArray[np.int64], scale: npt.NDArray[np.float64]) -> dict[str, Floats]:
    """Images (slices, H, W) of a volume: half-width in raw units, and 1 where it is wide; empty without half-widths."""
    if "halfwidth" not in columns:
        return {}
    halfwidth = columns["halfwidth"][rows][:, 0] * scale
    return {"halfwidth": halfwidth.astype(np.float32), "flagged": columns["flagged"][rows][:, 0].astype(np.float32)}


def _report(name: str, wide: npt.NDArray[np.uint8], slices: npt.NDArray[np.int64], flag: float) -> None:
    counts = wide.sum((1, 2, 3), dtype=np.int64)
    most = f", most in slice {slices[counts.argmax()]}: {counts.max()}" if len(counts) > 1 and counts.any() else ""
    share = 100 * counts.sum() / wide.size
    text = "%s: %d of %d pixels flagged (%.1f %%), half-width above %g of the range%s"
    logger.info(text, name, counts.sum(), wide.size, share, flag, most)
