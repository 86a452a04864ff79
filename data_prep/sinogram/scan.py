"""What every reader of sinograms gives: the scanner, and the values of one detector row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.sinogram.beam import Beam

Values = Literal["counts", "attenuation"]
Array = NDArray[np.float64]


class Raw(NamedTuple):
    """One detector row as it is in the file.

    Attributes:
        values: (V, D) counts, or line integrals of the attenuation.
        white: (n, D) counts without an object, one frame or more; empty for line integrals.
        dark: (n, D) values without radiation; empty if there are none.
    """

    values: Array
    white: Array
    dark: Array


@dataclass(frozen=True)
class Scan:
    """A file of sinograms.

    Attributes:
        beam: its scanner.
        rows: number of detector rows; each is a slice.
        values: what the numbers are.
        read: reads one row; raises PrepError when it cannot be read.
        row_height: height of a row on the detector in mm; NaN if unknown.
        notes: what a user should know.
    """

    beam: Beam
    rows: int
    values: Values
    read: Callable[[int], Raw]
    row_height: float = float("nan")
    notes: tuple[str, ...] = ()
