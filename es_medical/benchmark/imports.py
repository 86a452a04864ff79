"""How long `import es_medical` takes, next to the packages that it cannot do without."""

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
    """Medians in seconds by what was imported, and ratios to torch and deepinv."""

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
    """Time what the command line asks for."""
    yield benchmark_import(options.repeats)


def table(result: ImportResult) -> str:
    """Lay a result out for reading."""
    return "\n".join(
        f"import {name:20s} {seconds:6.2f} s   x torch, deepinv: {result.ratios.get(name, '')}"
        for name, seconds in result.seconds.items()
    )
