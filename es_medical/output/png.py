"""Reconstructed photographs and digits as PNG files, each of which says what its gray values mean."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from es_medical.data.atomic import whole_or_not
from es_medical.metrics.image import real_valued
from es_medical.output.pictures import deviation, windowed

Floats = npt.NDArray[np.float32]
Window = tuple[float, float]

WHITE = 255
"""Highest value of a PNG of 8 bits."""


class PngWriter:
    """Writes `<id>_reconstruction.png`, gray or RGB, and `<id>_spread.png`, gray, 8 bits each.

    Reconstructions are shown in the window [0, 1] of stored units: value = 255 * stored, values outside are clipped and
    counted. With raw = stored * scale + offset, as slice files have it, an image whose raw values are 0..255 (scale 255) comes
    back as it was. The spread (of RGB the root mean square over the channels) is shown in the window [0, `spread_max`].

    Each file holds its window, the scale and the number of clipped values in its text chunks, as `PIL.Image.open(path).text`.

    Args:
        folder: for the files, made with the first of them.
        spread_max: stored value that is white in a spread.

    Raises:
        ValueError: `spread_max` is not positive.
    """

    def __init__(self, folder: Path, spread_max: float = 0.2) -> None:
        if not 0 < spread_max < float("inf"):
            raise ValueError(f"spread_max is the value shown as white, a positive number, got {spread_max}")
        self.folder, self.spread_max = folder, float(spread_max)
        self.clipped = self.total = 0  # values of the reconstructions that were written

    def write(self, name: str, images: tuple[Floats, Floats], scale: float = 1.0, offset: float = 0.0) -> None:
        """Write reconstruction and spread (C, H, W) of one image; each file is whole or not there.

        Args:
            name: of the image, the first part of the names of its files.
            images: reconstruction and spread, C = 1 or 3, in stored units.
            scale: with `offset`, raw = stored * scale + offset.
            offset: see `scale`.

        Raises:
            ValueError: not 1 or 3 channels, or a value that is not finite.
        """
        for kind, values in zip(("reconstruction", "spread"), images, strict=True):
            if values.ndim != 3 or values.shape[0] not in (1, 3):
                raise ValueError(f"{kind} of shape {values.shape}: expected (1 or 3, H, W), gray or RGB")
            if not np.isfinite(values).all():
                raise ValueError(f"{kind} holds {np.count_nonzero(~np.isfinite(values))} values that are not finite")
        self.folder.mkdir(parents=True, exist_ok=True)
        reconstruction, spread = images
        raw = f"raw = stored * {scale:g} + {offset:g}"
        clipped = self._save(f"{name}_reconstruction.png", reconstruction, (0.0, 1.0), raw)
        self._save(f"{name}_spread.png", deviation(spread), (0.0, self.spread_max), f"raw = stored * {scale:g}")
        self.clipped, self.total = self.clipped + clipped, self.total + reconstruction.size

    def _save(self, name: str, values: npt.NDArray[np.floating], window: Window, raw: str) -> int:
        """Write one file; returns how many values were clipped."""
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        low, high = window
        clipped = int(np.count_nonzero((values < low) | (values > high)))
        text = PngInfo()
        text.add_text("Software", "es_medical, research only")
        text.add_text("Window", f"0 = {low:g}, {WHITE} = {high:g} in stored units; {raw}")
        text.add_text("Clipped", f"{clipped} of {values.size} values")
        with whole_or_not(self.folder / name) as temporary:
            Image.fromarray(windowed(values, window)).save(temporary, pnginfo=text)
        return clipped

    def report(self) -> str:
        """Say how many values of the reconstructions were clipped, and count anew."""
        said = f"{self.clipped} of {self.total} values of the PNG files lay outside [0, 1] and were clipped"
        self.clipped = self.total = 0
        return said


def check_names(ids: Sequence[str]) -> None:
    """Refuse ids that cannot name files, or of which two would name the same ones.

    Raises:
        ValueError: such ids; the message has the first of them.
    """
    for one in ids:
        if one in ("", "..") or one != Path(one).name or set(one) & {"\0", "\\"}:
            raise ValueError(f"id {one!r} of an image is no file name")
    twice = sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise ValueError(f"{len(twice)} ids stand for more than one image ({twice[0]!r} for example): expected one each")


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
