"""Map a function over files in order, in one or several threads, with a progress bar and bounded memory.

Threads are used rather than processes: reading, hashing and FFTs release Python's global lock, and no data are copied.
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
    """Number of cores that this process may use, at most 8."""
    return min(usable_cores(), 8)


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """Thread pool for all passes of a run, or None to work in the calling thread.

    Meanwhile torch uses a single thread per operation, since each worker does its own Fourier transforms.

    Args:
        workers: number of threads; 1 or less works in the calling thread.
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
    """Results in the order of the items; at most `ahead` are pending at a time, so memory stays bounded.

    Args:
        function: the function to apply.
        items: its arguments.
        pool: threads, or None for the calling thread.
        ahead: largest number of pending results; at least the number of threads.
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
    """Yield the results, and draw a progress bar on the error stream."""
    console = Console(stderr=True)
    yield from track(results, label, total, console=console, transient=True, disable=not console.is_terminal)
