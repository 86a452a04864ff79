"""Store magnitudes and Hounsfield units as 16-bit integers of classic DICOM: value = stored * slope + intercept."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FULL, HALF = 65535, 32767
DS_LENGTH = 16  # characters of a decimal string, DICOM PS3.5 6.2


class Window(NamedTuple):
    """A range of values to display, as text for the file.

    Attributes:
        center: WindowCenter, in rescaled units.
        width: WindowWidth, in rescaled units; above 0.
        name: WindowCenterWidthExplanation, or "".
    """

    center: str
    width: str
    name: str = ""


class Scaling(NamedTuple):
    """One rescale slope and intercept for a whole series, as text for its files, and display windows.

    Attributes:
        slope: RescaleSlope.
        intercept: RescaleIntercept.
        windows: display windows; a viewer starts with the first one.
        signed: whether stored integers have a sign.
    """

    slope: str
    intercept: str
    windows: tuple[Window, ...]
    signed: bool = False

    @property
    def stored_range(self) -> tuple[int, int]:
        """Smallest and largest stored integer."""
        return (-HALF - 1, HALF) if self.signed else (0, FULL)


HU_WINDOWS = (Window("0", "2000", "WHOLE RANGE"), Window("-600", "1500", "LUNG"), Window("40", "400", "SOFT TISSUE"))


def decimal_string(value: float) -> str:
    """The number with as many digits as fit into 16 characters.

    `pydicom.valuerep.format_number_as_ds` writes one digit less for magnitudes from 1e-9 to 1e-5, as of rescale slopes of MR.

    >>> decimal_string(-1 / 3), decimal_string(1.2345678901234e-10), decimal_string(2.0)
    ('-0.3333333333333', '1.2345678901E-10', '2')
    """
    exact = Decimal(float(value))
    if not exact.is_finite():
        raise ValueError(f"{value} has no decimal string: expected a finite number")
    texts = (str(Context(prec=digits).create_decimal(exact).normalize()) for digits in range(17, 0, -1))
    return "0" if not exact else next(text for text in texts if len(text) <= DS_LENGTH)


def magnitude_scaling(values: npt.NDArray[np.floating]) -> Scaling:
    """Slope that spreads the values of a series over 16 bits, and a window from the 1st to the 99th percentile.

    Args:
        values: all pixels of the series, finite.
    """
    low, high = min(0.0, float(values.min())), float(values.max())
    intercept = decimal_string(low)
    slope = decimal_string((high - float(intercept)) / FULL or 1.0)
    first, last = np.percentile(values, [1, 99])
    center, width = (first + last) / 2, max(last - first, float(slope))
    return Scaling(slope, intercept, (Window(decimal_string(center), decimal_string(width)),))


def hounsfield_scaling(values: npt.NDArray[np.floating]) -> Scaling:
    """Integer Hounsfield units as scanners store them: slope 1, or the smallest power of two that fits signed 16 bits.

    The windows are always the whole range (-1000..1000 HU), lung (-1350..150) and soft tissue (-160..240).

    Args:
        values: all pixels of the series, finite.
    """
    largest = float(np.abs(values).max())
    doublings = math.ceil(math.log2(largest / HALF)) if largest > HALF else 0
    return Scaling(decimal_string(2.0**doublings), "0", HU_WINDOWS, signed=True)


def to_stored(values: npt.NDArray[np.floating], used: Scaling) -> npt.NDArray[np.uint16] | npt.NDArray[np.int16]:
    """Integers whose rescaled values differ from `values` by at most half a slope, with slope and intercept as written."""
    stored = np.rint((values.astype(np.float64) - float(used.intercept)) / float(used.slope))
    lowest, highest = used.stored_range
    if stored.min() < lowest or stored.max() > highest:
        raise ValueError(f"values from {values.min()} to {values.max()} do not fit {used}")
    return stored.astype("<i2" if used.signed else "<u2")
