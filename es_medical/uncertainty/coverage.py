"""Empirical coverage of intervals: how often they hold the truth, against their nominal level."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from es_medical.uncertainty.distances import Distances

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Nominal levels at which coverage is evaluated."""


class Coverage(NamedTuple):
    """Empirical coverage of intervals of one nominal level."""

    level: float
    """Nominal."""
    covered: int
    """Items whose error lies in the interval."""
    n: int
    """Items."""
    low: float
    """Lower end of the 95 % confidence interval of the true coverage (Clopper-Pearson)."""
    high: float
    """Upper end."""

    @property
    def share(self) -> float:
        """Empirical coverage, covered / n."""
        return self.covered / self.n


def coverage(distances: Distances, level: float, factor: float = 1.0) -> Coverage:
    """Count the items whose error is at most `factor` times the `level` quantile of their resampled distances.

    The interval of an item is [0, factor q]: the image lies in the ball of that radius about the reconstruction.

    Args:
        distances: errors and resampled distances of independent items; if they are not independent, such as slices of one
            volume, the confidence interval is too narrow.
        level: nominal coverage, between 0 and 1.
        factor: factor on the quantiles.

    Raises:
        ValueError: a level out of range, or no item.
    """
    from scipy.stats import binomtest

    check_level(level)
    n = len(distances.error)
    if n == 0:
        raise ValueError("coverage of no item")
    covered = int((distances.error <= factor * distances.quantile(level)).sum())
    confidence = binomtest(covered, n).proportion_ci(0.95, method="exact")
    return Coverage(level, covered, n, float(confidence.low), float(confidence.high))


def curve(
    distances: Distances, factor: Callable[[float], float] = lambda _: 1.0, levels: Sequence[float] = LEVELS
) -> list[Coverage]:
    """Return the coverage at each level, with the factor of that level."""
    return [coverage(distances, level, factor(level)) for level in levels]


def check_level(level: float) -> None:
    """Raise ValueError for a level that does not lie strictly between 0 and 1.

    >>> check_level(0.9)
    """
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies strictly between 0 and 1, got {level}")
