"""Time of `import es_medical`, next to that of the packages it requires."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

import torch

from es_medical.benchmark.timing import Job, Ratio, alternate, medians, ratio

STATEMENTS = {
    "torch, deepinv": "import torch, deepinv",
    "es_medical": "import es_medical",
    "es_medical's core": "import es_medical.losses, es_medical.networks, es_medical.inferers, es_medical.engine.step",
}


class ImportResult(NamedTuple):
    """Median seconds of each import, and ratios to torch and deepinv."""

    seconds: dict[str, float]
    ratios: dict[str, Ratio]


def benchmark_import(repeats: int = 5) -> ImportResult:
    """Time each import in fresh interpreters, in turn."""

    def job(statement: str) -> Job:
        return lambda: subprocess.run([sys.executable, "-c", statement], check=True)

    jobs = {name: job(statement) for name, statement in {"python": "", **STATEMENTS}.items()}
    times = alternate(jobs, repeats, 1, torch.device("cpu"))
    first, *others = STATEMENTS
    seconds = {name: value / 1e3 for name, value in medians(times).items()}
    return ImportResult(seconds, {name: ratio(times, name, first) for name in others})


def run(options: Namespace) -> Iterator[ImportResult]:
    """Run the benchmark with the options of the command line."""
    yield benchmark_import(options.repeats)


def table(result: ImportResult) -> str:
    """Return a result as a text table."""
    return "\n".join(
        f"import {name:20s} {seconds:6.2f} s   x torch, deepinv: {result.ratios.get(name, '')}"
        for name, seconds in result.seconds.items()
    )
