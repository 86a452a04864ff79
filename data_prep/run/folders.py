"""Which files of a folder are looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from data_prep.run.manifest import SUFFIXES, Outcome, PrepError, manifest_path


class Source(NamedTuple):
    """A file to look at: where it is, and its name below the source folder."""

    path: Path
    name: str


def find_sources(source: Path, out: Path) -> tuple[list[Source], list[Outcome]]:
    """The .h5 and .hdf5 files below a folder (or the one file given), and what else is there: stray files, broken links.

    Links to folders are followed; each folder is looked at once.

    Raises:
        PrepError: nothing there, or OUT is the source itself.
    """
    if not is_folder(source, out):
        return [Source(source, source.name)], []
    ours = own_files(out)
    found = sorted(walk(source, _remark), key=lambda item: item.name)
    checked = [item if isinstance(item, Outcome) else _check(item) for item in found]
    wanted = [item for item in checked if isinstance(item, Source) and os.path.realpath(item.path) not in ours]
    stray = [item for item in checked if isinstance(item, Outcome) and os.path.realpath(source / item.name) not in ours]
    if not wanted:
        failures = "".join(f"; {item.name}: {item.cause}" for item in stray if item.status == "failed")
        raise PrepError(f"no .h5 file below {source} ({len(stray)} others{failures})")
    return wanted, stray


def is_folder(source: Path, out: Path) -> bool:
    """Whether a source is a folder to walk through, and not one file.

    Raises:
        PrepError: nothing there, or OUT is the source itself.
    """
    if not source.exists():
        raise PrepError(f"no file or folder {source}")
    if source.is_file() and out.exists() and out.samefile(source):
        raise PrepError(f"output {out} is the source itself")
    return not source.is_file()


def digest_or_nothing(path: Path) -> str:
    """SHA-256 of a file, or an empty string when it cannot be read (whoever reads it then says why)."""
    from es_medical.data import file_digest

    try:
        return file_digest(path)
    except OSError:
        return ""


def own_files(out: Path) -> set[str]:
    """Real paths of the files that a run writes: they are no sources of the next one."""
    return {os.path.realpath(path) for path in (out, manifest_path(out))}


def walk(source: Path, remark: Callable[[Path], str] = lambda _: "") -> Iterator[Source | Outcome]:
    """Everything below a folder but its folders, and of those the ones that need a word.

    Links to folders are followed, after the folders themselves; each folder is looked at once.

    Args:
        source: the folder.
        remark: what else is to be said of a folder, or an empty string.
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
            if said := remark(path):
                yield Outcome(name, "skipped", said)
        yield from (Source(path, path.relative_to(source).as_posix()) for path in (Path(top) / name for name in files))
    for error in errors:
        name = Path(error.filename).relative_to(source).as_posix()
        yield Outcome(name, "failed", f"folder cannot be read ({error.strerror})")


def _remark(folder: Path) -> str:
    return "a folder, not an .h5 file" if _is_hdf5_name(folder) else ""


def _check(item: Source) -> Source | Outcome:
    if not _is_hdf5_name(item.path):
        return Outcome(item.name, "skipped", "not an .h5 file")
    try:
        item.path.stat()
    except OSError as error:
        broken = item.path.is_symlink()
        return Outcome(item.name, "failed", "broken link" if broken else f"cannot be read ({error.strerror})")
    return item if item.path.is_file() else Outcome(item.name, "skipped", "not a regular file")


def _is_hdf5_name(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
