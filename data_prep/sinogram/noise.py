"""The noise level of line integrals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_prep.sinogram.corrections import MAD


def noise_of_views(p: NDArray[np.floating], usable: NDArray[np.bool_]) -> float:
    """Standard deviation of the noise of line integrals (V, D), from second differences of neighbouring views.

    What the object changes from view to view counts as noise too, so it is an upper limit when views are few.
    """
    d = p[2:] - 2 * p[1:-1] + p[:-2]
    good = usable[2:] & usable[1:-1] & usable[:-2]
    return float(MAD * np.median(np.abs(d[good])) / np.sqrt(6)) if good.any() else float("nan")


def noise_of_counts(variance: NDArray[np.floating], usable: NDArray[np.bool_], merge: int) -> float:
    """Standard deviation from the variance of merged line integrals (V, D): a mean of `merge` rays has its `merge`-th part."""
    return float(np.sqrt(variance[usable].mean() / merge)) if usable.any() else float("nan")
