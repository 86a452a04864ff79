"""Locks between processes that end with the process that holds them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

POLL = 0.05  # seconds


@contextmanager
def held(path: Path, patience: float) -> Iterator[None]:
    """Inside, this process alone holds the lock file `path`, which is made and stays.

    Args:
        path: The lock file.
        patience: Seconds to wait for another holder.

    Raises:
        TimeoutError: Another process has held it for `patience` seconds.
        OSError: `path` cannot be written.
    """
    with FileIO(path, "a") as stream:
        _wait(stream.fileno(), path, patience)
        try:
            yield
        finally:
            unlock(stream.fileno())


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock of an existing file, which is left as it is."""
    with FileIO(path, "r+") as stream:
        try:
            lock(stream.fileno())
        except BlockingIOError:
            return True
        unlock(stream.fileno())
    return False


def lock(descriptor: int) -> None:
    """Take the lock of an open file; nothing happens where the system or the file system has no locks.

    Raises:
        BlockingIOError: Somebody else holds it.
    """
    try:
        import fcntl
    except ImportError:  # not a POSIX system: no lock
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a network file system without locks
        return


def unlock(descriptor: int) -> None:
    """Explicitly: a forked data worker may hold the same open file."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _wait(descriptor: int, path: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            return lock(descriptor)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another process has held {path} for more than {patience:g} s") from error
        time.sleep(POLL)
