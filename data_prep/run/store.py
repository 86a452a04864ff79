"""Object stores (`s3://bucket/folder`, whatever fsspec knows): list the objects, and copy each to this machine to read it.

Readers get a file, not fsspec's file-like object: h5py holds its one lock while such an object waits for the network, and only
a whole copy has a SHA-256, which says whether an object that is read twice is still the same.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

from data_prep.run.folders import digest_or_nothing, is_named, kind_of
from data_prep.run.manifest import REREAD, Outcome, PrepError
from es_medical.data.atomic import FULL, scratch_folder

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

STATE = {"size", "etag", "mtime", "lastmodified", "last-modified", "updated", "generation", "created"}  # in lower case
UNREADABLE, NO_ROOM = "can't be read from its store", "there is no room for its copy: set TMPDIR to a larger disk"


class Stored(NamedTuple):
    """An object.

    Attributes:
        address: where it is, such as `s3://bucket/folder/a.h5`.
        name: below the address that was given.
        size: in bytes, None where the store doesn't list it.
    """

    address: str
    name: str
    size: int | None


class Store(NamedTuple):
    """The objects at or below an address, sorted by name.

    Attributes:
        address: the address.
        objects: the objects.
        alone: whether the address is that of one object.
    """

    address: str
    objects: tuple[Stored, ...]
    alone: bool = False

    def __str__(self) -> str:
        return shown(self.address)


def shown(text: str) -> str:
    """A text without what follows the `?` of an address: it may be a signature."""
    return re.sub(r"\?\S+", "", text)


def amount(objects: Sequence[Stored]) -> str:
    """How many objects, and of how many bytes where the store says it."""
    sizes = [one.size for one in objects if one.size is not None]
    return f"{len(objects)} objects" + (f", {sum(sizes) / 1e9:.3g} GB" if len(sizes) == len(objects) else "")


def place(source: str) -> Path | Store:
    """A file or folder of this machine, or the objects at or below an address.

    Raises:
        PrepError: there are none, they may not be listed, a package is missing, or the address holds a password.
    """
    if "://" not in source:
        return Path(source)
    if "::" in source or urlsplit(source).password:
        raise PrepError("address of the source: expected protocol://PLACE; names and passwords come from the environment")
    fs, root = _opened(source)
    if fs.protocol == ("file", "local"):
        return Path(root)
    try:
        found = fs.find(root, detail=True)
        if not found:
            fs.info(root)  # says why
    except FileNotFoundError as error:
        raise PrepError(f"no object at or below {shown(source)} ({_reason(error)})") from error
    except Exception as error:  # each store raises its own
        raise PrepError(f"{shown(source)}: {_reason(error)}") from error
    files = {name: info for name, info in found.items() if info.get("type", "file") == "file" and not name.endswith("/")}
    if not files:
        raise PrepError(f"no object at or below {shown(source)}")
    names = {name: name.removeprefix(root).lstrip("/") or shown(PurePosixPath(name).name) for name in files}
    objects = (Stored(fs.unstrip_protocol(name), names[name], info.get("size")) for name, info in files.items())
    return Store(source, tuple(sorted(objects, key=lambda one: one.name)), [*files] == [root])


def find_objects(store: Store, suffixes: frozenset[str]) -> tuple[list[Stored], list[Outcome]]:
    """The objects with such ends of their names (or the one given), and outcomes of the others.

    Raises:
        PrepError: there is none.
    """
    kind, wanted, stray = kind_of(suffixes), list[Stored](), list[Outcome]()
    for one in store.objects:
        if store.alone or is_named(PurePosixPath(one.name), suffixes):
            wanted.append(one)
        else:
            stray.append(Outcome(one.name, "skipped", f"not an {kind}"))
    if not wanted:
        raise PrepError(f"no {kind} below {store} ({len(stray)} others)")
    return wanted, stray


@contextmanager
def local(source: Path | Stored, digest: str = "") -> Iterator[Path]:
    """A file as it is; of an object a copy on this machine, which is kept as long as `copies_kept` says.

    Args:
        source: the file or object.
        digest: SHA-256 that the copy must have, as an earlier one had.

    Raises:
        PrepError: the object can't be read, or changed.
    """
    if isinstance(source, Path):
        yield source
        return
    with copies_kept() as copies, ExitStack() as held:
        try:
            copy = held.enter_context(copies.of(source))
        except PrepError as error:
            raise (PrepError(REREAD, f"({error} {error.detail})") if digest else error) from error
        if digest and copy.digest != digest:
            raise PrepError(REREAD)
        yield copy.path


@dataclass
class _Copy:
    path: Path
    size: int
    digest: str = ""  # "" until it is there
    users: int = 0
    lock: Lock = field(default_factory=Lock)


class Copies:
    """Copies of objects in a folder: those in use, the last one, and older ones while all take half of what was free."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.room = folder, shutil.disk_usage(folder).free // 2
        self._copies, self._lock = dict[Stored, _Copy](), Lock()

    @contextmanager
    def of(self, stored: Stored) -> Iterator[_Copy]:
        """The copy of an object, which is there until the end. Raises PrepError if the object can't be read."""
        with self._lock:
            new = _Copy(self.folder / f"{uuid4().hex}{PurePosixPath(stored.name).suffix}", stored.size or 0)
            copy = self._copies.pop(stored, new)
            self._copies[stored] = copy  # at the end: used last
            copy.users += 1
            self._make_room()
        try:
            with copy.lock:
                if not copy.digest:
                    copy.digest = _fetched(stored, copy.path)
                    copy.size = copy.path.stat().st_size
            yield copy
        finally:
            with self._lock:
                copy.users -= 1

    def _make_room(self) -> None:
        excess = sum(copy.size for copy in self._copies.values()) - self.room
        for stored, copy in [*self._copies.items()][:-1]:
            if excess > 0 and copy.users == 0:
                copy.path.unlink(missing_ok=True)
                excess -= self._copies.pop(stored).size


