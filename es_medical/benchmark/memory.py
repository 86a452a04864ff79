"""Peak memory of every command on 10 times as many volumes, and on slices of 4 times as many pixels.

Each command runs by itself as a user types it, with a small network. The imports are most of a peak: what counts is how much it
grows, beside the bytes that were added to what the command reads.
"""

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from es_medical.benchmark.raw_files import make_nifti, make_photo, make_scan, make_series, make_volume
from es_medical.data import read_header

BUNDLE = "fastmri_real"
MAKES = ("data preparation", "train")
SMALL, MANY, LARGE = "small", "10 x volumes", "4 x pixels"
TINY = "--widths [4,8] --iterations 1 --epochs 1 --val_interval 1 --batch_size 4 --num_workers 0 --n_samples 2 --device cpu"
LAUNCHER = """import resource, sys, psutil
own, command = 0, psutil.Popen(sys.argv[1:], stdout=sys.stderr)
while True:
    try:
        code = command.wait(0.02)
        break
    except psutil.TimeoutExpired:
        memory = command.memory_info()
        own = max(own, memory.rss - getattr(memory, "shared", 0))
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(*(f"{value / 2**20}" for value in (peak, own)) if code == 0 else ("status", code))"""
"""Prints the peak in MiB of a command, whatever it starts, and that of its memory but for pages of files, by 50 looks a second.

It is small itself: a process inherits the peak of its parent.
"""

SPLITS: dict[str, tuple[str, ...]] = {
    "data_prep synthetic": (),
    "train": ("train", "val", "test"),
    "evaluate": ("test",),
    "calibrate": ("val", "test"),
    "diagnose": ("train", "val", "test"),
    "report": ("train", "val", "test"),
}
"""Splits that the commands on a slice file read, or whose runs they read; the others read the files of a folder."""


class Size(NamedTuple):
    """What is measured on: volumes, their slices, and (H, W) of k-space, of which the image is the central square."""

    volumes: int = 4
    slices: int = 8
    kspace: tuple[int, int] = (320, 240)

    @property
    def side(self) -> int:
        """Rows and columns of the image."""
        return self.kspace[0] // 2

    def grown(self) -> dict[str, "Size"]:
        """The three sizes that are compared."""
        rows, columns = self.kspace
        many, large = self._replace(volumes=10 * self.volumes), self._replace(kspace=(2 * rows, 2 * columns))
        return {SMALL: self, MANY: many, LARGE: large}


def _scans(folder: Path, size: Size) -> None:
    for i in range(size.volumes):
        make_volume(folder / f"volume{i}.h5", size.slices, size.kspace, seed=i)


def _series(folder: Path, size: Size) -> None:
    for i in range(size.volumes):
        make_series(folder / f"patient{i}", size.slices, size.side, seed=i)


def _niftis(folder: Path, size: Size) -> None:
    for i in range(size.volumes):
        make_nifti(folder / f"head{i}.nii.gz", size.slices, size.side, seed=i)


def _rotations(folder: Path, size: Size) -> None:
    for i in range(size.volumes):
        make_scan(folder / f"sample{i}.h5", size.slices, size.side, seed=i)


def _photos(folder: Path, size: Size) -> None:
    for i in range(size.volumes * size.slices):
        make_photo(folder / f"photo{i}.png", size.side, seed=i)


SOURCES: dict[str, Callable[[Path, Size], None]] = {
    "scans": _scans,
    "series": _series,
    "niftis": _niftis,
    "photos": _photos,
    "rotations": _rotations,
}
"""What writes the files of a folder that commands read."""


class Run(NamedTuple):
    """Peak resident memory of a command, of which its own (not pages of files), and the size of the data it reads, in MiB."""

    peak: float
    own: float
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
                print(
                    f"{name}: {command} {found.peak:.0f} MiB, own {found.own:.0f}, data {found.data:.1f}",
                    file=sys.stderr,
                    flush=True,
                )
    return MemoryResult(sizes, runs)


def measured(size: Size, folder: Path, only: Sequence[str] | None = None) -> Iterator[tuple[str, Run]]:
    """Run the commands on one size; each uses what those before it wrote."""
    for command, arguments in commands(size).items():
        if only and command not in (*MAKES, *only):
            continue
        source = folder / next((name for name in SOURCES if name in arguments), "scans")
        if not source.exists():
            source.mkdir()
            SOURCES[source.name](source, size)
        found = peak(arguments, folder)
        yield command, Run(*found, data_read(command, source, folder / "slices.h5"))


