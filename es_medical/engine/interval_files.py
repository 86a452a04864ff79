"""Half-widths of intervals and the pixels where they are wide, as files beside the reconstructions."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from es_medical.engine.images import PngWriter
from es_medical.metrics.image import real_valued

logger = logging.getLogger(__name__)

Columns = dict[str, Any]
"""Arrays of all slices by name, slices along the first axis."""


def check_flag(flag: float) -> float:
    """Return the fraction of the range above which a half-width is wide; raises ValueError when it is not positive."""
    if not 0 < float(flag) < float("inf"):
        raise ValueError(f"flag is a fraction of the image's range, a positive number, got {flag}")
    return float(flag)


def flagged(columns: Columns, parts: Mapping[str, npt.NDArray[np.int64]], flag: float) -> Columns:
    """Find the pixels whose half-width is above `flag` times the range of their volume, and say how many there are.

    The range is that of the shown values (magnitudes of MR), largest less smallest, in raw units and over all slices of the
    volume; of photographs over the image.

    Args:
        columns: with `halfwidth` (N, 1, H, W) and `reconstruction` (N, C, H, W) in stored units, `scale` (N, 2), `slice` (N,).
        parts: name of each volume or image -> its rows.
        flag: fraction of the range.

    Returns:
        `flagged`, uint8 (N, 1, H, W), and `n_flagged` (N,); empty where there are no half-widths.
    """
    if "halfwidth" not in columns:
        return {}
    found = np.zeros(columns["halfwidth"].shape, np.uint8)
    for name, rows in parts.items():
        scale, offset = (column[:, None, None, None] for column in columns["scale"][rows].T)
        raw = real_valued(torch.from_numpy(columns["reconstruction"][rows])).numpy() * scale + offset
        found[rows] = columns["halfwidth"][rows] * scale > flag * np.ptp(raw)
        _report(name, found[rows], columns["slice"][rows], flag)
    return {"flagged": found, "n_flagged": found.sum((1, 2, 3), dtype=np.int64)}


def interval_volume(
    columns: Columns, rows: npt.NDArray[np.int64], scale: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float32]]:
    """Images (slices, H, W) of a volume: half-width in raw units, and 1 where it is wide; nothing where there are none."""
    if "halfwidth" not in columns:
        return {}
    halfwidth = columns["halfwidth"][rows][:, 0] * scale
    return {"halfwidth": halfwidth.astype(np.float32), "flagged": columns["flagged"][rows][:, 0].astype(np.float32)}


class IntervalPngWriter(PngWriter):
    """Writes `<id>_halfwidth.png`, shown in the window of a spread, and `<id>_flagged.png`, white where it is wide."""

    def write_intervals(self, name: str, columns: Columns, row: int) -> None:
        """Write both for one image; see `PngWriter.write`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        raw = f"raw = stored * {columns['scale'][row][0]:g}"
        self._save(f"{name}_halfwidth.png", columns["halfwidth"][row], (0.0, self.spread_max), raw)
        self._save(f"{name}_flagged.png", columns["flagged"][row].astype(np.float32), (0.0, 1.0), "1: wide interval")


def interval_pngs(folder: Path, spread_max: float, columns: Columns, name: str, row: int) -> None:
    """Write the half-width and the flagged pixels of one image as PNG, where there are intervals."""
    if "halfwidth" in columns:
        IntervalPngWriter(folder, spread_max).write_intervals(name, columns, row)


def _report(name: str, wide: npt.NDArray[np.uint8], slices: npt.NDArray[np.int64], flag: float) -> None:
    counts = wide.sum((1, 2, 3), dtype=np.int64)
    most = f", most in slice {slices[counts.argmax()]}: {counts.max()}" if len(counts) > 1 and counts.any() else ""
    share = 100 * counts.sum() / wide.size
    text = "%s: %d of %d pixels flagged (%.1f %%), half-width above %g of the range%s"
    logger.info(text, name, counts.sum(), wide.size, share, flag, most)
