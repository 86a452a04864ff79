"""CT archives (LIDC-IDRI, or any other folder of DICOM files) to one slice file of sinograms, simulated once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from data_prep.ct.archive import Archive, scan
from data_prep.ct.elements import quiet_pydicom
from data_prep.ct.header import CTFile
from data_prep.ct.pixels import read_hounsfield
from data_prep.ct.series import CTSeries, step_of
from data_prep.ct.simulation import BATCH, Labelled, Scanner
from data_prep.ct.slice import Prepared, prepare
from data_prep.run.folders import digest_or_nothing
from data_prep.run.manifest import (
    RECIPE,
    Outcome,
    PrepError,
    Pseudonyms,
    announce_changes,
    check_replaceable,
    earlier_outcomes,
    print_summary,
    provenance,
    source_hash,
    split_counts,
    write_manifest,
)
from data_prep.run.splits import Shares, split_subjects
from data_prep.run.workers import R, T, ordered_map, tracked
from es_medical.data import Shapes, SliceWriter, read_header

if TYPE_CHECKING:
    from rich.console import Console

SeriesTaken = Literal["one", "all"]
SIGMA = 0.001
BLANK = "blank slices left out"


@dataclass(frozen=True)
class Options:
    """Knobs that decide what the file holds: see `python -m data_prep lidc --help`."""

    slices: str = "middle"
    series: SeriesTaken | None = None
    size: int = 256
    views: int = 50
    sigma: float = SIGMA
    seed: int = 0
    train: float = 900
    test: float = 110
    val: int | None = None
    intercept: float | None = None
    with_image: bool = True
    photons: float | None = None

    def __post_init__(self) -> None:
        if self.photons is not None:
            from es_medical.physics.transmission import Transmission

            Transmission(self.photons, 1.0)  # checks the number
            if self.sigma not in (0.0, SIGMA):
                raise ValueError(f"--photons {self.photons:g} is the noise: leave out --sigma {self.sigma:g}")
            object.__setattr__(self, "sigma", 0.0)
        if self.slices not in {"middle", "all"}:
            step_of(self.slices)
        if self.series is None:
            object.__setattr__(self, "series", "one" if self.slices == "middle" else "all")

    @property
    def shares(self) -> Shares:
        """Patients for each split."""
        return Shares(self.train, self.test, self.val)

    @property
    def scanner(self) -> Scanner:
        """What all slices go through."""
        return Scanner(self.size, self.views, self.sigma, self.seed, self.with_image, self.photons)

    @property
    def noise(self) -> str:
        """What noise the sinograms have, in words."""
        return f"sigma {self.sigma:g}" if self.photons is None else f"{self.photons:g} photons on a ray through air"


@dataclass(frozen=True)
class Job:
    """One run: from where, to where, and how. `command` is what the stored configuration calls it."""

    source: Path
    out: Path
    options: Options
    salt: str
    workers: int
    pool: Executor | None
    console: Console
    command: str = "lidc"

    @property
    def pseudonyms(self) -> Pseudonyms:
        """Salted hashes of this run."""
        return Pseudonyms(self.salt)

    def configuration(self) -> dict[str, object]:
        """What is stored in the file: every knob that decides its content, and no path."""
        knobs = {name: value for name, value in asdict(self.options).items() if name != "photons" or value is not None}
        return {"command": self.command, "recipe": RECIPE, **knobs}

    def path(self, file: CTFile) -> Path:
        """Where a file is."""
        return self.source / file.name if self.source.is_dir() else self.source

    def mapped(self, function: Callable[[T], R], items: Sequence[T], label: str) -> Iterator[R]:
        """Results in order, from the threads of this run, with a progress bar."""
        return tracked(ordered_map(function, items, self.pool, 2 * self.workers), len(items), label)


class Planned(NamedTuple):
    """A series, the slices to take from it, and where they go."""

    series: CTSeries
    indices: tuple[int, ...]
    split: str


class Task(NamedTuple):
    """One slice: index of its series in the plan, its number there, and the SHA-256 of its file."""

    planned: int
    number: int
    digest: str


class Part(NamedTuple):
    """What became of a slice: pixels (None for a blank one) and notes, or why it failed."""

    prepared: Prepared | None
    notes: tuple[str, ...]
    failure: str = ""


def run(job: Job, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Writes the slice file and its manifest, unless they are up to date.

    Returns:
        whether every file was taken or left out for a reason, and none failed.

    Raises:
        PrepError: nothing to do, nothing to write, or an OUT that is not ours.
    """
    with quiet_pydicom():
        check_replaceable(job.out, overwrite)
        archive = scan(job.source, job.out, partial(job.mapped, label="headers"))
        if not archive.series:
            print_summary(archive.outcomes, job.console)
            raise PrepError(f"no CT series among {archive.n_files} files of {job.source}: nothing was written")
        planned, left_out = plan(archive.series, job.options, job.pseudonyms)
        outcomes = archive.outcomes + left_out
        return _preview(job, planned, outcomes) if dry_run else _make(job, archive, planned, outcomes, overwrite)


