"""Write files and folders atomically: they appear complete or not at all."""

import errno
import hashlib
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".partial_"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room on the disk, or for this user, or in a file
_swept: set[tuple[Path, int]] = set()


@contextmanager
def whole_or_not(path: Path, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to, with the same suffixes, and rename it at the end.

    An exception removes the temporary file and leaves an existing `path` unchanged. Several processes may write the same
    `path`: each has a temporary file of its own, and the last one to end has written it. What killed processes of this machine
    left in the folder is removed.

    Args:
        path: the file to write; its folder must exist.
        durable: wait until the file and its new name are on the disk.
    """
    temporary = _temporary(path)
    try:
        yield temporary
        if durable:
            _sync(temporary)
        temporary.replace(path)
        if durable:
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder_or_not(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path` to write to, and replace `path` by it at the end.

    An exception removes the temporary folder and leaves an existing `path` unchanged. A process that was killed between
    the two renames leaves the older folder under another name: it is put back first.
    """
    temporary, old = _temporary(path), path.with_name(f".old_{path.name}")
    if old.exists() and not path.exists():
        old.replace(path)
    shutil.rmtree(old, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if path.exists():
            path.replace(old)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """Yield a new folder, for this user alone, that is removed at the end; what killed processes left there is removed too."""
    temporary = _temporary(place / "scratch")
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """A name that no other writer takes and that says which process writes; the umask gives a file made there its mode."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    _sweep(path.parent, f"{PARTIAL}{host}-")
    return path.with_name(f"{PARTIAL}{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}_{path.name}")


def _sweep(folder: Path, start: str) -> None:
    """Remove the temporary files of processes that have ended, once for each folder and process."""
    if (folder, os.getpid()) in _swept or not folder.is_dir():
        return
    from psutil import pid_exists

    _swept.add((folder, os.getpid()))
    for left in (path for path in folder.iterdir() if path.name.startswith(start)):
        number = left.name.removeprefix(start).partition("-")[0]
        if number.isdigit() and not pid_exists(int(number)):
            with suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