class _Kept:
    """The copies of this process, and how many hold them."""

    copies: Copies
    holders = 0
    opened = ExitStack()
    lock = Lock()


@contextmanager
def copies_kept() -> Iterator[Copies]:
    """Keep copies of objects for later use by any thread, until all who asked for it have ended; see `Copies`."""
    with _Kept.lock:
        if _Kept.holders == 0:
            _Kept.copies = Copies(_Kept.opened.enter_context(scratch_folder(Path(tempfile.gettempdir()))))
        _Kept.holders += 1
    try:
        yield _Kept.copies
    finally:
        with _Kept.lock:
            _Kept.holders -= 1
            if _Kept.holders == 0:
                _Kept.opened.close()


def _opened(address: str) -> tuple[AbstractFileSystem, str]:
    """The file system of an address, and the name of the address in it."""
    from fsspec.core import url_to_fs

    try:
        fs, name = url_to_fs(address, use_listings_cache=False)
    except ImportError as error:
        install = "pip install 'es_medical[s3]'" if address.startswith(("s3:", "s3a:")) else error
        raise PrepError(f"{shown(address)} needs a package: {install}") from error
    except Exception as error:  # as in `place`
        raise PrepError(f"{shown(address)}: {_reason(error)}") from error
    return fs, name


def _fetched(stored: Stored, path: Path) -> str:
    """Copy an object to a file; return its SHA-256. Raises PrepError if that fails, or it changed meanwhile."""
    try:
        fs, name = _opened(stored.address)
        before = _state(fs, name)
        fs.get_file(name, str(path))
        changed = _state(fs, name) != before or before.get("size") not in (None, path.stat().st_size)
    except Exception as error:  # as in `place`
        path.unlink(missing_ok=True)
        full = isinstance(error, OSError) and error.errno in FULL
        raise PrepError(NO_ROOM if full else UNREADABLE, f"({_reason(error)})") from error
    if changed:
        path.unlink()
        raise PrepError("it changed while it was read from its store")
    return digest_or_nothing(path)


def _state(fs: AbstractFileSystem, name: str) -> dict[str, Any]:
    """What tells two versions of an object apart, as far as its store says it."""
    return {key.lower(): value for key, value in fs.info(name).items() if key.lower() in STATE}


def _reason(error: Exception) -> str:
    """What happened; a web server's 403, which fsspec calls FileNotFoundError, is only in the cause."""
    return shown(f"{type(error).__name__}: {error.__cause__ or error}")
