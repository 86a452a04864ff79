"""Write reconstructed photographs and digits as PNG files whose text chunks state the meaning of the gray values."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from es_medical.data.atomic import whole_or_not
from es_medical.output.pictures import deviation, windowed

Floats = npt.NDArray[np.float32]
Window = tuple[float, float]

WHITE = 255
"""Highest value of a PNG of 8 bits."""


class PngWriter:
    """Write `<id>_reconstruction.png`, gray or RGB, and `<id>_spread.png`, gray, 8 bits each.

    Reconstructions are shown in the window [0, 1] of stored units: value = 255 * stored, values outside are clipped and
    counted. With raw = stored * scale + offset, as in slice files, an image whose raw values are 0..255 (scale 255) keeps its
    values. The spread (for RGB the root mean square over the channels) is shown in the window [0, `spread_max`].

    The text chunks of each file state its window, the scale and the number of clipped values: `PIL.Image.open(path).text`.

    Args:
        folder: folder of the files, created when the first is written.
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
        """Write reconstruction and spread (C, H, W) of one image, each file atomically.

        Args:
            name: name of the image, the first part of its file names.
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

    def write_intervals(self, name: str, halfwidth: Floats, flagged: npt.NDArray[np.uint8], scale: float = 1.0) -> None:
        """Write `<name>_halfwidth.png`, in the window of the spread, and `<name>_flagged.png`, white where it is wide.

        Args:
            name: see `write`.
            halfwidth: (1, H, W) in stored units.
            flagged: (1, H, W), 1 where the half-width is wide.
            scale: see `write`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._save(f"{name}_halfwidth.png", halfwidth, (0.0, self.spread_max), f"raw = stored * {scale:g}")
        self._save(f"{name}_flagged.png", flagged.astype(np.float32), (0.0, 1.0), "1: wide interval")

    def _save(self, name: str, values: npt.NDArray[np.floating], window: Window, raw: str) -> int:
        """Write one file; return how many values were clipped."""
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
        """Say how many values of the reconstructions were clipped, and reset the count."""
        text = f"{self.clipped} of {self.total} values of the PNG files lay outside [0, 1] and were clipped"
        self.clipped = self.total = 0
        return text


def check_names(ids: Sequence[str]) -> None:
    """Check that ids can name files, and are unique.

    Raises:
        ValueError: an id is no file name, or occurs twice; the message has the first of them.
    """
    for key in ids:
        if key in ("", "..") or key != Path(key).name or set(key) & {"\0", "\\"}:
            raise ValueError(f"id {key!r} of an image is no file name")
    twice = sorted({key for key in ids if ids.count(key) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise ValueError(f"{len(twice)} ids belong to more than one image (for example {twice[0]!r}): expected one each")
