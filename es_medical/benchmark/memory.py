"""Peak memory of every command on 10 times as many volumes, and on slices of 4 times as many pixels.

Each command runs by itself as a user types it, with a small network. The imports are most of a peak: what counts is how much it
grows, beside the bytes that were added to what the command reads.
"""

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from es_medical.benchmark.raw_files import make_volume
from es_medical.data import read_header

BUNDLE = "fastmri_real"
MAKES = ("data preparation", "train")
SMALL, MANY, LARGE = "small", "10 x volumes", "4 x pixels"
TINY = "--widths [4,8] --iterations 1 --epochs 1 --val_interval 1 --batch_size 4 --num_workers 0 --n_samples 2 --device cpu"
LAUNCHER = """import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=sys.stderr).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
print(peak if code == 0 else f"status {code}")"""
"""Prints the peak in MiB of a command, whatever it starts. It is small itself: a process inherits the peak of its parent."""

READ: dict[str, tuple[str, ...]] = {
    "train": ("train", "val", "test"),
    "evaluate": ("test",),
    "calibrate": ("val", "test"),
    "diagnose": ("train", "val", "test"),
    "report": ("train", "val", "test"),
}
"""Splits that the commands on a slice file read, or whose runs they read."""


class Size(NamedTuple):
    """What is measured on: volumes, their slices, and (H, W) of k-space, of which the image is the central square."""

    volumes: int = 4
    slices: int = 8
    kspace: tuple[int, int] = (320, 240)

    def grown(self) -> dict[str, "Size"]:
        """The three sizes that are compared."""
        rows, columns = self.kspace
        many, large = self._replace(volumes=10 * self.volumes), self._replace(kspace=(2 * rows, 2 * columns))
        return {SMALL: self, MANY: many, LARGE: large}


class Run(NamedTuple):
    """Peak resident memory of a command, and the size of the data that it reads, in MiB."""

    peak: float
    data: float


class MemoryResult(NamedTuple):
    """Runs of each command by size, and the sizes."""

    sizes: dict[str, Size]
    runs: dict[str, dict[str, Run]]


def run(options: Namespace) -> Iterator[MemoryResult]:
    """Run the benchmark with the options of the command line."""
    yield benchmark_memory(Size(options.volumes, options.slices, (options.size * 2, options.size * 3 // 2)), options.only)


def benchmark_memory(size: Size, only: Sequence[str] | None = None) -> MemoryResult:
    """Run every command on the three sizes, one after the other, in a temporary folder.

    Args:
        size: the small one.
        only: commands to run, beside those that make the slice file and the weights.

    Raises:
        RuntimeError: a command failed.
    """
    sizes = size.grown()
    runs: dict[str, dict[str, Run]] = {}
    for name, one in sizes.items():
        with TemporaryDirectory() as folder:
            for command, found in measured(one, Path(folder), only):
                runs.setdefault(command, {})[name] = found
                print(f"{name}: {command} {found.peak:.0f} MiB", file=sys.stderr, flush=True)
    return MemoryResult(sizes, runs)


def measured(size: Size, folder: Path, only: Sequence[str] | None = None) -> Iterator[tuple[str, Run]]:
    """Run the commands on one size; each uses what those before it wrote."""
    source, slices = folder / "source", folder / "slices.h5"
    source.mkdir()
    files = [make_volume(source / f"volume{i}.h5", size.slices, size.kspace, seed=i) for i in range(size.volumes)]
    for command, arguments in commands(size).items():
        if only and command not in (*MAKES, *only):
            continue
        found = peak(arguments, folder)
        yield command, Run(found, data_read(command, files, slices))


def commands(size: Size) -> dict[str, list[str]]:
    """The arguments of each command."""
    share = f"--train {size.volumes // 2} --test {size.volumes // 4} --val {size.volumes // 4}"
    data, mask = "--data_file slices.h5 --tracking_uri sqlite:///mlflow.db", "--acceleration 4 --center_fraction 0.12"
    lines = {
        "data preparation": "data_prep fastmri source slices.h5 --measurements real --slices all --acceleration 4 "
        f"--center-fraction 0.12 {share}",
        "train": f"es_medical train {BUNDLE} {data} {mask} {TINY}",
        "evaluate": f"es_medical evaluate {BUNDLE} {data} --num_workers 0 --device cpu",
        "calibrate": f"es_medical calibrate {BUNDLE} {data} --num_workers 0 --device cpu "
        "--session#n_bootstrap 2 --session#n_folds 2",
        "diagnose": f"es_medical diagnose {BUNDLE} --data slices.h5 --no-track {mask}",
        "reconstruct": f"es_medical reconstruct {BUNDLE}/models source eval --device cpu",
        "report": "es_medical report tables --tracking-uri sqlite:///mlflow.db",
    }
    return {name: line.split() for name, line in lines.items()}


def peak(arguments: Sequence[str], folder: Path) -> float:
    """Return the peak in MiB of `python -m ARGUMENTS`, run in a folder by one thread.

    Raises:
        RuntimeError: it failed; the message ends with its last lines.
    """
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-m", *arguments]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    try:
        return float(done.stdout)
    except ValueError:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stdout.strip()}\n{done.stderr[-2000:]}") from None


def data_read(command: str, files: Sequence[Path], slices: Path) -> float:
    """Return the size in MiB of what a command reads: scans, or its splits of the slice file."""
    if command not in READ:
        return sum(path.stat().st_size for path in files) / 2**20
    header = read_header(slices)
    return slices.stat().st_size / 2**20 * sum(header.splits[split] for split in READ[command]) / header.n


def table(result: MemoryResult) -> str:
    """Return a result as a text table."""
    small = result.sizes[SMALL]
    side = small.kspace[0] // 2
    lines = [
        f"MiB; small: {small.volumes} volumes of {small.slices} slices of {side} x {side}; data: what the command reads",
        f"{'':17s} {SMALL:>12s}" + "".join(f" | {name:>8s}: peak, growth of data added" for name in (MANY, LARGE)),
    ]
    return "\n".join(lines + [_line(command, runs) for command, runs in result.runs.items()])


def _line(command: str, runs: Mapping[str, Run]) -> str:
    small, cells = runs[SMALL], ""
    for name in (MANY, LARGE):
        ratio, grown, added = growth(small, runs[name])
        cells += f" | {runs[name].peak:8.0f} ({ratio:4.2f} x) {grown:+6.0f} of {added:4.0f}"
    return f"{command:17s} {small.peak:12.0f}{cells}"


def growth(small: Run, grown: Run) -> tuple[float, float, float]:
    """Return the ratio of the peaks, by how much the peak grew, and by how much the data.

    >>> growth(Run(800, 10), Run(840, 110))
    (1.05, 40, 100)
    """
    return grown.peak / small.peak, grown.peak - small.peak, grown.data - small.data
