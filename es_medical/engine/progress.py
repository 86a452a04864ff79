"""Show how far an engine is: a bar with the time left in a terminal, a line now and then elsewhere."""

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from ignite.engine import Engine, Events

from es_medical.engine.distributed import rank

logger = logging.getLogger(__name__)

INTERVAL = 30.0
"""Seconds between two lines, where there is no terminal."""


class _Bars:
    """The bars on the screen: one for each engine that runs, as a validation inside a training."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._streams: list[tuple[logging.StreamHandler[Any], Any]] = []

    def add(self, title: str, total: int, done: int) -> int:
        if self._progress is None:
            self._start()
        return int(self._progress.add_task(title, total=total, completed=done))

    def set(self, task: int, done: int) -> None:
        self._progress.update(task, completed=done)

    def remove(self, task: int) -> None:
        self._progress.remove_task(task)
        if not self._progress.task_ids:
            self._progress.stop()
            self._progress = None
            for handler, stream in self._streams:
                handler.setStream(stream)

    def _start(self) -> None:
        from rich.console import Console
        from rich.file_proxy import FileProxy
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        found: Sequence[Any] = [*logging.getLogger("es_medical").handlers, *logging.getLogger().handlers]
        self._streams = [(one, one.stream) for one in found if getattr(one, "stream", None) in (sys.stdout, sys.stderr)]
        for handler, stream in self._streams:  # so that lines appear above the bars
            handler.setStream(FileProxy(console, stream))
        self._progress.start()


_bars = _Bars()


class Progress:
    """Shows the progress of an engine; the first process alone shows it.

    Args:
        engine: a trainer, whose steps of all epochs are counted, or an evaluator, whose batches are counted.
        title: what it does.

    Attributes:
        first: seconds to the first line, where there is no terminal.
    """

    def __init__(self, engine: Engine, title: str) -> None:
        self.title, self.first = title, INTERVAL
        self._task: int | None = None
        self._began = self._next = 0.0
        self._first = 0
        if rank() == 0:
            engine.add_event_handler(Events.STARTED, self._start)
            engine.add_event_handler(Events.ITERATION_COMPLETED, self._step)
            engine.add_event_handler(Events.COMPLETED, self.end)
            engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def _start(self, engine: Engine) -> None:
        self._began = time.monotonic()
        self._next = self._began + self.first
        self._first = engine.state.iteration
        if sys.stdout.isatty():
            self._task = _bars.add(self.title, self._total(engine), self._first)

    def _step(self, engine: Engine) -> None:
        if self._task is not None:
            _bars.set(self._task, engine.state.iteration)
        elif (now := time.monotonic()) >= self._next and engine.state.iteration < self._total(engine):
            self._next = now + INTERVAL
            done, total = engine.state.iteration, self._total(engine)
            left = (now - self._began) / max(done - self._first, 1) * (total - done)
            logger.info("%s: %d of %d, about %s left", self.title, done, total, duration(left))

    def end(self, engine: Engine) -> None:
        """Take the bar away."""
        if self._task is not None:
            _bars.remove(self._task)
            self._task = None

    def _fail(self, engine: Engine, error: BaseException) -> None:
        self.end(engine)
        raise error

    @staticmethod
    def _total(engine: Engine) -> int:
        epochs = engine.state.max_epochs if hasattr(engine, "optimizer") else 1  # MONAI's evaluators count trainings' epochs
        return int(engine.state.epoch_length or 0) * int(epochs or 1)


def duration(seconds: float) -> str:
    """Write a duration in the largest fitting unit.

    >>> duration(42), duration(200), duration(9000)
    ('42 s', '3 min', '2.5 h')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
