"""Training time to a target: when the validation PSNR reaches a share of supervised's gain over the baseline."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from es_medical.methods import LEARNING_FREE
from es_medical.report.methods import kind, label, place
from es_medical.report.reading.runs import Point, Run

SHARE = 0.9
"""The target, as a share of supervised's gain over the learning-free baseline."""


class Curve(NamedTuple):
    """Validation scores of one run, in order of time: step, epoch, training time (s), PSNR (dB), SSIM (NaN if not logged)."""

    steps: tuple[int, ...]
    epochs: tuple[float, ...]
    seconds: tuple[float, ...]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]


class Reached(NamedTuple):
    """Training time of one method to the target; means over seeds.

    Attributes:
        method: its name.
        label: its name in tables.
        total: duration of the whole training, s.
        best: best validation PSNR, dB.
        seconds: time until it reached the target, None if it never did.
        at_equal_time: PSNR at the duration of the shortest training, dB; None if no validation was so early.
    """

    method: str
    label: str
    total: float
    best: float
    seconds: float | None
    at_equal_time: float | None


class Race(NamedTuple):
    """Training times of the methods of a group.

    Attributes:
        target: the baseline plus 90 % of supervised's gain, dB; None without supervised.
        baseline: PSNR of the learning-free reconstruction on the validation items, dB.
        equal_time: duration of the shortest training, s.
        rows: methods in the order of tables.
    """

    target: float | None
    baseline: float | None
    equal_time: float
    rows: tuple[Reached, ...]


def curve(run: Run) -> Curve | None:
    """Return the validation curve of a run, None where there is none.

    Time is that of the training steps (the sum of `epoch_time` so far), after that of the warm start: pauses, resuming and
    validation don't count. A run without `epoch_time` takes the times of its log entries.
    """
    points = run.details.curves.get("val/psnr", ())
    if not points:
        return None
    durations, epochs = run.details.curves.get("epoch_time", ()), run.details.curves.get("epoch", ())
    seconds = _elapsed(points, durations) if durations else tuple((p.time - points[0].time) / 1000 for p in points)
    seconds = tuple(run.warm_seconds + one for one in seconds)
    ssim = {point.step: point.value for point in run.details.curves.get("val/ssim", ())}
    return Curve(
        tuple(p.step for p in points),
        _epochs(points, epochs),
        seconds,
        tuple(p.value for p in points),
        tuple(ssim.get(p.step, math.nan) for p in points),
    )


def curves(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Curve]]:
    """Return the curves of each method that is trained, in the order of tables, given the runs by method."""
    learning = [method for method in sorted(runs, key=place) if kind(method) != LEARNING_FREE]
    found = {method: [one for run in runs[method] if (one := curve(run))] for method in learning}
    return {method: of_seeds for method, of_seeds in found.items() if of_seeds}


def race(runs: Mapping[str, Sequence[Run]]) -> Race | None:
    """Compare how soon trained methods reach the target, given the runs by method; None where no run has a validation curve."""
    trained = {method: found for method, found in curves(runs).items() if any(one.seconds[-1] > 0 for one in found)}
    if not trained:
        return None
    equal = min(_mean([one.seconds[-1] for one in found]) for found in trained.values())
    baseline = _baseline(runs)
    target = None
    if "supervised" in trained and baseline is not None:
        target = baseline + SHARE * (_mean([max(one.psnr) for one in trained["supervised"]]) - baseline)
    rows = tuple(_reached(method, found, target, equal) for method, found in trained.items())
    return Race(target, baseline, equal, rows)


def time_to(one: Curve, target: float) -> float | None:
    """Return the training time at which a curve first reaches `target`, linear between validations; None if it never does."""
    for i, (seconds, psnr) in enumerate(zip(one.seconds, one.psnr, strict=True)):
        if psnr >= target:
            if i == 0 or psnr == one.psnr[i - 1]:
                return seconds
            share = (target - one.psnr[i - 1]) / (psnr - one.psnr[i - 1])
            return one.seconds[i - 1] + share * (seconds - one.seconds[i - 1])
    return None


def psnr_at(one: Curve, seconds: float) -> float | None:
    """Return the PSNR of a curve at a training time, linear between validations; None outside their range."""
    if not one.seconds[0] <= seconds <= one.seconds[-1]:
        return None
    return float(np.interp(seconds, one.seconds, one.psnr))


def _reached(method: str, found: Sequence[Curve], target: float | None, equal: float) -> Reached:
    times = [time_to(one, target) for one in found] if target is not None else [None]
    at_equal = [psnr_at(one, min(equal, one.seconds[-1])) for one in found]
    total, best = _mean([one.seconds[-1] for one in found]), _mean([max(one.psnr) for one in found])
    return Reached(method, label(method), total, best, _mean_of_all(times), _mean_of_all(at_equal))


def _baseline(runs: Mapping[str, Sequence[Run]]) -> float | None:
    """PSNR of the learning-free reconstruction on the validation items, which every run logs."""
    for run in chain.from_iterable(runs.values()):
        if points := run.details.curves.get("val/baseline_psnr"):
            return points[-1].value
    return None


def _elapsed(points: Sequence[Point], durations: Sequence[Point]) -> tuple[float, ...]:
    """Return the seconds of all epochs that had ended at each point."""
    steps, total = [one.step for one in durations], np.cumsum([0.0] + [one.value for one in durations])
    return tuple(float(total[bisect_right(steps, point.step)]) for point in points)


def _epochs(points: Sequence[Point], epochs: Sequence[Point]) -> tuple[float, ...]:
    steps, values = [one.step for one in epochs], [0.0] + [one.value for one in epochs]
    return tuple(values[bisect_right(steps, point.step)] for point in points)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean over seeds, None if any has no value."""
    present = [value for value in values if value is not None]
    return _mean(present) if present and len(present) == len(values) else None
