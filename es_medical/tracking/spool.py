"""Store the events of one run on disk, in order, until the tracking server has them."""

import errno
import json
import os
import shutil
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

EVENTS, STATE, LOCK = "events.jsonl", "state.json", "lock"

Event = dict[str, Any]  # a JSON object; "kind" selects how it is sent, "time" is in ms since 1970


def now() -> int:
    """Return the time in milliseconds since 1970, as in MLflow."""
    return time.time_ns() // 1_000_000


class SpoolBusyError(RuntimeError):
    """Another process is writing or sending this spool."""


class Line(NamedTuple):
    """One event and the byte at which the next one begins."""

    event: Event
    end: int


@dataclass(frozen=True)
class State:
    """How much of a spool has been sent.

    Attributes:
        key: Identifies the run before the server assigns an id; a tag of the run.
        sent: Bytes of `events.jsonl` that the server has.
        uri: The server that has them.
        run_id: The server's id of the run, once known.
        experiment_id: The server's id of the experiment, once known.
        refused: Number of events that the server refused for good.
    """

    key: str
    sent: int = 0
    uri: str | None = None
    run_id: str | None = None
    experiment_id: str | None = None
    refused: int = 0


class Spool:
    """A folder with `events.jsonl` (one event per line), `state.json` (how many are sent) and `files/` (files to send).

    Appended events survive the death of the process. Only one process at a time can open the folder. A checksum stands behind
    each event and in the state: what was changed on the disk is not sent.

    Args:
        folder: Created if absent.
        key: Key of a new spool: that of the run that it continues; None for a new run.

    Raises:
        SpoolBusyError: Another process has the folder open.
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, key: str | None = None) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = take_lock(self.folder / LOCK, 0.0)
        except TimeoutError as error:
            raise SpoolBusyError(f"{self.folder} is in use by another process: let it end, or stop it, first") from error
        try:
            state = read_state(self.folder)
        except ValueError:
            self._lock.release()
            raise
        self._path = self.folder / EVENTS
        self._stream = FileIO(self._path, "a")  # unbuffered
        self._append_lock = threading.Lock()
        _drop_torn_line(self._path)
        self.keep(state or State(key=key or uuid.uuid4().hex))

    @property
    def state(self) -> State:
        """How much of the events has been sent."""
        return self._state

    def keep(self, state: State) -> None:
        """Write the new state to `state.json`, atomically."""
        _write_state(self.folder, state)
        self._state = state

    def append(self, event: Event) -> None:
        """Append one event, whole or not at all."""
        content = json.dumps(event, allow_nan=False).encode()
        line = b"%b %08x\n" % (content, zlib.crc32(content))
        with self._append_lock:
            end = os.fstat(self._stream.fileno()).st_size
            try:
                if self._stream.write(line) != len(line):  # the disk was filled in the middle of the line
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            except OSError:
                os.truncate(self._path, end)
                raise

    def pending(self, limit: int) -> list[Line]:
        """Return the next events to send, at most `limit`."""
        return list(islice(self._lines(self._state.sent), limit))

    def count(self) -> int:
        """Return the number of unsent events."""
        return sum(1 for _ in self._lines(self._state.sent))

    def last(self, *kinds: str) -> Event | None:
        """Return the newest event, of these kinds if any are given, sent or not; None if there is none."""
        found = (line.event for line in self._lines(0) if not kinds or line.event["kind"] in kinds)
        return next(iter(deque(found, maxlen=1)), None)

    def new_file(self, name: str) -> Path:
        """Return an unused path in `files/` with last part `name`, in a new folder."""
        folder = self.folder / "files" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder / name

    def discard_files(self, events: Iterable[Event]) -> None:
        """Delete the files of these events."""
        for event in events:
            if "file" in event:
                shutil.rmtree((self.folder / event["file"]).parent, ignore_errors=True)

    def close(self) -> None:
        """Close the folder, so that other processes can open it."""
        self._stream.close()
        self._lock.release()

    def remove(self) -> None:
        """Delete the folder, once everything is sent."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # also remove the parent if it is now empty
            self.folder.parent.rmdir()

    def _lines(self, start: int) -> Iterator[Line]:
        with self._path.open("rb") as stream:
            stream.seek(start)
            end = start
            while (line := stream.readline()).endswith(b"\n"):
                end += len(line)
                yield Line(_parse(line), end)


