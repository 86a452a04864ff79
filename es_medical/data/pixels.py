"""The pixels that a network was trained on, and in what those of another scan differ: one rule for all modalities."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from es_medical.data.geometry import Size
from es_medical.data.schema import open_slices

Spacing = tuple[float, float]

ALIKE = 0.02  # largest relative difference of spacings that counts as none


class Pixels(NamedTuple):
    """Size of the slices of a file, such as that of a training, and the smallest and largest spacing of rows and columns.

    Attributes:
        size: rows and columns.
        low: smallest spacing of rows, and of columns, in mm; NaN if unknown for any slice.
        high: largest ones.
    """

    size: Size
    low: Spacing
    high: Spacing

    @classmethod
    def of(cls, data_file: str | Path) -> Pixels:
        """Read the pixels of a slice file."""
        with open_slices(data_file) as file:
            spacing = file["spacing"][:].astype(float) if "spacing" in file else np.full((1, 2), np.nan)
            rows, columns = file.attrs.get("size", file["measurement"].shape[-2:])
        (a, b), (c, d) = spacing.min(0).round(5).tolist(), spacing.max(0).round(5).tolist()  # NaN if any is
        return cls((int(rows), int(columns)), (a, b), (c, d))

    @classmethod
    def kept(cls, preparation: Mapping[str, Any]) -> Pixels | None:
        """The pixels kept with weights (see `es_medical.engine.training_data.preparation`).

        None for older weights, and where any spacing is unknown.
        """
        if "spacing" not in preparation or not np.isfinite(preparation["spacing"]).all():
            return None
        (rows, columns), ((a, b), (c, d)) = preparation["size"], preparation["spacing"]
        return cls((rows, columns), (a, b), (c, d))

    def nearest(self, spacing: Spacing) -> Spacing:
        """The spacing of the training nearest to a scan's: the scan's own where it differs by 2 % at most, or is unknown.

        >>> Pixels((320, 320), (0.7, 0.7), (0.8, 0.8)).nearest((0.5, 0.75))
        (0.7, 0.75)
        """
        if not np.isfinite([*self.low, *self.high, *spacing]).all():
            return spacing
        limits = zip(spacing, self.low, self.high, strict=True)
        near = [
            own if low / (1 + ALIKE) <= own <= high * (1 + ALIKE) else min(max(own, low), high) for own, low, high in limits
        ]
        return near[0], near[1]

    def resampled(self, size: Size, spacing: Spacing) -> Size:
        """Rows and columns that cover a scan's field of view with the training's pixels.

        >>> Pixels((320, 320), (0.75, 0.75), (0.75, 0.75)).resampled((384, 384), (0.625, 0.625))
        (320, 320)
        """
        found = [
            n if new == old else max(round(n * old / new), 1)
            for n, old, new in zip(size, spacing, self.nearest(spacing), strict=True)
        ]
        return found[0], found[1]

    def other(self, given: Pixels) -> str:
        """Say in what the pixels of other slices differ from those of the training; "" if in nothing, or unknown."""
        extremes = given.low, given.high
        if all(self.nearest(spacing) == spacing for spacing in extremes):
            return ""
        own, theirs = _range(self.low, self.high), _range(*extremes)
        return (
            f"were trained on pixels of {own}, the data has {theirs}: structures appear at another scale, expect a worse result"
        )


def cut(size: Size, kept: Size, spacing: Spacing = (float("nan"),) * 2) -> str:
    """Say what a crop about the centre leaves out of an image; "" if nothing.

    >>> cut((384, 320), (320, 320), (0.5, 0.5))
    'cut from 384 x 320 to 320 x 320 pixels: 64 rows (32 mm) of the image are lost'
    """
    names, lost = ("rows", "columns"), list[str]()
    for name, old, new, step in zip(names, size, kept, spacing, strict=True):
        if old > new:
            lost.append(f"{old - new} {name}" + ("" if np.isnan(step) else f" ({(old - new) * step:.3g} mm)"))
    return (
        f"cut from {size[0]} x {size[1]} to {kept[0]} x {kept[1]} pixels: {' and '.join(lost)} of the image are lost"
        if lost
        else ""
    )


def _range(low: Spacing, high: Spacing) -> str:
    """Spacings in words: `0.7 x 0.7 mm`, or `0.7 x 0.7 to 0.8 x 0.8 mm`."""
    first, last = (f"{rows:.3g} x {columns:.3g}" for rows, columns in (low, high))
    return f"{first} mm" if first == last else f"{first} to {last} mm"
