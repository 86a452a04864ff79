"""Find the files that a command reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

from data_prep.run.manifest import ADDRESS, SUFFIXES, Outcome, PrepError, manifest_path

T = TypeVar("T")
LED_TO = "a part of another file, which leads to it"


class Source(NamedTuple):
    """A file to read: its path, and its name below the source folder."""

    path: Path
    name: str


def find_sources(source: Path, out: Path, suffixes: frozenset[str] = frozenset(SUFFIXES)) -> tuple[list[Source], list[Outcome]]:
    """The .h5 and .hdf5 files below a folder (or the one file given), and outcomes of the rest: stray files, broken links.

    Args:
        source: the folder or file.
        out: the file that will be written.
        suffixes: ends of the names of the files to find, if not these.

    Raises:
        PrepError: no such source, no such file, or OUT is the source itself.
    """
    kind = kind_of(suffixes)
    check = partial(_check, suffixes=suffixes, kind=kind)
    wanted, stray = listed(source, out, check, lambda path: f"a folder, not an {kind}" if is_named(path, suffixes) else "")
    if not wanted:
        raise PrepError(f"no {kind} below {source} ({len(stray)} others{_failures(stray)})")
    return _without_parts(wanted, stray)


def find_files(source: Path, out: Path) -> tuple[list[Source], list[Outcome]]:
    """Every regular file below a folder (or the one file given) except OUT and its manifest, sorted by name.

    Returns:
        the files, and outcomes of the rest: broken links, folders that cannot be read.

    Raises:
        PrepError: no such source, no file in it, or OUT is the source itself.
    """
    files, stray = listed(source, out, regular)
    if not files:
        raise PrepError(f"no file below {source}{_failures(stray)}")
    return _without_parts(files, stray)


def listed(
    source: Path,
    out: Path,
    check: Callable[[Source], Source | Outcome],
    remark: Callable[[Path], str] = lambda _: "",
) -> tuple[list[Source], list[Outcome]]:
    """The files below a folder (or the one file given) that pass a check, sorted by name, and outcomes of the others.

    Links to folders are followed; each folder is entered once. OUT and its manifest are left out.

    Args:
        source: the folder or file.
        out: the file that will be written.
        check: returns the file itself, or the outcome that says why it is left out.
        remark: why a folder is skipped, if the user should know; else an empty string.

    Raises:
        PrepError: no such source, or OUT is the source itself.
    """
    if not is_folder(source, out):
        return [Source(source, source.name)], []
    ours = {os.path.realpath(path) for path in (out, manifest_path(out))}
    found = (item for item in walk(source, remark) if os.path.realpath(source / item.name) not in ours)
    checked = [item if isinstance(item, Outcome) else check(item) for item in sorted(found, key=lambda item: item.name)]
    return [item for item in checked if isinstance(item, Source)], [item for item in checked if isinstance(item, Outcome)]


def regular(item: Source) -> Source | Outcome:
    """The file itself, or the outcome of one that cannot be read."""
    try:
        item.path.stat()
    except OSError as error:
        broken = item.path.is_symlink()
        return Outcome(item.name, "failed", "broken link" if broken else f"cannot be read ({error.strerror})")
    return item if item.path.is_file() else Outcome(item.name, "skipped", "not a regular file")


def without_copies(files: Sequence[T], digest: Callable[[T], str], name: Callable[[T], str]) -> tuple[list[T], list[Outcome]]:
    """The first file of each content, and outcomes of its copies."""
    kept: dict[str, T] = {}
    for file in files:
        kept.setdefault(digest(file), file)
    copies = [file for file in files if kept[digest(file)] is not file]
    cause = "copy of another file"
    return list(kept.values()), [Outcome(name(file), "skipped", cause, f"({name(kept[digest(file)])})") for file in copies]


def is_folder(source: Path, out: Path) -> bool:
    """Whether a source is a folder (True) or a single file.

    Raises:
        PrepError: no such source, or OUT is the source itself.
    """
    if not source.exists():
        store = ": only fastmri reads from object stores" if ADDRESS.match(str(source)) else ""
        raise PrepError(f"no file or folder {source}{store}")
    if source.is_file() and out.exists() and out.samefile(source):
        raise PrepError(f"output {out} is the source itself")
    return not source.is_file()


def digest_or_nothing(path: Path) -> str:
    """SHA-256 of a file, or an empty string if it cannot be read (the error then appears when its content is read).

    That of an HDF5 file with a part of its data in other files is of the digests of all of them.
    """
    from es_medical.data import file_digest

    try:
        own, parts = file_digest(path), sorted(map(file_digest, _parts(path)))
    except OSError:
        return ""
    return hashlib.sha256("".join([own, *parts]).encode()).hexdigest() if parts else own


def no_digest(_: Path) -> str:
    """The digest of a file that ends each process that reads it: as of one that cannot be read."""
    return ""


def _without_parts(files: list[Source], outcomes: list[Outcome]) -> tuple[list[Source], list[Outcome]]:
    """The files but those that another HDF5 file leads to: their data are read with it, once; and the outcomes with theirs."""
    parts = {os.path.realpath(part) for item in files if is_named(item.path, SUFFIXES) for part in _parts(item.path)}
    if not parts:
        return files, outcomes
    led_to = [os.path.realpath(item.path) in parts for item in files]
    left_out = [Outcome(item.name, "skipped", LED_TO) for item, part in zip(files, led_to, strict=True) if part]
    return [item for item, part in zip(files, led_to, strict=True) if not part], outcomes + left_out


def _parts(path: Path) -> frozenset[Path]:
    """The other files that hold a part of an HDF5 file's data; none if it can't be opened, which is an error later."""
    from es_medical.data.hdf5 import links

    try:
        return links(path).files
    except Exception:  # h5py raises errors of many types for damaged bytes
        return frozenset()


def walk(source: Path, remark: Callable[[Path], str] = lambda _: "") -> Iterator[Source | Outcome]:
    """Every file below a folder, and outcomes of the folders that are not entered or need a remark.

    Links to folders are followed, after real folders; each folder is entered once.

    Args:
        source: the folder.
        remark: why a folder is skipped, or an empty string.
    """
    entered, errors = {os.path.realpath(source)}, list[OSError]()
    for top, folders, files in os.walk(source, onerror=errors.append, followlinks=True):
        inside = sorted((Path(top) / name for name in folders), key=lambda path: (path.is_symlink(), path.name))
        folders.clear()  # only those put back are entered
        for path in inside:
            name, real = path.relative_to(source).as_posix(), os.path.realpath(path)
            if real in entered:  # a loop of links would never end
                yield Outcome(name, "skipped", "folder already looked at under another name")
                continue
            entered.add(real)
            folders.append(path.name)
            if cause := remark(path):
                yield Outcome(name, "skipped", cause)
        yield from (Source(path, path.relative_to(source).as_posix()) for path in (Path(top) / name for name in files))
    for error in errors:
        name = Path(error.filename).relative_to(source).as_posix()
        yield Outcome(name, "failed", f"folder cannot be read ({error.strerror})")


def _check(item: Source, suffixes: Collection[str], kind: str) -> Source | Outcome:
    return regular(item) if is_named(item.path, suffixes) else Outcome(item.name, "skipped", f"not an {kind}")


def _failures(stray: Sequence[Outcome]) -> str:
    return "".join(f"; {outcome.name}: {outcome.cause}" for outcome in stray if outcome.status == "failed")


def kind_of(suffixes: frozenset[str]) -> str:
    """Files with such ends of their names, in words."""
    kinds = ", ".join(sorted(suffixes - SUFFIXES))
    return f".h5 file (or {kinds})" if kinds else ".h5 file"


def is_named(path: PurePath, suffixes: Collection[str]) -> bool:
    """Whether a name ends in one of these, and does not begin with a dot."""
    return path.suffix.lower() in suffixes and not path.name.startswith(".")
