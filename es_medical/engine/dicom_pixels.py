"""Real magnitudes as the 16-bit integers of classic DICOM: value = stored * slope + intercept."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FULL = 65535
DS_LENGTH = 16  # characters of a decimal string, DICOM PS3.5 6.2


class Scaling(NamedTuple):
    """One slope and intercept for a whole series, as the text that stands in its files, and a window on its values.

    Attributes:
        slope: RescaleSlope.
        intercept: RescaleIntercept.
        center: WindowCenter, in rescaled units.
        width: WindowWidth, in rescaled units; above 0.
    """

    slope: str
    intercept: str
    center: str
    width: str


def decimal_string(value: float) -> str:
    """The number with as many digits as 16 characters hold.

    >>> decimal_string(-1 / 3), decimal_string(1.2345678901234e-10), decimal_string(2.0)
    ('-0.3333333333333', '1.2345678901E-10', '2')
    """
    exact = Decimal(float(value))
    if not exact.is_finite():
        raise ValueError(f"{value} has no decimal string: expected a finite number")
    texts = (str(Context(prec=digits).create_decimal(exact).normalize()) for digits in range(17, 0, -1))
    return "0" if not exact else next(text for text in texts if len(text) <= DS_LENGTH)


def scaling(values: npt.NDArray[np.floating]) -> Scaling:
    """The slope that spreads a series over 16 bits, and a window from its 1st to its 99th percentile.

    Args:
        values: all pixels of the series, finite.
    """
    low, high = min(0.0, float(values.min())), float(values.max())
    intercept = decimal_string(low)
    slope = decimal_string((high - float(intercept)) / FULL or 1.0)
    first, last = np.percentile(values, [1, 99])
    center, width = (first + last) / 2, max(last - first, float(slope))
    return Scaling(slope, intercept, decimal_string(center), decimal_string(width))


def to_stored(values: npt.NDArray[np.floating], used: Scaling) -> npt.NDArray[np.uint16]:
    """Integers whose rescaled values differ from `values` by half a slope at most, with slope and intercept as written."""
    stored = np.rint((values.astype(np.float64) - float(used.intercept)) / float(used.slope))
    if stored.min() < 0 or stored.max() > FULL:
        raise ValueError(f"values from {values.min()} to {values.max()} do not fit {used}")
    return stored.astype("<u2")
