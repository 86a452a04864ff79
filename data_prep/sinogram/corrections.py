"""From the values of a detector row to line integrals, and the rays that cannot be used."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.sinogram.options import SinogramOptions
from data_prep.sinogram.scan import Array, Raw, Scan


class Row(NamedTuple):
    """One detector row, corrected.

    Attributes:
        p: line integrals (V, D), without unit.
        usable: (V, D), False where a ray must not be used.
        notes: what was corrected, in words.
    """

    p: Array
    usable: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


def corrected_row(scan: Scan, index: int, options: SinogramOptions) -> Row:
    """Read a row and correct it.

    Raises:
        PrepError: it cannot be read.
    """
    raw: Raw = scan.read(index)
    usable = np.isfinite(raw.values)
    notes = [f"{(~usable).sum()} values are no numbers: masked"] if not usable.all() else []
    return Row(np.where(usable, raw.values, 0), usable, tuple(notes))
