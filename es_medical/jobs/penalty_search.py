"""Search the weight of a penalty by the score of its reconstructions."""

import math
from collections.abc import Callable, Mapping

DECADES = tuple(10.0**k for k in range(-5, 1))
"""Weights of a penalty that `search_penalty` tries first: 10^-5, ..., 1, in stored units."""


def search_penalty(score: Callable[[float], float]) -> dict[float, float]:
    """Score the weights of `DECADES`, then the two weights half a decade from the best one.

    Args:
        score: score of a weight, larger is better; a score that is not finite is the worst.

    Returns:
        Every weight tried, in that order, and its score.

    >>> [f"{weight:.3g}" for weight in search_penalty(lambda weight: -abs(math.log10(weight) + 1.4))][-2:]
    ['0.316', '0.0316']
    """
    scores = {weight: score(weight) for weight in DECADES}
    centre = best_weight(scores)
    return scores | {weight: score(weight) for weight in (centre * 10**0.5, centre / 10**0.5)}


def best_weight(scores: Mapping[float, float]) -> float:
    """Return the weight with the greatest finite score; the first one if none is finite."""
    return max(scores, key=lambda weight: scores[weight] if math.isfinite(scores[weight]) else -math.inf)
