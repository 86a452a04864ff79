"""What a command does around its own reading: checks, "up to date", threads, the file, its manifest, the summary.

A command (`div2k`, `mnist`, a demo) brings two things and calls `run`:

- a `Plan`: which sources there are (name -> SHA-256), the tasks to do in the order of the file, and what is left out;
- a `Pipeline`: the header and shapes of the file, and `make(work)`, which turns the work of one task into a `Made`: records, or
  the cause of a failure. It is called from several threads. A task may make one slice or thousands; they are held in memory, so
  let it make some 10 MB.

    frame = Frame("mnist", options, out, salt, workers, pool, Console())
    check_replaceable(out, overwrite)   # before the sources are read
    plan = Plan(sources={"a.gz": "9f..."}, tasks=[Task("a.gz", range(0, 500)), ...], outcomes=[...], identity=["9f..."])
    succeeded = run(frame, plan, pipeline, dry_run, overwrite)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from data_prep.run.manifest import (
    RECIPE,
    Outcome,
    PrepError,
    Pseudonyms,
    announce_changes,
    earlier_outcomes,
    manifest_path,
    print_summary,
    provenance,
    source_hash,
    split_counts,
    write_manifest,
)
from data_prep.run.workers import R, T, ordered_map, tracked
from es_medical.data import Shapes, SliceHeader, SliceRecord, SliceWriter, read_header

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)


@dataclass(frozen=True)
class PrepRun:
    """One run of a command.

    Attributes:
        command: its name, as the stored configuration calls it.
        options: a dataclass of every knob that decides what the file holds, and of nothing else: no path, no salt.
        out: the file to write.
        salt: secret behind the hashed ids.
        workers: number of threads.
        pool: the threads, or None for this one; see `data_prep.run.workers.worker_pool`.
        console: where to say what was done.
    """

    command: str
    options: DataclassInstance
    out: Path
    salt: str
    workers: int
    pool: Executor | None
    console: Console

    @property
    def pseudonyms(self) -> Pseudonyms:
        """Salted hashes of this run."""
        return Pseudonyms(self.salt)

    def configuration(self) -> dict[str, object]:
        """What is stored in the file: every knob that decides its content, and no path."""
        return {"command": self.command, "recipe": RECIPE, **asdict(self.options)}

    def mapped(self, function: Callable[[T], R], items: Sequence[T], label: str) -> Iterator[R]:
        """Results in order, from the threads of this run, with a progress bar."""
        return tracked(ordered_map(function, items, self.pool, 2 * self.workers), len(items), label)


class Task(NamedTuple, Generic[W]):
    """Some slices to make of one source: its name, and what the pipeline needs to know."""

    source: str
    work: W


class Made(NamedTuple):
    """What became of a task.

    Attributes:
        records: its slices, in order.
        notes: what a user should know of these slices, without names; counted for each source.
        failure: why there are none, without names or paths: it goes into the manifest.
        content: hash of what was made; of several tasks with the same one only the first is kept. "" for never a copy.
    """

    records: Sequence[SliceRecord] = ()
    notes: Sequence[str] = ()
    failure: str = ""
    content: str = ""


@dataclass(frozen=True)
class Plan(Generic[W]):
    """What is to be done.

    Attributes:
        sources: name of every source that is read -> SHA-256 of its bytes; shown by name, stored by salted hash.
        tasks: in the order of the file.
        outcomes: of sources that no task reads, of stray and of broken files.
        identity: what decides the file beside the configuration: digests of sources, with their split where a folder says it.
        target: what the ground truth is, for the manifest.
        notes: what a user should know of a source as a whole, by its name.
    """

    sources: Mapping[str, str]
    tasks: Sequence[Task[W]]
    outcomes: Sequence[Outcome]
    identity: Sequence[str]
    target: str = "images"
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Every name that the manifest may hold by its hash."""
        return [*self.sources, *(outcome.name for outcome in self.outcomes)]

    def digest(self, frame: PrepRun) -> str:
        """Identifies input and configuration."""
        failures = [outcome.cause for outcome in self.outcomes if outcome.status == "failed"]
        return provenance(frame.pseudonyms, frame.configuration(), [*self.identity, *failures])


