"""Which files of a folder are looked at."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from data_prep.manifest import SUFFIXES, Outcome, PrepError, manifest_path


class Source(NamedTuple):
    """A file to look at: where it is, and its name below the source folder."""

    path: Path
    name: str


def find_sources(source: Path, out: Path) -> tuple[list[Source], list[Outcome]]:
    """The .h5 and .hdf5 files below a folder (or the one file given), and the stray files beside them.

    Raises:
        PrepError: nothing there, or OUT is the source itself.
    """
    if not source.exists():
        raise PrepError(f"no file or folder {source}")
    if source.is_file():
        if out.exists() and out.samefile(source):
            raise PrepError(f"output {out} is the source itself")
        return [Source(source, source.name)], []
    ours = {out.resolve(), manifest_path(out).resolve()}
    found = [Source(path, path.relative_to(source).as_posix()) for path in sorted(source.rglob("*"))]
    files = [item for item in found if item.path.is_file() and item.path.resolve() not in ours]
    wanted = [item for item in files if _is_hdf5_name(item.path)]
    stray = [Outcome(item.name, "skipped", "not an .h5 file") for item in files if not _is_hdf5_name(item.path)]
    if not wanted:
        raise PrepError(f"no .h5 file below {source} ({len(stray)} other files)")
    return wanted, stray


def _is_hdf5_name(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
