"""What a command tells the runner: which sources there are, which slices to make of them, and what to say at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from data_prep.run.manifest import Outcome
from es_medical.data import Shapes, SliceHeader, SliceRecord

W = TypeVar("W")
COPY = "same pixels as another one: left out"


class Inventory(NamedTuple):
    """What there is to prepare.

    Attributes:
        sources: name of every source that is read -> SHA-256 of its bytes; shown by name, stored by salted hash.
        outcomes: of sources that no task reads, of stray and of broken files.
        identity: what decides the file beside the configuration: digests of sources, with their split where a folder says it.
        others: other names that the manifest may hold by their hash.
    """

    sources: Mapping[str, str]
    outcomes: Sequence[Outcome]
    identity: Sequence[str]
    others: Sequence[str] = ()

    def names(self) -> list[str]:
        """Every name that the manifest may hold by its hash."""
        return [*self.sources, *(outcome.name for outcome in self.outcomes), *self.others]

    def deciding(self) -> list[str]:
        """What decides the file beside the configuration; sources that cannot be read count by the cause."""
        return [*self.identity, *(outcome.cause for outcome in self.outcomes if outcome.status == "failed")]


class Task(NamedTuple, Generic[W]):
    """Some slices to make of one source; the tasks of a source follow each other.

    Attributes:
        source: its name.
        work: what `make` needs to know.
        file: the one file of the source that this task reads, by name: it fails alone. "" where a failure is the whole
            source's, of which then no slice is kept.
    """

    source: str
    work: W
    file: str = ""


class Made(NamedTuple):
    """What became of a task.

    Attributes:
        records: its slices, in order; what `Plan.measure` takes where there is one.
        notes: what a user should know of these slices, without names; counted for each source.
        failure: why there are none, without names or paths: it goes into the manifest.
        content: hash of what was made; of several tasks with the same one only the first is kept. "" for never a copy.
        detail: what else the terminal says of a failure; never stored.
    """

    records: Sequence[Any] = ()
    notes: Sequence[str] = ()
    failure: str = ""
    content: str = ""
    detail: str = ""


class Operator(Protocol):
    """What all slices of a file are measured by."""

    @property
    def with_image(self) -> bool:
        """Whether ground truth is stored."""

    def header(self) -> SliceHeader:
        """The header of the file, without configuration, lineage and digest."""


@dataclass
class Tally:
    """What became of the tasks of one source so far."""

    name: str
    splits: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    copies: int = 0
    broken: bool = False

    @property
    def n(self) -> int:
        """Number of slices."""
        return self.splits.total()

    def done(self, notes: Iterable[str], target: str) -> Outcome:
        """The outcome of a source with slices."""
        return Outcome(self.name, "done", "; ".join(notes), slices=self.n, target=target, split=", ".join(sorted(self.splits)))

    def shares(self, n: int, unit: str = "") -> list[str]:
        """The notes, each with the number of slices that it is for, of n."""
        return [f"{note} ({count} of {n}{unit})" for note, count in sorted(self.notes.items())]


def image_outcomes(tally: Tally, target: str, known: Mapping[str, Sequence[str]] | None = None) -> list[Outcome]:
    """What to say of a file of images: `known` are notes on files as a whole, by name."""
    if tally.failures:
        return tally.failures
    if tally.n == 0:
        return [Outcome(tally.name, *(("skipped", COPY) if tally.copies else ("failed", "no slice")))]
    notes = [note if count == tally.n else f"{note} ({count} of {tally.n})" for note, count in sorted(tally.notes.items())]
    return [tally.done([*(known or {}).get(tally.name, ()), *notes], target)]


class Preview(NamedTuple):
    """What a dry run says where slices need not be made for it: a line for each source, and what would be written."""

    lines: Sequence[str]
    slices: str


def _as_they_are(records: Sequence[Any]) -> Sequence[SliceRecord]:
    return records


@dataclass(frozen=True)
class Plan(Generic[W]):
    """What is to be done.

    Attributes:
        operator: what all slices are measured by.
        shapes: of a measurement and an image.
        make: the slices of one task; raises PrepError with the cause where there are none.
        tasks: in the order of the file.
        report: what to say of a source, from what became of its tasks.
        outcomes: of sources that were read for this plan and are not taken.
        coils: number of coils, 0 for measurements without a coil axis.
        measure: makes records of `batch` slices at a time, where that is quicker than one by one.
        batch: see `measure`.
        whole: sources of which every slice is taken: where their records lack a `data_range`, it is their common maximum.
        what: number and name of the sources, for the error where no slice could be made of them; "" counts files.
        preview: what a dry run says; None makes every slice and keeps none.
    """

    operator: Operator
    shapes: Shapes
    make: Callable[[W], Made]
    tasks: Sequence[Task[W]]
    report: Callable[[Tally], Iterable[Outcome]]
    outcomes: Sequence[Outcome] = ()
    coils: int = 0
    measure: Callable[[Sequence[Any]], Iterable[SliceRecord]] = _as_they_are
    batch: int = 1
    whole: frozenset[str] = frozenset()
    what: str = ""
    preview: Preview | None = None

    def __post_init__(self) -> None:
        if self.batch > 1 and not all(task.file for task in self.tasks):
            raise ValueError("slices measured together cannot be taken back: expected tasks whose files fail alone")

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the images."""
        return self.shapes.image[-2], self.shapes.image[-1]
