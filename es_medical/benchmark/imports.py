"""How long `import es_medical` takes, next to the packages that it cannot do without."""

import subprocess
import sys
from statistics import median
from typing import NamedTuple

import torch

from es_medical.benchmark.timing import Job, Ratio, alternate, ratio

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
    seconds = {name: median(values) / 1e3 for name, values in times.items()}
    return ImportResult(seconds, {name: ratio(times, name, first) for name in others})
