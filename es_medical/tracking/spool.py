"""The events of one run on the disk, in order, until the tracking server has them."""

import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]  # a JSON object; "kind" says how it is sent, "time" is in ms since 1970


class SpoolBusyError(RuntimeError):
    """Another process is writing or sending this spool."""


class Line(NamedTuple):
    """One event and the byte at which the next one begins."""

    event: Event
    end: int


@dataclass(frozen=True)
class State:
    """How far a spool is sent.

    Attributes:
        key: Names the run before the server has given it an id; stands on the run as a tag.
        sent: Bytes of `events.jsonl` that the server has.
        uri: The server that has them.
        run_id: The server's own id of the run, once known.
        experiment_id: The server's id of the experiment, once known.
        refused: Number of events that the server will never take.
    """

    key: str
    sent: int = 0
    uri: str | None = None
    run_id: str | None = None
    experiment_id: str | None = None
    refused: int = 0


class Spool:
    """A folder with `events.jsonl` (one event a line), `state.json` (how far they are sent), `files/` (what waits).

    Whatever is appended survives the death of the process. One process at a time has it open.

    Args:
        folder: Made if absent.

    Raises:
        SpoolBusyError: Another process has the folder open.
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path = self.folder / "events.jsonl"
        self._stream = _open_locked(self._path)
        self._append_lock = threading.Lock()
        _drop_torn_line(self._path)
        self.keep(read_state(self.folder) or State(key=uuid.uuid4().hex))

    @property
    def state(self) -> State:
        """How far the events are sent."""
        return self._state

    def keep(self, state: State) -> None:
        """Write the new state to `state.json`, atomically."""
        temporary = self.folder / "state.json.part"
        temporary.write_text(json.dumps(asdict(state)))
        temporary.replace(self.folder / "state.json")
        self._state = state

    def append(self, event: Event) -> None:
        """Put one event behind the others."""
        line = json.dumps(event, allow_nan=False).encode() + b"\n"
        with self._append_lock:
            self._stream.write(line)

    def pending(self, limit: int) -> list[Line]:
        """The next events to send, at most `limit`."""
        return [line for _, line in zip(range(limit), self._lines(self._state.sent), strict=False)]

    def count(self) -> int:
        """How many events wait."""
        return sum(1 for _ in self._lines(self._state.sent))

    def last(self) -> Event | None:
        """The newest event of all."""
        newest = None
        for line in self._lines(0):
            newest = line.event
        return newest

    def new_file(self, name: str) -> Path:
        """A path in `files/` whose last part is `name` and that nothing else uses; its folder exists."""
        folder = self.folder / "files" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder / name

    def relative(self, path: Path) -> str:
        """The name under which an event mentions a file of `files/`."""
        return path.relative_to(self.folder).as_posix()

    def discard_files(self, events: Iterable[Event]) -> None:
        """Delete the files that these events carried."""
        for event in events:
            if "file" in event:
                shutil.rmtree((self.folder / event["file"]).parent, ignore_errors=True)

    def close(self) -> None:
        """Let other processes have the folder."""
        if not self._stream.closed:
            unlock(self._stream.fileno())
            self._stream.close()

    def remove(self) -> None:
        """Delete the folder: everything is sent."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # the parent is ours alone only if it is empty now
            self.folder.parent.rmdir()

    def _lines(self, start: int) -> Iterator[Line]:
        with self._path.open("rb") as stream:
            stream.seek(start)
            end = start
            while (line := stream.readline()).endswith(b"\n"):
                end += len(line)
                yield Line(_parse(line), end)


def read_state(folder: Path) -> State | None:
    """The state of a spool without opening it; None where there is no spool."""
    path = folder / "state.json"
    return State(**json.loads(path.read_text())) if path.is_file() else None


def spools(folder: Path) -> list[Path]:
    """The spool at `folder` itself, or those right inside it, by name."""
    candidates = [folder, *sorted(folder.iterdir())] if folder.is_dir() else []
    return [path for path in candidates if (path / "state.json").is_file()]


def abandoned(folder: Path, mine: Path) -> list[Path]:
    """The spools in `folder`, other than `mine`, that no living process has open."""
    others = [path for path in spools(folder) if path.resolve() != mine]
    return [path for path in others if (path / "events.jsonl").is_file() and not is_held(path / "events.jsonl")]


def _parse(line: bytes) -> Event:
    try:
        return json.loads(line)
    except ValueError:
        return {"kind": "unreadable", "text": line.decode(errors="replace")}


def _drop_torn_line(path: Path) -> None:
    """Cut what a dying process wrote of its last line."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _open_locked(path: Path) -> FileIO:
    stream = FileIO(path, "a")
    try:
        lock(stream.fileno())
    except BlockingIOError as error:
        stream.close()
        raise SpoolBusyError(f"{path.parent} is in use by another process: let it end, or stop it, first") from error
    return stream


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
