"""Speed and memory of `data_prep fastmri --measurements real` and `lidc --slices all`, next to plainly reading the slices."""

import io
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import h5py
import numpy as np
import pydicom
import scipy.fft
import torch
from numpy.typing import NDArray
from rich.console import Console

from data_prep.ct import lidc
from data_prep.ct.options import LIDCOptions
from data_prep.mri import fastmri
from data_prep.mri.options import FastMRIOptions
from data_prep.run.manifest import default_salt
from data_prep.run.runner import PrepRun
from data_prep.run.workers import worker_pool
from es_medical.benchmark.raw_files import make_series, make_volume
from es_medical.benchmark.timing import Job, Ratio, alternate, medians, ratio

Transform = Callable[[NDArray[np.complex64]], object]
TRANSFORMS: dict[str, Transform] = {
    "numpy": np.fft.ifft2,
    "torch": lambda k: torch.fft.ifft2(torch.from_numpy(k)),
    "scipy": scipy.fft.ifft2,
}
"""Plain two-dimensional FFTs, by library."""

SIZE = (640, 368)
PLAIN = "read + FFT"
DECODED = "pixel_array"
TARGETS = {PLAIN: 0.35, DECODED: 0.45}  # fractions of the speed of the plain job, with one worker


class Peak(NamedTuple):
    """Peak resident memory in MiB: after the imports, and of the whole run."""

    imports: float
    run: float


class PrepResult(NamedTuple):
    """Times of whole runs, compared with plainly reading the slices.

    Attributes:
        plain: what they are compared with: reading and one FFT, or pydicom's `pixel_array`.
        slices: number of slices in all volumes.
        size: (H, W) of their k-space or pixels.
        transform: library of the plain job; of FFTs the fastest one here.
        milliseconds: median milliseconds per slice, by job.
        speed: speed of data_prep / speed of the plain job, by job; see `TARGETS`.
        peak: memory of a fresh process, by number of workers.
    """

    plain: str
    slices: int
    size: tuple[int, int]
    transform: str
    milliseconds: dict[str, float]
    speed: dict[str, Ratio]
    peak: dict[str, Peak]


def run(options: Namespace) -> Iterator[PrepResult]:
    """Run the benchmark with the options of the command line."""
    yield benchmark_prep(options.slices, options.volumes, repeats=options.repeats)
    yield benchmark_ct(options.slices, options.volumes, repeats=options.repeats)


def benchmark_prep(
    slices: int = 36,
    volumes: int = 2,
    size: tuple[int, int] = SIZE,
    repeats: int = 5,
    workers: Sequence[int] = (1, 2),
    memory: bool = True,
    processes: Sequence[int] = (1, 2),
) -> PrepResult:
    """Write volumes in fastMRI's layout to a temporary folder and time both jobs in turn, with the files in the page cache.

    The start of the interpreter and the imports are not timed.

    Args:
        slices: number of slices per volume.
        volumes: number of files; workers share files and parts of them.
        size: (H, W) of k-space; the reconstruction is the central square of half its height.
        repeats: number of timed rounds.
        workers: numbers of threads to time.
        memory: whether to measure the peak memory too, each in a fresh process.
        processes: numbers of processes to time, if dask is there.
    """
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out.h5"
        source.mkdir()
        files = [make_volume(source / f"volume{i}.h5", slices, size, seed=i) for i in range(volumes)]
        name, transform = fastest_transform(size)
        plain = partial(read_and_transform, files, transform)
        with jobs_of(PLAIN, plain, partial(_prep_run, out), partial(prepare, source=source), workers, processes) as jobs:
            times = alternate(jobs, repeats, 1, torch.device("cpu"))
        peak = {_label(n): _measured_peak(source, out, n) for n in workers} if memory else {}
    return _result(PLAIN, times, slices * volumes, size, name, peak)


def benchmark_ct(
    slices: int = 36,
    volumes: int = 2,
    side: int = 512,
    repeats: int = 5,
    workers: Sequence[int] = (1, 2),
    processes: Sequence[int] = (1, 2),
) -> PrepResult:
    """Write CT series to a temporary folder, and time `lidc --slices all` and pydicom's `pixel_array` of each file in turn.

    Args:
        slices: number of files of each series.
        volumes: number of series, each of a patient.
        side: rows and columns.
        repeats: number of timed rounds.
        workers: numbers of threads to time.
        processes: numbers of processes to time, if dask is there.
    """
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out.h5"
        files = [path for k in range(volumes) for path in make_series(source / str(k), slices, side, seed=k)]
        options = LIDCOptions(slices="all", train=1, test=0, val=0)
        make = partial(_prep_run, out, options=options)
        ready = partial(prepare, source=source, command=lidc.prepare)
        with jobs_of(DECODED, partial(decode, files), make, ready, workers, processes) as jobs:
            times = alternate(jobs, repeats, 1, torch.device("cpu"))
    return _result(DECODED, times, len(files), (side, side), "pydicom", {})


