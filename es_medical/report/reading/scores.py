"""Scores of a method over its test items, and its training time; several seeds are averaged item by item."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from es_medical.report.reading.runs import Run

SCORES = ("psnr", "ssim", "equiv")
"""Columns of the paper's tables: decibels, without unit, decibels."""


class Score(NamedTuple):
    """A mean over items.

    Attributes:
        mean: over items (of their means over seeds) with a finite score; infinite where all scores are (exact equivariance).
        sd: standard deviation over the same items, None for a single one.
        n: number of items with a score, exact ones included.
        between_seeds: standard deviation of the seeds' means, None for a single seed.
        best: whether it is the best self-supervised score of its table.
        exact: number of items whose score is infinite.
    """

    mean: float
    sd: float | None
    n: int
    between_seeds: float | None = None
    best: bool = False
    exact: int = 0


class Training(NamedTuple):
    """Cost of a training; means over seeds.

    Attributes:
        seconds: in training steps, those of a warm start included; validation is not counted.
        epochs: without those of a warm start.
        warm: seconds of the warm start, 0 without one.
    """

    seconds: float
    epochs: float
    warm: float = 0.0

    @property
    def seconds_per_epoch(self) -> float:
        """Mean duration of an epoch in s, the warm start left out."""
        return (self.seconds - self.warm) / self.epochs if self.epochs else math.nan


def item_scores(runs: Sequence[Run], name: str) -> dict[str, float]:
    """Return the score of each test item, the mean over seeds, for items that every seed has.

    NaN, the mark of an item without that score, stays NaN.
    """
    tables = [run.details.items for run in runs]
    common = [one for one in tables[0] if all(one in table for table in tables)] if tables else []
    scored = [one for one in common if all(name in table[one] for table in tables)]
    return {one: _mean([table[one][name] for table in tables]) for one in scored}


def score(runs: Sequence[Run], name: str) -> Score | None:
    """Return mean and standard deviation over items, None where there is no such score.

    Computed from the table of items if it was logged; else taken from the metrics of the run, with the number of items of
    the logged test set.
    """
    values = [value for value in item_scores(runs, name).values() if not math.isnan(value)]
    if values:
        means = [_finite_mean([v for v in item_scores([run], name).values() if not math.isnan(v)]) for run in runs]
        finite = [value for value in values if math.isfinite(value)]
        return Score(_finite_mean(values), _sd(finite), len(values), _sd(means), exact=len(values) - len(finite))
    if name == "equiv" and runs and all(run.tags.get("equiv") == "exact" for run in runs):
        n = runs[0].sizes.get("test", 0)
        return Score(math.inf, None, n, exact=n)
    logged = [run for run in runs if f"test/{name}" in run.metrics]
    if not logged:
        return None
    means = [run.metrics[f"test/{name}"] for run in logged]
    sds = [run.metrics[f"test/{name}_sd"] for run in logged if f"test/{name}_sd" in run.metrics]
    return Score(_mean(means), _mean(sds) if sds else None, logged[0].sizes.get("test", 0), _sd(means))


def training(runs: Sequence[Run]) -> Training | None:
    """Return the cost of the trainings, None where no run includes one."""
    took = [(points, run) for run in runs if (points := run.details.curves.get("epoch_time"))]
    if not took:
        return None
    warm = [run.warm_seconds for _, run in took]
    seconds = [first + sum(point.value for point in points) for first, (points, _) in zip(warm, took, strict=True)]
    epochs = [run.metrics.get("epoch", len(points)) for points, run in took]
    return Training(_mean(seconds), _mean(epochs), _mean(warm))


def with_best(rows: Mapping[str, Mapping[str, Score]]) -> dict[str, dict[str, Score]]:
    """Mark the best mean of each score over competing rows; all of them if several are equal."""
    best = {}
    for name in SCORES:
        means = [scores[name].mean for scores in rows.values() if name in scores]
        best[name] = max(means, default=math.nan)
    return {
        row: {name: one._replace(best=one.mean == best[name]) for name, one in scores.items()} for row, scores in rows.items()
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _finite_mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, infinity where there are none: the evaluator's rule for EQUIV."""
    finite = [value for value in values if math.isfinite(value)]
    return _mean(finite) if finite else math.inf


def _sd(values: Sequence[float]) -> float | None:
    """Return the standard deviation with n - 1, as the evaluator; None for fewer than two values or infinite ones."""
    defined = len(values) > 1 and all(math.isfinite(value) for value in values)
    return float(np.std(values, ddof=1)) if defined else None
