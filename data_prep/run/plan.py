"""What a command gives to the runner: the sources, the slices to make from them, and what to report at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from data_prep.run.manifest import Outcome, PrepError
from es_medical.data import Shapes, SliceHeader, SliceRecord

W = TypeVar("W")
COPY = "same pixels as another one: left out"


class Inventory(NamedTuple):
    """The sources of a run.

    Attributes:
        sources: name of every source that is read -> SHA-256 of its bytes; shown by name, stored by salted hash.
        outcomes: outcomes of sources that no task reads, of stray files and of broken files.
        identity: what determines the file in addition to the configuration: digests of sources, with the split if their folder
            sets it.
        others: other names that the manifest may hold as hashes.
    """

    sources: Mapping[str, str]
    outcomes: Sequence[Outcome]
    identity: Sequence[str]
    others: Sequence[str] = ()

    def names(self) -> list[str]:
        """Every name that the manifest may hold as a hash."""
        return [*self.sources, *(outcome.name for outcome in self.outcomes), *self.others]

    def deciding(self) -> list[str]:
        """What determines the file in addition to the configuration; unreadable sources are represented by the cause."""
        return [*self.identity, *(outcome.cause for outcome in self.outcomes if outcome.status == "failed")]


class Task(NamedTuple, Generic[W]):
    """Slices to make from one source; the tasks of a source are consecutive.

    Attributes:
        source: name of the source.
        work: the argument of `Plan.make`.
        file: name of the one file that this task reads, if a failure affects only this file. "" if a failure affects the whole
            source, of which then no slice is kept.
        digest: SHA-256 of the file that this task reads, if it is not that of the source.
    """

    source: str
    work: W
    file: str = ""
    digest: str = ""


class Made(NamedTuple):
    """Result of a task.

    Attributes:
        records: its slices, in order, or the input of `Plan.measure` if the plan has one; looked at once.
        notes: notes on these slices for the user, without names; counted for each source.
        failure: why there are no slices, without names or paths: it goes into the manifest.
        content: hash of the result; of several tasks with the same hash only the first is kept. "" disables this check.
        detail: further text on a failure for the terminal; never stored.
    """

    records: Any = ()
    notes: Sequence[str] = ()
    failure: str = ""
    content: str = ""
    detail: str = ""


class Operator(Protocol):
    """The acquisition that all slices of a file share."""

    @property
    def with_image(self) -> bool:
        """Whether ground truth is stored."""

    def header(self) -> SliceHeader:
        """The header of the file, without configuration, lineage and digest."""


@dataclass
class Tally:
    """Results of the tasks of one source so far."""

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
        """The outcome of a source that gave slices."""
        return Outcome(self.name, "done", "; ".join(notes), slices=self.n, target=target, split=", ".join(sorted(self.splits)))

    def shares(self, n: int, unit: str = "") -> list[str]:
        """The notes, each with the number of slices (of n) that it applies to."""
        return [f"{note} ({count} of {n}{unit})" for note, count in sorted(self.notes.items())]


def image_outcomes(tally: Tally, target: str, known: Mapping[str, Sequence[str]] | None = None) -> list[Outcome]:
    """Outcome of a file of images; `known` holds notes on whole files, by name."""
    if tally.failures:
        return tally.failures
    if tally.n == 0:
        return [Outcome(tally.name, *(("skipped", COPY) if tally.copies else ("failed", "no slice")))]
    notes = [note if count == tally.n else f"{note} ({count} of {tally.n})" for note, count in sorted(tally.notes.items())]
    return [tally.done([*(known or {}).get(tally.name, ()), *notes], target)]


class Preview(NamedTuple):
    """Text of a dry run that makes no slices: a line for each source, and what would be written."""

    lines: Sequence[str]
    slices: str


def _as_they_are(records: Sequence[Any]) -> Sequence[SliceRecord]:
    return records


@dataclass(frozen=True)
class Plan(Generic[W]):
    """Everything that the runner does for one file.

    Attributes:
        operator: the acquisition that all slices share.
        shapes: shapes of a measurement and an image.
        make: makes the slices of one task; raises PrepError with the cause if there are none.
        tasks: the tasks, in the order of the file.
        report: gives the outcomes of a source from the results of its tasks.
        outcomes: outcomes of sources that were read for this plan but are not taken.
        coils: number of coils, 0 for measurements without a coil axis.
        measure: makes records of `batch` slices at a time, if that is faster than one by one.
        batch: see `measure`.
        whole: sources of which every slice is taken: if their records lack a `data_range`, it is their common maximum.
        what: number and name of the sources, for the error if no slice can be made from them; "" counts files.
        preview: text of a dry run; None makes every slice and stores none.
        setting: what a process needs around `make` and `measure`, such as readers that print nothing.
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
    setting: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __post_init__(self) -> None:
        if self.batch > 1 and not all(task.file for task in self.tasks):
            raise ValueError("slices measured together cannot be taken back: expected tasks whose files fail alone")

    def attempt(self, task: Task[W]) -> Made:
        """Make the slices of a task, or say why there are none: one bad file never stops the others."""
        try:
            return self.make(task.work)
        except PrepError as error:
            return Made(failure=str(error), detail=error.detail)
        except Exception as error:  # its message may hold content of the file
            return Made(failure=f"unexpected {type(error).__name__}")

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the images."""
        return self.shapes.image[-2], self.shapes.image[-1]