def _result(
    plain: str, times: dict[str, list[float]], n: int, size: tuple[int, int], library: str, peak: dict[str, Peak]
) -> PrepResult:
    milliseconds = {job: value / n for job, value in medians(times).items()}
    speed = {job: ratio(times, plain, job) for job in times if job != plain}
    return PrepResult(plain, n, size, library, milliseconds, speed, peak)


@contextmanager
def jobs_of(
    label: str,
    plain: Job,
    make: Callable[[int, Executor | None], PrepRun[Any]],
    ready: Callable[[PrepRun[Any]], None],
    workers: Sequence[int],
    processes: Sequence[int],
) -> Iterator[dict[str, Job]]:
    """The plain job, and preparation by so many threads and processes, which live as long as the timing."""
    jobs: dict[str, Job] = {label: plain}
    with ExitStack() as stack:
        for n in workers:
            jobs[_label(n)] = partial(ready, make(n, stack.enter_context(worker_pool(n))))
        for n in processes if find_spec("distributed") else ():
            jobs[f"{n} process" + "es" * (n > 1)] = partial(ready, _by_processes(make(1, None), n, stack))
        yield jobs


def _by_processes(run: PrepRun[Any], n: int, stack: ExitStack) -> PrepRun[Any]:
    """The run with processes of its own and another output, as each locks its file."""
    from data_prep.run.cluster import cluster

    run = replace(run, out=run.out.with_name(f"out{n}.h5"))
    return replace(run, cluster=stack.enter_context(cluster(n, None, run.out, run.pseudonyms, False, run.say)))


def decode(files: Sequence[Path]) -> None:
    """Read every file and decode its pixels."""
    for path in files:
        pydicom.dcmread(path).pixel_array  # noqa: B018


def fastest_transform(size: tuple[int, int], repeats: int = 7) -> tuple[str, Transform]:
    """Return the fastest FFT on this machine for complex64 k-space (H, W), after its library's name."""
    k = np.ones(size, np.complex64)
    times = medians(alternate({name: partial(fft, k) for name, fft in TRANSFORMS.items()}, repeats, 1, torch.device("cpu")))
    name = min(times, key=times.__getitem__)
    return name, TRANSFORMS[name]


def read_and_transform(files: Sequence[Path], transform: Transform) -> None:
    """Read every slice of k-space and take one FFT of it."""
    for path in files:
        with h5py.File(path) as file:
            for k in file["kspace"]:
                transform(k)


def _label(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _prep_run(
    out: Path, workers: int, pool: Executor | None, options: FastMRIOptions | LIDCOptions | None = None
) -> PrepRun[Any]:
    command = "lidc" if isinstance(options, LIDCOptions) else "fastmri"
    options = options or FastMRIOptions(measurements="real", slices="all", train=1, test=0, val=0)
    return PrepRun(command, options, out, default_salt(0), workers, pool, Console(file=io.StringIO()))


def prepare(preparation: PrepRun[Any], source: Path, command: Callable[..., bool] = fastmri.prepare) -> None:
    """Do what `python -m data_prep fastmri SRC OUT --measurements real --slices all --overwrite` (or another command) does.

    Raises:
        RuntimeError: a file failed.
    """
    with redirect_stderr(io.StringIO()):  # no progress bar
        if not command(preparation, source, overwrite=True):
            raise RuntimeError("data_prep failed on a file of the benchmark")


def peak_here() -> float:
    """Return the peak resident memory of this process so far, in MiB.

    On Linux, `getrusage` also counts the memory of the parent when it started this process; VmHWM does not.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def report_peak(source: str, out: str, workers: int) -> None:
    """Prepare once in this process and print its `Peak`, as two numbers."""
    with worker_pool(workers) as pool:
        preparation = _prep_run(Path(out), workers, pool)
        imports = peak_here()
        prepare(preparation, Path(source))
        print(imports, peak_here())


def _measured_peak(source: Path, out: Path, workers: int) -> Peak:
    code = f"from es_medical.benchmark.prep import report_peak; report_peak({str(source)!r}, {str(out)!r}, {workers})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the run for the memory measurement failed: {done.stderr[-2000:]}")
    return Peak(*map(float, done.stdout.split()[-2:]))


def table(result: PrepResult) -> str:
    """Return a result as a text table."""
    height, width = result.size
    lines = [
        f"{result.slices} slices of {height} x {width}; {result.plain} by {result.transform}",
        f"{'':12s} {'ms/slice':>9s} {'slices/s':>9s}   speed / ({result.plain}), target of one {TARGETS[result.plain]:g}",
    ]
    for job, milliseconds in result.milliseconds.items():
        lines.append(f"{job:12s} {milliseconds:9.2f} {1e3 / milliseconds:9.0f}   {result.speed.get(job, '')}")
    for workers, peak in result.peak.items():
        lines.append(f"peak memory in MiB, {workers}: {peak.run:.0f}, of which {peak.imports:.0f} before the first slice")
    return "\n".join(lines)
