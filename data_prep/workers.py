"""A map over files: in order, in this process or in several, with a progress bar and bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor | None]:
    """Processes that serve all passes of a run, or None to work in this one; they start when first used.

    Args:
        workers: number of processes; 1 or less works in this process.
    """
    if workers <= 1:
        yield None
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def ordered_map(function: Callable[[T], R], items: Sequence[T], pool: Executor | None, ahead: int = 4) -> Iterator[R]:
    """Results in the order of the items; at most `ahead` of them wait at a time, so memory stays bounded.

    Args:
        function: a module-level function (or a partial of one), so that it can be sent to a process.
        items: what to apply it to.
        pool: processes, or None for this one.
        ahead: results under way at a time; at least the number of processes.
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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        for result in results:
            progress.advance(task)
            yield result
