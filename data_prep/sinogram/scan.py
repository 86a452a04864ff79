"""What every reader of sinograms gives: the scanner, and the values of one detector row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.sinogram.beam import Beam

Values = Literal["counts", "transmission", "attenuation"]
Array = NDArray[np.floating]
NO_FRAMES: Array = np.empty((0, 0))


class Raw(NamedTuple):
    """One detector row as it is in the file.

    Attributes:
        values: (V, D), see `Scan.values`.
        white: (n, D) counts without an object, one frame or more; empty if there are none.
        dark: (n, D) values without radiation; empty if there are none.
    """

    values: Array
    white: Array = NO_FRAMES
    dark: Array = NO_FRAMES


@dataclass(frozen=True)
class Scan:
    """A file of sinograms, or several that are one scan.

    Attributes:
        beam: its scanner.
        rows: number of detector rows; each is a slice.
        values: counts, a share of the counts without an object (transmission), or line integrals of the attenuation.
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
