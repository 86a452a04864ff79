"""Synthetic images drawn in a second, on one core."""

from argparse import Namespace
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import NamedTuple

from es_medical.synthetic import KINDS, draw

SIZES = {64: 256, 320: 16}  # side of the images: number drawn in a round


class DrawResult(NamedTuple):
    """Median number of images a second of each kind and size."""

    per_second: dict[str, float]


def benchmark_draw(repeats: int = 5) -> DrawResult:
    """Draw the images of each kind and size several times, each time others; the first round is not timed."""
    found = {}
    for kind in KINDS:
        for size, n in SIZES.items():
            times = [_seconds(kind, size, n, round_) for round_ in range(repeats + 1)][1:]
            found[f"{kind} {size} x {size}"] = n / median(times)
    return DrawResult(found)


def _seconds(kind: str, size: int, n: int, round_: int) -> float:
    start = perf_counter()
    draw(kind, n, size, seed=0, first=n * round_)
    return perf_counter() - start


def run(options: Namespace) -> Iterator[DrawResult]:
    """Run the benchmark with the options of the command line."""
    yield benchmark_draw(options.repeats)


def table(result: DrawResult) -> str:
    """Return a result as a text table."""
    return "\n".join(f"{name:22s} {rate:6.0f} images/s" for name, rate in result.per_second.items())
