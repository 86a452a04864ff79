"""How a process ends, and what status its run then has."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import NoReturn


class TerminatedError(SystemExit):
    """SIGTERM, raised as an exception so that files are closed and the run is marked; exit status 143."""


@contextmanager
def terminate_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM raises `TerminatedError` in the main thread; elsewhere than the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def status_of(error: BaseException | None) -> str:
    """MLflow's status of a run that ended with `error`: FINISHED, KILLED (Ctrl-C, SIGTERM) or FAILED."""
    if error is None or (type(error) is SystemExit and error.code in (None, 0)):
        return "FINISHED"
    return "KILLED" if isinstance(error, KeyboardInterrupt | TerminatedError) else "FAILED"


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise TerminatedError(128 + number)


Traceback = TracebackType | None