def plan(series: Sequence[CTSeries], options: Options, pseudonyms: Pseudonyms) -> tuple[list[Planned], list[Outcome]]:
    """Chooses series and slices, and assigns splits by patient; names and folders play no part."""
    patients: dict[str, list[CTSeries]] = defaultdict(list)
    for one in series:
        patients[one.patient].append(one)
    splits = split_subjects([pseudonyms.of("subject", one) for one in patients], options.seed, options.shares)
    planned, outcomes = list[Planned](), list[Outcome]()
    for patient, scans in sorted(patients.items(), key=lambda item: pseudonyms.of("subject", item[0])):
        ranked = sorted(scans, key=partial(_rank, pseudonyms=pseudonyms))
        taken = ranked[:1] if options.series == "one" else ranked
        split = splits[pseudonyms.of("subject", patient)]
        if split is None:
            outcomes += [Outcome(one.name, "skipped", "beyond the --train and --test counts") for one in ranked]
            continue
        planned += [Planned(one, one.chosen(options.slices), split) for one in taken]
        cause = "another series of the patient is taken (--series all takes each)"
        outcomes += [Outcome(one.name, "skipped", cause) for one in ranked[len(taken) :]]
    return planned, outcomes


def _rank(series: CTSeries, pseudonyms: Pseudonyms) -> tuple[bool, bool, int, str]:
    """The best series of a patient first: what a scanner made, axial, with the most slices."""
    first = series.slices[0].file
    return series.secondary, not series.axial, -len(series.slices), pseudonyms.of("series", first.series, first.instance)


def _preview(job: Job, planned: Sequence[Planned], outcomes: Sequence[Outcome]) -> bool:
    for series, indices, split in planned:
        taken = f"{len(indices)} of {len(series.slices)} slices to {split}"
        notes = "".join(f"; {note}" for note in series.notes)
        job.console.print(f"{series.name}: {taken}{notes}", markup=False, soft_wrap=True)
    n, size = sum(len(one.indices) for one in planned), job.options.size
    job.console.print(f"dry run: would write {n} slices of {size} x {size} to {job.out}", soft_wrap=True)
    print_summary(outcomes, job.console)
    return all(outcome.status != "failed" for outcome in outcomes)


def _make(job: Job, archive: Archive, planned: Sequence[Planned], outcomes: list[Outcome], overwrite: bool) -> bool:
    files = [series.slices[i].file for series, indices, _ in planned for i in indices]
    digests = iter(job.mapped(digest_or_nothing, [job.path(file) for file in files], "digests"))
    tasks = [Task(k, i, next(digests)) for k, (_, indices, _) in enumerate(planned) for i in indices]
    failures = [outcome.cause for outcome in outcomes if outcome.status == "failed"]
    digest = provenance(job.pseudonyms, job.configuration(), [task.digest for task in tasks] + failures)
    names = [one.name for one in archive.series] + [outcome.name for outcome in outcomes]
    names += [file.name for file in files]
    earlier = None if overwrite else earlier_outcomes(job.out, digest, names, job.pseudonyms)
    if earlier is not None:
        job.console.print("up to date: same input, same configuration")
        return _conclude(job, earlier)
    return _write(job, planned, tasks, digest, outcomes)


def _write(job: Job, planned: Sequence[Planned], tasks: Sequence[Task], digest: str, outcomes: list[Outcome]) -> bool:
    announce_changes(job.out, job.configuration(), job.console)
    scanner, size = job.options.scanner, (job.options.size, job.options.size)
    header = scanner.header(job.configuration(), _lineage(planned, tasks, job.pseudonyms), digest)
    work = partial(make_slice, planned=planned, job=job)
    with SliceWriter(job.out, header, size, scanner.with_image, shapes=Shapes.sinogram(size, scanner.shape)) as writer:
        written = _Written(planned, writer, scanner, job.pseudonyms)
        for task, part in zip(tasks, job.mapped(work, tasks, "slices"), strict=True):
            written.add(task, part)
        outcomes += written.finish()
        if writer.n == 0:
            print_summary(outcomes, job.console)
            raise PrepError(f"no slice could be made of {len(planned)} series: nothing was written")
    write_manifest(job.out, digest, outcomes, job.pseudonyms)
    return _conclude(job, outcomes)


