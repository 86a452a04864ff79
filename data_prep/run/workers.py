"""A map over files: in order, in one thread or in several, with a progress bar and bounded memory.

Threads and not processes: reading, hashing and Fourier transforms release Python's lock, and nothing has to be copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from es_medical.cores import usable_cores

T = TypeVar("T")
R = TypeVar("R")


def default_workers() -> int:
    """As many threads as this process may use cores, 8 at most."""
    return min(usable_cores(), 8)


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """Threads for all passes of a run, or None to work in this one.

    Each does its own Fourier transforms: torch uses one thread for each of them meanwhile.

    Args:
        workers: number of threads; 1 or less works in this one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if workers <= 1:
            yield None
            return
        pool = ThreadPoolExecutor(workers)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    finally:
        torch.set_num_threads(threads)


def ordered_map(function: Callable[[T], R], items: Sequence[T], pool: Executor | None, ahead: int = 4) -> Iterator[R]:
    """Results in the order of the items; at most `ahead` of them wait at a time, so memory stays bounded.

    Args:
        function: what to apply.
        items: what to apply it to.
        pool: threads, or None for this one.
        ahead: results under way at a time; at least the number of threads.
    """
    if pool is None:
        yield from map(function, items)
        return
    rest = iter(items)
    waiting: deque[Future[R]] = deque(pool.submit(function, item) for item in islice(rest, ahead))
    while waiting:
        result = waiting.popleft().result()
        waiting.extend(pool.submit(function, item) for item in islice(rest, 1))
        yield result


def tracked(results: Iterator[R], total: int, label: str) -> Iterator[R]:
    """Passes results on and draws a progress bar on the error stream."""
    console = Console(stderr=True)
    yield from track(results, label, total, console=console, transient=True, disable=not console.is_terminal)