def commands(size: Size) -> dict[str, list[str]]:
    """The arguments of each command."""
    share, of_files = (
        f"--train {n - n // 4} --test {n // 4} --val {n // 4}" for n in (size.volumes, size.volumes * size.slices)
    )
    data, mask = "--data_file slices.h5 --tracking_uri sqlite:///mlflow.db", "--acceleration 4 --center_fraction 0.12"
    inference = f"es_medical reconstruct {BUNDLE}/models scans eval --device cpu"
    lines = {
        "data preparation": "data_prep fastmri scans slices.h5 --measurements real --slices all --acceleration 4 "
        f"--center-fraction 0.12 {share}",
        "data_prep lidc": f"data_prep lidc series lidc.h5 --slices all --size {size.side} {share}",
        "data_prep mr": f"data_prep mr niftis mr.h5 --slices all --subject-pattern .+ {share}",
        "data_prep div2k": f"data_prep div2k photos div2k.h5 --size {size.side} --crop {size.side} {of_files}",
        "data_prep sinogram": f"data_prep sinogram rotations sinograms.h5 --size {size.side} --noise detector {share}",
        "data_prep synthetic": f"data_prep synthetic slices.h5 synthetic.h5 --n {max(20, size.volumes * size.slices)}",
        "train": f"es_medical train {BUNDLE} {data} {mask} {TINY}",
        "evaluate": f"es_medical evaluate {BUNDLE} {data} --num_workers 0 --device cpu",
        "calibrate": f"es_medical calibrate {BUNDLE} {data} --num_workers 0 --device cpu "
        "--session#n_bootstrap 2 --session#n_folds 2",
        "diagnose": f"es_medical diagnose {BUNDLE} --data slices.h5 --no-track {mask}",
        "reconstruct": inference,
        "with intervals": f"{inference} --intervals 0.9 --n_bootstrap 2 --calibrate_by none",
        "report": "es_medical report tables --tracking-uri sqlite:///mlflow.db",
    }
    return {name: line.split() for name, line in lines.items()}


def peak(arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """Return the peak in MiB of `python -m ARGUMENTS`, run in a folder by one thread, and its own part of it.

    Raises:
        RuntimeError: it failed; the message ends with its last lines.
    """
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-m", *arguments]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    try:
        whole, own = map(float, done.stdout.split())
    except ValueError:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stdout.strip()}\n{done.stderr[-2000:]}") from None
    return whole, own


def data_read(command: str, source: Path, slices: Path) -> float:
    """Return the size in MiB of what a command reads: the files of a folder, or its splits of the slice file."""
    if command not in SPLITS:
        return sum(path.stat().st_size for path in source.rglob("*") if path.is_file()) / 2**20
    header = read_header(slices)
    return slices.stat().st_size / 2**20 * sum(header.splits[split] for split in SPLITS[command]) / header.n


def table(result: MemoryResult) -> str:
    """Return a result as a text table."""
    small = result.sizes[SMALL]
    lines = [
        f"MiB; small: {small.volumes} volumes of {small.slices} slices of {small.side} x {small.side}; data: what the command "
        "reads; own: without pages of files",
        f"{'':19s} {SMALL:>12s}" + "".join(f" | {name:>12s}: peak, growth, own, of data" for name in (MANY, LARGE)),
    ]
    return "\n".join(lines + [_line(command, runs) for command, runs in result.runs.items()])


def _line(command: str, runs: Mapping[str, Run]) -> str:
    small, cells = runs[SMALL], ""
    for name in (MANY, LARGE):
        grown, own, added = growth(small, runs[name])
        cells += f" | {runs[name].peak:6.0f} ({runs[name].peak / small.peak:4.2f} x) {grown:+6.0f} {own:+6.0f} of {added:4.0f}"
    return f"{command:19s} {small.peak:12.0f}{cells}"


def growth(small: Run, grown: Run) -> Run:
    """Return by how much the peak, its own part and the data grew.

    >>> growth(Run(800, 500, 10), Run(840, 505, 110))
    Run(peak=40, own=5, data=100)
    """
    return Run(grown.peak - small.peak, grown.own - small.own, grown.data - small.data)