class Pipeline(Protocol[W_contra]):
    """What all slices of a file go through."""

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the images."""

    @property
    def shapes(self) -> Shapes:
        """Of a measurement and an image."""

    @property
    def with_image(self) -> bool:
        """Whether ground truth is stored."""

    def header(self, configuration: Mapping[str, object], source_digests: Mapping[str, str], digest: str) -> SliceHeader:
        """The header of the file."""

    def make(self, work: W_contra) -> Made:
        """The slices of one task; raises PrepError with the cause where there are none."""

    def describe(self) -> str:
        """The measurements in a line, for the terminal."""


def run(frame: PrepRun, plan: Plan[W], pipeline: Pipeline[W], dry_run: bool = False, overwrite: bool = False) -> bool:
    """Writes the slice file and its manifest, unless they are up to date. A dry run makes every slice and keeps none.

    Returns:
        whether nothing failed.

    Raises:
        PrepError: no slice could be made.
    """
    digest = plan.digest(frame)
    earlier = None if overwrite else earlier_outcomes(frame.out, digest, plan.names(), frame.pseudonyms)
    if earlier is not None:
        frame.console.print("up to date: same input, same configuration")
        return _conclude(frame, pipeline, earlier)
    if dry_run:
        gathered = _gather(frame, plan, pipeline, None)
        counts, size = split_counts(gathered.splits), " x ".join(map(str, pipeline.size))
        frame.console.print(
            f"dry run: would write {gathered.splits.total()} slices of {size} ({counts}) to {frame.out}", soft_wrap=True
        )
        return _summary(frame, [*plan.outcomes, *gathered.outcomes(plan)])
    return _write(frame, plan, pipeline, digest)


def _write(frame: PrepRun, plan: Plan[W], pipeline: Pipeline[W], digest: str) -> bool:
    announce_changes(frame.out, frame.configuration(), frame.console)
    lineage = {source_hash(name, frame.pseudonyms): one for name, one in plan.sources.items()}
    header = pipeline.header(frame.configuration(), lineage, digest)
    with SliceWriter(frame.out, header, pipeline.size, pipeline.with_image, shapes=pipeline.shapes) as writer:
        outcomes = [*plan.outcomes, *_gather(frame, plan, pipeline, writer).outcomes(plan)]
        if writer.n == 0:
            print_summary(outcomes, frame.console)
            raise PrepError(f"no slice could be made of {len(plan.sources)} files: nothing was written")
    write_manifest(frame.out, digest, outcomes, frame.pseudonyms)
    return _conclude(frame, pipeline, outcomes)


def _gather(frame: PrepRun, plan: Plan[W], pipeline: Pipeline[W], writer: SliceWriter | None) -> RunOutcomes:
    def make(task: Task[W]) -> Made:
        try:
            return pipeline.make(task.work)
        except PrepError as error:
            return Made(failure=str(error))
        except Exception as error:  # one bad file never stops the others; its text may hold what stands in the file
            return Made(failure=f"unexpected {type(error).__name__}")

    gathered = RunOutcomes()
    for task, made in zip(plan.tasks, frame.mapped(make, plan.tasks, "slices"), strict=True):
        gathered.add(task.source, made, writer)
    return gathered


def _summary(frame: PrepRun, outcomes: Sequence[Outcome]) -> bool:
    print_summary(outcomes, frame.console)
    return all(outcome.status != "failed" for outcome in outcomes)


def _conclude(frame: PrepRun, pipeline: Pipeline[W], outcomes: Sequence[Outcome]) -> bool:
    succeeded, header = _summary(frame, outcomes), read_header(frame.out)
    size, truth = " x ".join(map(str, header.size)), "stored" if header.has_image else "not stored"
    for line in (
        f"{frame.out}: {header.n} slices of {size} ({split_counts(header.splits)})",
        f"{pipeline.describe()}, sigma {header.sigma:g}, ground truth {truth}",
        f"manifest: {manifest_path(frame.out)}",
    ):
        frame.console.print(line, soft_wrap=True, markup=False, highlight=False)
    return succeeded


if TYPE_CHECKING:
    from data_prep.run.runner import Made, Plan
    from es_medical.data import SliceWriter

COPY = "same pixels as another one: left out"


@dataclass
class _Source:
    """What became of one source so far."""

    splits: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    copies: int = 0

    def outcome(self, name: str, target: str, known: Sequence[str]) -> Outcome:
        """As the manifest tells it."""
        n = self.splits.total()
        if self.failures:
            return Outcome(name, "failed", self.failures[0], slices=n)
        if n == 0:
            return Outcome(name, *(("skipped", COPY) if self.copies else ("failed", "no slice")))
        notes = [*known]
        notes += [note if count == n else f"{note} ({count} of {n})" for note, count in sorted(self.notes.items())]
        notes += [f"{COPY} ({self.copies})"] if self.copies else []
        return Outcome(name, "done", "; ".join(notes), slices=n, target=target, split=", ".join(sorted(self.splits)))


@dataclass
class RunOutcomes:
    """What became of every task."""

    splits: Counter[str] = field(default_factory=Counter)
    sources: dict[str, _Source] = field(default_factory=dict)
    contents: set[str] = field(default_factory=set)

    def add(self, name: str, made: Made, writer: SliceWriter | None) -> None:
        """Write what was made, or note why there is nothing."""
        source = self.sources.setdefault(name, _Source())
        if made.failure:
            source.failures.append(made.failure)
            return
        if made.content and made.content in self.contents:
            source.copies += 1
            return
        self.contents.add(made.content)
        source.notes.update(dict.fromkeys(made.notes, len(made.records)))
        for record in made.records:
            source.splits[record.split] += 1
            self.splits[record.split] += 1
            if writer is not None:
                writer.append(record)

    def outcomes(self, plan: Plan[Any]) -> list[Outcome]:
        """One for each source, in the order of the plan."""
        return [source.outcome(name, plan.target, plan.notes.get(name, ())) for name, source in self.sources.items()]
