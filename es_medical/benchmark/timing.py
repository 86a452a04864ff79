"""Fair timings on a machine with other load: the jobs take turns, and ratios compare neighbouring runs."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

Job = Callable[[], object]


class Ratio(NamedTuple):
    """Ratio of the times of two jobs over the rounds in which both ran."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


def alternate(
    jobs: Mapping[str, Job], repeats: int, warmup: int, device: torch.device, inner: int = 1
) -> dict[str, list[float]]:
    """Time the jobs in turn, A B C A B C ...

    Args:
        jobs: jobs to time, by name.
        repeats: number of timed rounds.
        warmup: number of untimed rounds before them (compilation, memory, clocks).
        device: device of the jobs; a GPU is timed with CUDA events.
        inner: number of consecutive calls averaged in each time (more than one fills a GPU's queue, as in training).

    Returns:
        Milliseconds per call: `repeats` values for each job.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(-warmup, repeats):
        for name, job in jobs.items():
            elapsed = _time_on_gpu(job, inner) if device.type == "cuda" else _time_on_cpu(job, inner)
            if round_ >= 0:
                times[name].append(elapsed)
    return times


def alternate_networks(jobs: Mapping[str, Job], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Time network passes in turn: on a GPU five in a row after five warm-up rounds, on a CPU one after one."""
    n = 5 if device.type == "cuda" else 1
    return alternate(jobs, repeats, n, device, inner=n)


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median time of each job."""
    return {name: median(values) for name, values in times.items()}


def ratio(times: Mapping[str, list[float]], numerator: str, denominator: str) -> Ratio:
    """Compare two jobs round by round: median, smallest and largest ratio.

    >>> str(ratio({"a": [2.0, 3.0, 8.0], "b": [1.0, 2.0, 2.0]}, "a", "b"))
    '2.000 (1.500-4.000)'
    """
    ratios = [a / b for a, b in zip(times[numerator], times[denominator], strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def _time_on_cpu(job: Job, inner: int) -> float:
    start = perf_counter()
    for _ in range(inner):
        job()
    return 1e3 * (perf_counter() - start) / inner


def _time_on_gpu(job: Job, inner: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(inner):
        job()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / inner
