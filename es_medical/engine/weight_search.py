"""The weight of a penalty: which ones are tried, and which is the best."""

import math
from collections.abc import Callable, Mapping

DECADES = tuple(10.0**k for k in range(-5, 1))
"""Weights of a penalty that `search_weight` tries first: 10^-5, ..., 1, in stored units."""


def search_weight(score: Callable[[float], float]) -> dict[float, float]:
    """Score the weights of `DECADES`, then those half a decade from the best of them.

    Args:
        score: of a weight, larger is better; one that is not finite is the worst.

    Returns:
        Every weight that was tried, in that order, and its score.

    >>> [f"{weight:.3g}" for weight in search_weight(lambda weight: -abs(math.log10(weight) + 1.4))][-2:]
    ['0.316', '0.0316']
    """
    scores = {weight: score(weight) for weight in DECADES}
    centre = best_weight(scores)
    return scores | {weight: score(weight) for weight in (centre * 10**0.5, centre / 10**0.5)}


def best_weight(scores: Mapping[float, float]) -> float:
    """Return the weight with the greatest finite score; the first one where none is finite."""
    return max(scores, key=lambda weight: scores[weight] if math.isfinite(scores[weight]) else -math.inf)
