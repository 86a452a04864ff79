"""Run commands as processes, several at a time, each with its log file; a failure does not stop the others."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from es_medical.cores import usable_cores


class CommandJob(NamedTuple):
    """One command.

    Attributes:
        name: name of the job.
        command: the program and its arguments.
        log: file for its output, overwritten.
        folder: folder to run it in.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    folder: Path


class Finished(NamedTuple):
    """The outcome of a job."""

    job: CommandJob
    status: int
    seconds: float


def run_jobs(jobs: Sequence[CommandJob], parallel: int = 1, devices: Sequence[str] = ()) -> Iterator[Finished]:
    """Run jobs and yield each as it ends.

    Args:
        jobs: in the order of their start.
        parallel: how many run at a time; they share the cores that this process may use equally.
        devices: numbers of the GPUs (CUDA_VISIBLE_DEVICES) that the jobs take in turn; empty for all of the machine.

    An interruption ends the running jobs and starts no others.
    """
    free: SimpleQueue[str | None] = SimpleQueue()
    for i in range(parallel):
        free.put(devices[i % len(devices)] if devices else None)
    threads = max(1, usable_cores() // parallel)
    running = set[subprocess.Popen[bytes]]()

    def work(job: CommandJob) -> Finished:
        device = free.get()
        try:
            return _run(job, _environment(threads, device), running)
        finally:
            free.put(device)

    with ThreadPoolExecutor(parallel) as pool:
        try:
            for future in as_completed([pool.submit(work, job) for job in jobs]):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # else the pool would start the remaining jobs first
            for process in list(running):
                process.terminate()


def last_lines(log: Path, n: int = 5) -> str:
    """Return the end of a log, for messages; "" where there is none."""
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-n:])


def _run(job: CommandJob, environment: Mapping[str, str], running: set[subprocess.Popen[bytes]]) -> Finished:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with (
        job.log.open("w", encoding="utf-8") as log,
        subprocess.Popen(job.command, cwd=job.folder, env=environment, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        running.add(process)
        try:
            status = process.wait()
        finally:
            running.discard(process)
    return Finished(job, status, time.monotonic() - start)


def _environment(threads: int, device: str | None) -> dict[str, str]:
    given = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return os.environ | given | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