def read_state(folder: Path) -> State | None:
    """Read the state of a spool without opening it; None if there is no spool.

    Raises:
        ValueError: The file is damaged.
    """
    path = folder / STATE
    if not path.is_file():
        return None
    try:
        fields = json.loads(path.read_text())
        if fields.pop("checksum", _checksum(fields)) != _checksum(fields):
            raise ValueError("not what was written")
        return State(**fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): without it, nobody knows what the server has. The entries are in {folder / EVENTS}; "
            "move the folder away"
        ) from error


def _write_state(folder: Path, state: State) -> None:
    from es_medical.data.atomic import whole_or_not  # here because es_medical.data loads torch

    with whole_or_not(folder / STATE) as part:
        fields = asdict(state)
        part.write_text(json.dumps(fields | {"checksum": _checksum(fields)}))


def files_checksum(path: Path) -> int:
    """Checksum of a file, or of the files in a folder but for MLmodel, which is completed when the model is sent."""
    files = sorted(item for item in path.rglob("*") if item.is_file() and item.name != "MLmodel") if path.is_dir() else [path]
    found = 0
    for file in files:
        with file.open("rb") as stream:
            while part := stream.read(2**20):
                found = zlib.crc32(part, found)
    return found


def _checksum(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())


def spools(folder: Path) -> list[Path]:
    """Return the spools at `folder` and directly inside it, sorted by name."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
    return [path for path in (folder, *inside) if (path / STATE).is_file()]


def open_spool(folder: Path, run_id: str | None) -> Spool:
    """Open the unsent spool of the run to continue, or a new one, with the run's id as key: its `resume_id` stays the same.

    A process that is killed meanwhile leaves no folder that is not a spool: the next new one removes it.
    """
    from es_medical.data.atomic import whole_folder_or_not  # here because es_medical.data loads torch

    for path in spools(folder) if run_id is not None else []:
        with suppress(SpoolBusyError, ValueError):  # a damaged one is another run's, or lost: told when it is sent
            state = read_state(path)
            if state is not None and run_id in (state.key, state.run_id):
                return Spool(path)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    with whole_folder_or_not(path) as made:
        _write_state(made, State(key=run_id or uuid.uuid4().hex))
    return Spool(path)


def abandoned(folder: Path, mine: Path) -> list[Path]:
    """Return the spools in `folder`, other than `mine`, that no running process has open."""
    return [path for path in spools(folder) if path.resolve() != mine and not is_held(path / LOCK)]


def _parse(line: bytes) -> Event:
    content, _, checksum = line.rstrip(b"\n").rpartition(b" ")
    if line.endswith(b"}\n"):  # of an older version
        content, checksum = line, b"%08x" % zlib.crc32(line)
    try:
        if b"%08x" % zlib.crc32(content) == checksum:
            return json.loads(content)
    except ValueError:
        pass
    return {"kind": "unreadable", "text": line.decode(errors="replace")}


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, left by a killed process."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def take_lock(path: Path, patience: float) -> FileLock:
    """Acquire the lock file `path`, created if absent; without one on a file system without locks or in a read-only folder.

    Args:
        path: The lock file; it is not deleted.
        patience: Seconds to wait for another holder.

    Returns:
        The lock; the caller must release it.

    Raises:
        TimeoutError: Another holder kept it for `patience` seconds.
    """
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=patience)
    except Timeout as error:
        raise TimeoutError(f"another process has held {path} for more than {patience:g} s") from error
    except (OSError, NotImplementedError):
        pass
    return lock


def is_held(path: Path) -> bool:
    """Whether another holder has the lock file `path`."""
    try:
        take_lock(path, 0.0).release()
    except TimeoutError:
        return True
    return False
