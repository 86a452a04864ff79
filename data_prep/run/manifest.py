"""Record the outcome of every source file: pseudonyms, outcomes, the table in the terminal, the manifest next to the output."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from rich.console import Console

    from es_medical.data import SliceHeader

Status = Literal["done", "skipped", "failed"]
RECIPE = 3  # increased when the same options give a different file, so that an old file does not count as up to date
MAX_SEED = 2**32 - 1  # torch's generator ignores higher bits: two seeds would give the same mask
SUFFIXES = {".h5", ".hdf5"}
OMIT_NONE = {"omit none": True}  # metadata of an option added later: None is not stored, so that older files stay up to date
ADDRESS = re.compile("[a-z][a-z0-9+.-]+:/")  # of an object store; also where `Path` has taken a slash away
LISTED = 30  # most rows of the table, so that it stays readable for a thousand stray files


class PrepError(ValueError):
    """A file cannot be used.

    Args:
        cause: goes into the manifest: it must hold no path, name or patient detail.
        detail: further text for the terminal, such as a name; never stored.
    """

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause)
        self.detail = detail


class SkipError(PrepError):
    """The file is intact, but not meant for this data set."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one source file.

    Attributes:
        name: path below the source folder; shown in the terminal, never stored.
        status: ``done``, ``skipped`` or ``failed``.
        cause: why, without identifiers.
        detail: further text for the terminal; never stored.
        slices: number of slices written.
        target: where the ground truth comes from, for example ``reconstruction_esc``.
        split: split of the file's subject.
        volumes: hashes of its volumes in the slice file, or of its images without a volume; none for very many.
    """

    name: str
    status: Status
    cause: str = ""
    detail: str = ""
    slices: int = 0
    target: str = ""
    split: str = ""
    volumes: Sequence[str] = ()


REREAD = "when its slices were made, its store no longer gave what was checked: try again"
LOST = "the process that reads it ends again and again: not enough memory, or a file that crashes its reader"


class Named(Protocol):
    """A source file."""

    @property
    def name(self) -> str:
        """Its path below the source folder."""


def lost_file(source: Named) -> Outcome:
    """The outcome of a file at which one process after the other ends."""
    return Outcome(source.name, "failed", LOST)


@dataclass(frozen=True)
class Pseudonyms:
    """Salted hashes: HMAC-SHA256 of the parts, 16 hexadecimal digits.

    Without the salt a hash does not reveal whether a known patient number or file is in the data set.

    >>> Pseudonyms("pepper").of("subject", "42") == Pseudonyms("pepper").of("subject", "42")
    True
    """

    salt: str

    def of(self, *parts: str | int) -> str:
        """Hash the parts; ("ab", "c") and ("a", "bc") differ."""
        return hmac.new(self.salt.encode(), json.dumps(parts).encode(), hashlib.sha256).hexdigest()[:16]


def default_salt(seed: int) -> str:
    """The salt used if none is given: derived from the seed, and so not secret."""
    return f"es_medical/{seed}"


def provenance(pseudonyms: Pseudonyms, configuration: Mapping[str, Any], digests: Iterable[str]) -> str:
    """Digest of a configuration and of the bytes of all sources; independent of their names, folder and order."""
    return pseudonyms.of("provenance", json.dumps(dict(configuration), sort_keys=True), *sorted(digests))


def output_path(out: Path, default_name: str) -> Path:
    """The file to write: OUT itself if it ends in .h5 or .hdf5, else `default_name` in the folder OUT.

    Raises:
        PrepError: OUT ends in another suffix, or is an address.
    """
    if ADDRESS.match(str(out)):
        raise PrepError(f"output {out}: expected a place on a disk")
    if out.is_dir() or not out.suffix:
        return out / default_name
    if out.suffix.lower() not in SUFFIXES:
        raise PrepError(f"output {out.name}: expected a name ending in .h5 or .hdf5, or a folder")
    return out


def check_replaceable(out: Path, overwrite: bool) -> None:
    """Check that OUT may be replaced: it is a slice file of es_medical, does not exist, or `overwrite` is set.

    Raises:
        PrepError: OUT exists, is no slice file, and `overwrite` is False.
    """
    if out.exists() and not overwrite and stored_digest(out) is None:
        raise PrepError(f"{out} exists and is no slice file of es_medical: give another name, or --overwrite")


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Keep other runs from writing OUT: they would take each other's unfinished file away. See `take_lock`.

    Raises:
        PrepError: another run is writing it.
    """
    from es_medical.tracking.spool import take_lock

    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_name(f".{out.name}.lock")
    try:
        lock = take_lock(path, 0.0)
    except TimeoutError:
        raise PrepError(f"another run is writing {out}: wait until it ends") from None
    try:
        yield
    finally:
        with suppress(OSError):  # a read-only folder has none
            path.unlink()
        lock.release()