def _lineage(planned: Sequence[Planned], tasks: Sequence[Task], pseudonyms: Pseudonyms) -> dict[str, str]:
    """By hash of a series' name the SHA-256 of its one file, or that of the digests of its files one after another."""
    digests: dict[int, list[str]] = defaultdict(list)
    for task in tasks:
        digests[task.planned].append(task.digest)
    return {
        source_hash(planned[k].series.name, pseudonyms): one[0] if len(one) == 1 else sha256("".join(one).encode()).hexdigest()
        for k, one in digests.items()
    }


def make_slice(task: Task, planned: Sequence[Planned], job: Job) -> Part:
    """Reads and prepares one slice; whatever is wrong with it becomes a failure."""
    series = planned[task.planned].series
    try:
        file = series.slices[task.number].file
        hu = read_hounsfield(job.path(file), file, job.options.intercept)
        prepared = prepare(hu.values, series.geometry(task.number), job.options.size)
        return Part(None, (BLANK,)) if not prepared.image.any() else Part(prepared, hu.notes)
    except PrepError as error:
        return Part(None, (), str(error))
    except Exception as error:  # one bad file never stops the others; its text may hold what stands in the file
        return Part(None, (), f"unexpected {type(error).__name__}")


class _Written:
    """Slices gathered into batches and written, and what became of each series."""

    def __init__(self, planned: Sequence[Planned], writer: SliceWriter, scanner: Scanner, pseudonyms: Pseudonyms) -> None:
        self.planned, self.writer, self.scanner, self.pseudonyms = planned, writer, scanner, pseudonyms
        self.batch = list[Labelled]()
        self.seen = set[str]()
        self.counts = Counter[int]()
        self.notes: dict[int, Counter[str]] = defaultdict(Counter)
        self.failures: dict[int, list[tuple[int, str]]] = defaultdict(list)

    def add(self, task: Task, part: Part) -> None:
        """Take a slice up, or note why there is none."""
        if part.failure:
            self.failures[task.planned].append((task.number, part.failure))
            return
        key = self.pseudonyms.of("slice", task.digest)
        copy = key in self.seen
        self.notes[task.planned].update(["copies of other slices left out"] if copy else part.notes)
        if part.prepared is None or copy:
            return
        series, _, split = self.planned[task.planned]
        self.seen.add(key)
        self.counts[task.planned] += 1
        subject = self.pseudonyms.of("subject", series.patient)
        volume = self.pseudonyms.of("volume", series.patient, series.slices[0].file.series)
        self.batch.append(Labelled(part.prepared, key, subject, split, task.number, volume))
        if len(self.batch) == BATCH:
            self._flush()

    def _flush(self) -> None:
        for record in self.scanner.records(self.batch) if self.batch else ():
            self.writer.append(record)
        self.batch.clear()

    def finish(self) -> list[Outcome]:
        """Write what is left, and say what became of each series."""
        self._flush()
        return [outcome for k, planned in enumerate(self.planned) for outcome in self._outcomes(k, planned)]

    def _outcomes(self, k: int, planned: Planned) -> Iterator[Outcome]:
        """The series, and beside it each of its slices that failed."""
        series, n, failures = planned.series, self.counts[k], self.failures[k]
        notes = [
            *series.notes,
            *(f"{note} ({count} of {len(planned.indices)})" for note, count in sorted(self.notes[k].items())),
        ]
        if n:
            yield Outcome(series.name, "done", "; ".join(notes), slices=n, target="CT images", split=planned.split)
        elif not failures:
            yield Outcome(series.name, "failed", "every chosen slice is blank, or a copy")
        for index, cause in failures:
            yield Outcome(series.slices[index].file.name, "failed", cause)


def _conclude(job: Job, outcomes: Sequence[Outcome]) -> bool:
    print_summary(outcomes, job.console)
    header = read_header(job.out)
    counts = split_counts(header.splits)
    views, detectors = header.mask.shape[0], header.operator.get("n_detectors")
    job.console.print(f"{job.out}: {header.n} slices of {header.size[0]} x {header.size[1]} ({counts})", soft_wrap=True)
    job.console.print(
        f"{views} views of {detectors} detector bins, parallel beam of unit norm, {job.options.noise}, "
        f"ground truth {'stored' if header.has_image else 'not stored'}",
        soft_wrap=True,
    )
    return all(outcome.status != "failed" for outcome in outcomes)
