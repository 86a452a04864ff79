"""Differences between ES and other methods on the same test items, with a bootstrap confidence interval."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from es_medical.report.groups import Group
from es_medical.report.methods import label, place
from es_medical.report.reading.scores import item_scores

CONFIDENCE = 0.95
RESAMPLES = 9999
SEED = 0
NAMES = ("psnr", "ssim")


class Interval(NamedTuple):
    """A mean with its confidence interval; None for both ends where fewer than two items have a value."""

    mean: float
    low: float | None
    high: float | None


class Difference(NamedTuple):
    """ES minus another method, item by item.

    Attributes:
        method: the other method.
        label: its name in tables.
        name: psnr (dB) or ssim.
        n: number of items that both have.
        interval: mean difference over these items.
        es_only: number of items that only ES has.
        other_only: number of items that only the other method has.
        undefined: number of common items without two finite values, left out.
    """

    method: str
    label: str
    name: str
    n: int
    interval: Interval
    es_only: int
    other_only: int
    undefined: int

    @property
    def verdict(self) -> str:
        """Whether the interval lies above or below 0, in words."""
        low, high = self.interval.low, self.interval.high
        if low is None or high is None:
            return "too few items"
        return "ES better" if low > 0 else "ES worse" if high < 0 else "no difference shown"


def differences(group: Group, reference: str = "es") -> list[Difference]:
    """Compare ES with every other method of a group; empty where ES was not run. The items are the units.

    Items are matched by their id; several seeds are averaged item by item first. Items of one subject are not independent:
    with few subjects the intervals are too narrow.
    """
    if reference not in group.runs:
        return []
    others = sorted((method for method in group.runs if method != reference), key=place)
    found = []
    for name in NAMES:
        first = item_scores(group.runs[reference], name)
        compared = [(method, label(method), item_scores(group.runs[method], name)) for method in others]
        if "baseline" not in others:
            compared.append(("baseline", "Baseline", item_scores(group.runs[reference], f"baseline_{name}")))
        found += [difference(method, shown, name, first, second) for method, shown, second in compared if first and second]
    return found


def difference(method: str, shown: str, name: str, first: Mapping[str, float], second: Mapping[str, float]) -> Difference:
    """Compare two tables of items: `first` - `second`, over the items that both have."""
    common = [one for one in first if one in second]
    values = [first[one] - second[one] for one in common]
    finite = [value for value in values if math.isfinite(value)]
    unmatched = (len(first) - len(common), len(second) - len(common))
    return Difference(method, shown, name, len(finite), interval(finite), *unmatched, len(values) - len(finite))


def interval(values: Sequence[float], seed: int = SEED) -> Interval:
    """Return the mean of values with its 95 % bootstrap interval (BCa, 9,999 resamples, seeded).

    >>> interval([1.0, 1.0, 1.0])
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    from scipy.stats import bootstrap

    if not values:
        return Interval(math.nan, None, None)
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, None, None)
    if max(values) == min(values):  # the acceleration of BCa is undefined for a constant
        return Interval(mean, mean, mean)
    found = bootstrap(
        (np.asarray(values),),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="BCa",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high))
