"""Run a preparation command: check whether OUT is up to date, run the tasks in threads, write file, manifest and summary.

A command (`fastmri`, `lidc`, `div2k`, a demo) prepares three things and calls `run`:

- an `Inventory`: the sources (name -> SHA-256) and what is left out. It determines whether the file is up to date;
- a function that makes the `Plan` if it is not: the operator, the tasks in the order of the file, and `make(work)`, which
  turns the work of one task into a `Made`: records, or the cause of a failure. It is called from several threads. A task may
  make one slice or thousands; they are held in memory, so aim at about 10 MB;
- a function that gives the final lines of output from the header of the file and the outcomes of the sources.

    check_replaceable(prep.out, overwrite)   # before the sources are read
    inventory = Inventory(sources={"a.gz": "9f..."}, outcomes=[...], identity=["9f..."])
    succeeded = run(prep, inventory, lambda: Plan(sensing, ...), measured_by(describe, prep.out))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from data_prep.run.manifest import (
    OMIT_NONE,
    RECIPE,
    Outcome,
    PrepError,
    Pseudonyms,
    announce_changes,
    earlier_outcomes,
    manifest_path,
    only_writer,
    print_summary,
    provenance,
    source_hash,
    split_counts,
    write_manifest,
)
from data_prep.run.parts import discard_parts
from data_prep.run.plan import Inventory, Plan, Preview, Tally
from data_prep.run.sink import Sink
from data_prep.run.workers import R, T, ordered_map, tracked
from es_medical.data import SliceHeader, SliceWriter, read_header
from es_medical.data.virtual import VirtualWriter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

    from data_prep.run.cluster import Cluster

    class Knobs(DataclassInstance, Protocol):
        """The options of any command."""

        @property
        def seed(self) -> int:
            """Seed of everything that is drawn."""


O = TypeVar("O", bound="Knobs")  # noqa: E741  options


@dataclass(frozen=True)
class PrepRun(Generic[O]):
    """One run of a preparation command.

    Attributes:
        command: its name in the stored configuration.
        options: a dataclass of every option that decides what the file holds, and of nothing else: no path, no salt.
        out: the file to write.
        salt: secret behind the hashed ids.
        workers: number of threads.
        pool: the threads, or None to work in this one; see `data_prep.run.workers.worker_pool`.
        console: where messages are printed.
        cluster: processes that do the work in place of the threads, if any.
    """

    command: str
    options: O
    out: Path
    salt: str
    workers: int
    pool: Executor | None
    console: Console
    cluster: Cluster | None = None

    @property
    def pseudonyms(self) -> Pseudonyms:
        """Salted hashes of this run."""
        return Pseudonyms(self.salt)

    def configuration(self) -> dict[str, object]:
        """The configuration stored in the file: every option that decides its content, and no path."""
        knobs = {field.name: (getattr(self.options, field.name), field.metadata) for field in fields(self.options)}
        kept = {name: value for name, (value, metadata) in knobs.items() if value is not None or metadata != OMIT_NONE}
        return {"command": self.command, "recipe": RECIPE, **kept}

    def mapped(
        self, function: Callable[[T], R], items: Sequence[T], label: str, lost: Callable[[T], R] | None = None
    ) -> Iterator[R]:
        """Apply a function in the threads or processes of this run; the results are in order, with a progress bar.

        Args:
            function: the function.
            items: its arguments.
            label: of the progress bar.
            lost: the result of an item at which a process ends again and again; None ends the run.
        """
        if self.cluster is not None:
            return tracked(self.cluster.mapped(function, items, lost), len(items), label)
        return tracked(ordered_map(function, items, self.pool, 2 * self.workers), len(items), label)

    def say(self, *lines: str) -> None:
        """Print lines as they are, without wrapping."""
        for line in lines:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def give_up(self, outcomes: Iterable[Outcome], why: str) -> NoReturn:
        """Print the outcomes and raise PrepError."""
        print_summary(outcomes, self.console)
        raise PrepError(f"{why}: nothing was written")


Lines = Callable[[SliceHeader, Sequence[Outcome]], Iterable[str]]


def measured_by(describe: Callable[[SliceHeader], str], out: Path) -> Lines:
    """Final lines of output: the acquisition, its noise, and the path of the manifest."""
    return lambda header, _: (f"{describe(header)}, {noise_and_truth(header)}", f"manifest: {manifest_path(out)}")


def noise_and_truth(header: SliceHeader, noise: str = "") -> str:
    """The noise of a file in words, and whether it holds ground truth."""
    return f"{noise or f'sigma {header.sigma:g}'}, ground truth {'stored' if header.has_image else 'not stored'}"


def run(
    prep: PrepRun[Any],
    inventory: Inventory,
    plan: Callable[[], Plan[Any]],
    lines: Lines,
    dry_run: bool = False,
    overwrite: bool = False,
    table: bool = True,
) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Args:
        prep: the preparation run.
        inventory: the sources.
        plan: makes the plan; called if the file is not up to date.
        lines: gives the final lines of output from the header of the file and the outcomes.
        dry_run: write nothing.
        overwrite: make the file anew even if it is up to date.
        table: print the outcome of every source.

    Returns:
        True if nothing failed.

    Raises:
        PrepError: no slice could be made.
    """
    digest = provenance(prep.pseudonyms, prep.configuration(), inventory.deciding())
    earlier = None if overwrite else earlier_outcomes(prep.out, digest, inventory.names(), prep.pseudonyms)
    if earlier is not None:
        prep.say("up to date: same input, same configuration")
        outcomes, header = earlier, read_header(prep.out)
        if prep.cluster is not None:  # no other run is writing
            discard_parts(prep.out)
    elif dry_run:
        return _dry_run(prep, inventory, plan())
    else:
        with only_writer(prep.out) if prep.cluster is None else nullcontext():
            outcomes, header = _write(prep, inventory, plan(), digest)
    if table:
        print_summary(outcomes, prep.console)
    size = " x ".join(map(str, header.size))
    prep.say(f"{prep.out}: {header.n} slices of {size} ({split_counts(header.splits)})", *lines(header, outcomes))
    return nothing_failed(outcomes)