def stored_digest(out: Path) -> str | None:
    """Digest of the slice file at OUT, or None if there is none."""
    from es_medical.data import read_header

    try:
        return read_header(out).digest
    except (OSError, ValueError, KeyError):
        return None


def manifest_path(out: Path) -> Path:
    """`demo.h5` -> `demo.manifest.json`."""
    return out.with_suffix(".manifest.json")


def write_manifest(out: Path, header: SliceHeader, outcomes: Iterable[Outcome], pseudonyms: Pseudonyms) -> None:
    """Write the manifest next to a finished slice file, atomically: counts, configuration, and each source by its hash."""
    from es_medical.data.atomic import whole_or_not

    content = {
        "schema": 1,
        "tool_version": header.tool_version,
        "digest": header.digest,
        "slices": {"total": header.n, **header.splits},
        "configuration": dict(header.configuration),
        "sources": sorted((_entry(outcome, pseudonyms) for outcome in outcomes), key=lambda entry: entry["source"]),
    }
    with whole_or_not(manifest_path(out), durable=True) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _entry(outcome: Outcome, pseudonyms: Pseudonyms) -> dict[str, Any]:
    fields = asdict(outcome)
    del fields["name"], fields["detail"]
    return {"source": source_hash(outcome.name, pseudonyms)} | fields


def source_hash(name: str, pseudonyms: Pseudonyms) -> str:
    """Salted hash of a source's name below the source folder."""
    return pseudonyms.of("source", name)


def earlier_outcomes(out: Path, digest: str, names: Iterable[str], pseudonyms: Pseudonyms) -> list[Outcome] | None:
    """Outcomes of the run that made OUT from the same input and configuration, or None if OUT must be made anew."""
    if stored_digest(out) != digest:
        return None
    try:
        content = json.loads(manifest_path(out).read_text(encoding="utf-8"))
        if content["digest"] != digest or any(entry["cause"] == REREAD for entry in content["sources"]):
            return None
        name_of = {source_hash(name, pseudonyms): name for name in names}
        return [Outcome(name_of.get(entry.pop("source"), "?"), **entry) for entry in content["sources"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def announce_changes(out: Path, configuration: Mapping[str, Any], console: Console) -> None:
    """Print which options differ from those of the file that is about to be replaced."""
    from es_medical.data import read_header

    try:
        old = read_header(out).configuration
    except (OSError, ValueError, KeyError):
        return
    configuration = json.loads(json.dumps(dict(configuration)))  # tuples become lists
    changed = [
        f"{name} {old.get(name)} -> {configuration.get(name)}"
        for name in sorted({*old, *configuration})
        if old.get(name) != configuration.get(name)
    ]
    console.print(f"made anew: {', '.join(changed) or 'other input, salt, or asked for'}", markup=False, soft_wrap=True)


def split_counts(splits: Mapping[str, int]) -> str:
    """Slices of each split, in words for the terminal.

    >>> split_counts({"test": 2, "train": 10})
    'train 10 · val 0 · test 2'
    """
    return " · ".join(f"{name} {splits.get(name, 0)}" for name in ("train", "val", "test"))


def print_summary(outcomes: Iterable[Outcome], console: Console) -> None:
    """Print counts, and each file that was not done, or has a note, with the cause."""
    from rich.markup import escape
    from rich.table import Table

    outcomes = list(outcomes)
    count = Counter(outcome.status for outcome in outcomes)
    table = Table(
        "file",
        "status",
        "cause",
        title="done {done} · skipped {skipped} · failed {failed}".format(
            done=count["done"], skipped=count["skipped"], failed=count["failed"]
        ),
    )
    notable = sorted((o for o in outcomes if o.status != "done" or o.cause), key=lambda o: (o.status != "failed", o.name))
    for outcome in notable[:LISTED]:
        cause = f"{outcome.cause} {outcome.detail}".strip()
        table.add_row(escape(outcome.name), outcome.status, escape(cause))
    if len(notable) > LISTED:
        table.add_row(f"… and {len(notable) - LISTED} more", "", "all are in the manifest")
    if notable:
        console.print(table)
    else:
        console.print(str(table.title))
