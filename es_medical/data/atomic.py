"""Write files and folders atomically: they appear complete or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_or_not(path: Path, durable: bool = False, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path` to write to, with the same suffixes, and rename it at the end.

    An exception removes the temporary file and leaves an existing `path` unchanged. Each `path` has one temporary name, so that
    files left by power cuts do not accumulate.

    Args:
        path: the file to write; its folder must exist.
        durable: wait until the file and its new name are on the disk.
        shared: use a unique temporary name, for a file that several processes may write at once.
    """
    temporary = _unique_name(path) if shared else path.with_name(f".partial_{path.name}")
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

    An exception removes the temporary folder and leaves an existing `path` unchanged.
    """
    temporary, old = path.with_name(f".partial_{path.name}"), path.with_name(f".old_{path.name}")
    for left in (temporary, old):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if path.exists():
            path.replace(old)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _unique_name(path: Path) -> Path:
    """A name that no other writer takes; the file gets the mode that the umask gives to all."""
    return path.with_name(f".partial_{uuid.uuid4().hex}{path.name}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