def nothing_failed(outcomes: Iterable[Outcome]) -> bool:
    """Whether every source was taken, or left out for a reason."""
    return all(outcome.status != "failed" for outcome in outcomes)


def show_preview(prep: PrepRun[Any], preview: Preview, outcomes: Sequence[Outcome]) -> bool:
    """Print the text of a dry run; return True if nothing failed."""
    prep.say(*preview.lines, f"dry run: would write {preview.slices} to {prep.out}")
    print_summary(outcomes, prep.console)
    return nothing_failed(outcomes)


def _dry_run(prep: PrepRun[Any], inventory: Inventory, plan: Plan[Any]) -> bool:
    left_out = [*inventory.outcomes, *plan.outcomes]
    if plan.preview is not None:
        return show_preview(prep, plan.preview, left_out)
    gathered = _gather(replace(prep, cluster=None), plan, None, inventory.sources)
    size, n = " x ".join(map(str, plan.size)), gathered.splits.total()
    slices = f"{n} slices of {size} ({split_counts(gathered.splits)})"
    return show_preview(prep, Preview((), slices), [*left_out, *gathered.outcomes])


def _write(prep: PrepRun[Any], inventory: Inventory, plan: Plan[Any], digest: str) -> tuple[list[Outcome], SliceHeader]:
    announce_changes(prep.out, prep.configuration(), prep.console)
    lineage = {source_hash(name, prep.pseudonyms): source_digest for name, source_digest in inventory.sources.items()}
    acquisition = plan.operator.header()
    header = replace(acquisition, configuration=prep.configuration(), source_digests=lineage, digest=digest)
    kind = VirtualWriter if prep.cluster is not None and prep.cluster.keep else SliceWriter
    with kind(prep.out, header, plan.size, plan.operator.with_image, plan.coils, plan.shapes) as writer:
        outcomes = [*inventory.outcomes, *plan.outcomes, *_gather(prep, plan, writer, inventory.sources).outcomes]
        if writer.n == 0:
            prep.give_up(outcomes, f"no slice could be made of {plan.what or f'{len(inventory.sources)} files'}")
    written = read_header(prep.out)
    write_manifest(prep.out, written, outcomes, prep.pseudonyms)
    if prep.cluster is not None:
        prep.cluster.tidy()
    discard_parts(prep.out)
    return outcomes, written


class RunOutcomes(NamedTuple):
    """The outcomes of all planned sources, and the number of slices of each split."""

    outcomes: list[Outcome]
    splits: Counter[str]


def _gather(prep: PrepRun[Any], plan: Plan[Any], writer: SliceWriter | None, digests: Mapping[str, str]) -> RunOutcomes:
    """Make the slices of every task and write them, source by source."""
    gathered, seen = RunOutcomes([], Counter()), set[str]()
    if prep.cluster is not None and writer is not None:
        results = prep.cluster.results(plan, prep.configuration(), digests, prep.say)
        sink = Sink(replace(plan, measure=list, batch=1), writer)
    else:
        results = zip(plan.tasks, prep.mapped(plan.attempt, plan.tasks, "slices"), strict=True)
        sink = Sink(plan, writer)
    for name, group in groupby(results, key=lambda pair: pair[0].source):
        tally, own = Tally(name), set[str]()
        sink.begin()
        for task, made in group:
            if made.failure and not tally.broken:
                tally.failures.append(Outcome(task.file or name, "failed", made.failure, made.detail))
                tally.broken = not task.file
            if made.failure or tally.broken:
                continue
            if made.content and (made.content in seen or made.content in own):
                tally.copies += 1
                continue
            own.add(made.content)
            tally.notes.update(made.notes)
            sink.add(made.records, task.digest or digests.get(name, ""), tally)
        if tally.broken:  # its slices are taken back: a later copy of one is the first
            tally.splits.clear()
        else:
            seen |= own
        sink.end(tally)
        gathered.splits.update(tally.splits)
        gathered.outcomes.extend(plan.report(tally))
    sink.flush()
    return gathered._replace(outcomes=[sink.named(outcome) for outcome in gathered.outcomes])
