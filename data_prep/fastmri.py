"""fastMRI volumes to one slice file, in the paper's synthetic setting.

The ground truth is the magnitude reconstruction, min-max normalised, with zero imaginary part; the measurement is its
undersampled k-space plus noise, simulated once with one mask (paper, "Details about the experiments").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data_prep.fastmri_file import FASTMRI_SIZE, Chosen, Coils, Target, Volume, Wanted, inspect, open_volume, read_target
from data_prep.manifest import (
    RECIPE,
    Outcome,
    PrepError,
    Pseudonyms,
    SkipError,
    announce_changes,
    check_replaceable,
    earlier_outcomes,
    print_summary,
    provenance,
    source_hash,
    write_manifest,
)
from data_prep.simulate import Acquisition, Normalisation, crop_or_pad
from data_prep.sources import Source, find_sources
from data_prep.subjects import Shares, split_subjects
from data_prep.workers import R, T, ordered_map, tracked
from es_medical.data.slices import SliceHeader, SliceRecord, SliceWriter, file_digest, read_header

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Options:
    """Knobs that decide what the file holds: see `python -m data_prep fastmri --help`."""

    slices: Chosen = "middle"
    acceleration: float = 8
    center_fraction: float = 0.03
    sigma: float = 0.005
    seed: int = 0
    train: float = 900
    test: float = 73
    val: int | None = None
    size: int | None = None
    coils: Coils = "single"
    target: Target = "auto"
    normalise: Normalisation = "slice"
    with_image: bool = True
    mask_seed: int | None = None

    def acquisition(self, size: tuple[int, int]) -> Acquisition:
        """The acquisition that all slices of this size go through."""
        return Acquisition(
            size, self.acceleration, self.center_fraction, self.sigma, self.seed, self.with_image, self.mask_seed
        )


class Read(NamedTuple):
    """What the first pass found in a file: its digest, and a volume or the outcome without one."""

    source: Source
    digest: str
    volume: Volume | None
    outcome: Outcome | None


class Planned(NamedTuple):
    """A volume and where its slices go."""

    volume: Volume
    split: str


def read_digest(source: Source) -> str:
    """SHA-256 of a source, or an empty string when it cannot be read (`inspect` then says why)."""
    try:
        return file_digest(source.path)
    except OSError:
        return ""


def first_pass(item: tuple[Source, str], wanted: Wanted) -> Read:
    """Checks one file; whatever is wrong with it becomes an outcome."""
    source, digest = item
    try:
        return Read(source, digest, inspect(source.path, source.name, digest, wanted), None)
    except Exception as error:  # one bad file never stops the others
        return Read(source, digest, None, _failure(source.name, error))


def _failure(name: str, error: Exception) -> Outcome:
    if isinstance(error, PrepError):
        return Outcome(name, "skipped" if isinstance(error, SkipError) else "failed", str(error))
    return Outcome(name, "failed", f"unexpected {type(error).__name__}", detail=str(error))


def second_pass(
    planned: Planned, acquisition: Acquisition, by: Normalisation, pseudonyms: Pseudonyms
) -> tuple[list[SliceRecord], Outcome]:
    """Normalises and measures the chosen slices of one volume."""
    volume, split = planned
    subject = pseudonyms.of("subject", volume.subject)
    records = []
    try:
        with open_volume(volume.path) as file:
            for i in volume.slices:
                x = crop_or_pad(read_target(file, volume.target, i, volume.size), acquisition.size)
                key = pseudonyms.of("slice", volume.digest, i)
                records.append(acquisition.record(x, volume.range, by, key, subject, split, volume.spacing, i))
    except Exception as error:  # one bad file never stops the others
        return [], _failure(volume.name, error)
    done = Outcome(volume.name, "done", volume.note, slices=len(records), target=volume.target, split=split)
    return records, done


def common_size(volumes: Sequence[Volume], size: int | None) -> tuple[int, int]:
    """(H, W) of the slices: as asked for, else that of all targets, else fastMRI's 320 x 320 when they differ."""
    if size is not None:
        return size, size
    sizes = {volume.size for volume in volumes}
    return sizes.pop() if len(sizes) == 1 else FASTMRI_SIZE


def plan(volumes: Sequence[Volume], options: Options) -> tuple[list[Planned], list[Outcome]]:
    """Drops copies, assigns splits by subject, and orders the volumes by content."""
    unique = {volume.digest: volume for volume in reversed(volumes)}
    copies = [v for v in volumes if unique[v.digest] is not v]
    outcomes = [Outcome(v.name, "skipped", "copy of another file", f"({unique[v.digest].name})") for v in copies]
    ordered = [unique[digest] for digest in sorted(unique)]
    splits = split_subjects([v.subject for v in ordered], options.seed, Shares(options.train, options.test, options.val))
    planned = []
    for volume in ordered:
        split = splits[volume.subject]
        if split is None:
            outcomes.append(Outcome(volume.name, "skipped", "beyond the --train and --test counts"))
        else:
            planned.append(Planned(volume, split))
    return planned, outcomes


@dataclass(frozen=True)
class Job:
    """One run: from where, to where, and how."""

    source: Path
    out: Path
    options: Options
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
        return {"command": "fastmri", "recipe": RECIPE, **asdict(self.options)}


def run(job: Job, dry_run: bool, overwrite: bool) -> bool:
    """Writes the slice file and its manifest, unless they are up to date.

    Returns:
        whether every file was done or skipped for a reason, and none failed.

    Raises:
        PrepError: nothing to do, nothing to write, or an OUT that is not ours.
    """
    sources, stray = find_sources(job.source, job.out)
    check_replaceable(job.out, overwrite)
    digests = list(_mapped(read_digest, sources, job, "digests"))
    unread = [outcome.cause for outcome in stray if outcome.status == "failed"]
    digest = provenance(job.pseudonyms, job.configuration(), digests + unread)
    names = [source.name for source in sources] + [outcome.name for outcome in stray]
    earlier = None if overwrite else earlier_outcomes(job.out, digest, names, job.pseudonyms)
    if earlier is not None:
        job.console.print("up to date: same input, same configuration")
        return _conclude(job, earlier)
    wanted = Wanted(job.options.coils, job.options.target, job.options.slices)
    reads = list(_mapped(partial(first_pass, wanted=wanted), list(zip(sources, digests, strict=True)), job, "checks"))
    outcomes = stray + [read.outcome for read in reads if read.outcome is not None]
    volumes = [read.volume for read in reads if read.volume is not None]
    if not volumes:
        print_summary(outcomes, job.console)
        raise PrepError(f"no usable volume among {len(sources)} files of {job.source}: nothing was written")
    planned, left_out = plan(volumes, job.options)
    acquisition = job.options.acquisition(common_size(volumes, job.options.size))
    if dry_run:
        return _preview(job, planned, acquisition, outcomes + left_out)
    lineage = {source_hash(read.source.name, job.pseudonyms): read.digest for read in reads}
    header = acquisition.header(job.configuration(), lineage, digest)
    return _write(job, planned, acquisition, header, outcomes + left_out)


def _mapped(function: Callable[[T], R], items: Sequence[T], job: Job, label: str) -> Iterator[R]:
    return tracked(ordered_map(function, items, job.pool, 2 * job.workers), len(items), label)


def _preview(job: Job, planned: Sequence[Planned], acquisition: Acquisition, outcomes: Sequence[Outcome]) -> bool:
    for volume, split in planned:
        job.console.print(f"{volume.name}: {len(volume.slices)} slices from {volume.target} to {split}", markup=False)
    height, width = acquisition.size
    job.console.print(f"dry run: would write slices of {height} x {width} to {job.out}", soft_wrap=True)
    print_summary(outcomes, job.console)
    return all(outcome.status != "failed" for outcome in outcomes)


def _write(
    job: Job, planned: Sequence[Planned], acquisition: Acquisition, header: SliceHeader, outcomes: list[Outcome]
) -> bool:
    announce_changes(job.out, header.configuration, job.console)
    work = partial(second_pass, acquisition=acquisition, by=job.options.normalise, pseudonyms=job.pseudonyms)
    with SliceWriter(job.out, header, acquisition.size, acquisition.with_image) as writer:
        for records, outcome in _mapped(work, planned, job, "slices"):
            for record in records:
                writer.append(record)
            outcomes.append(outcome)
        if writer.n == 0:
            print_summary(outcomes, job.console)
            raise PrepError(f"no slice could be made of {len(planned)} volumes: nothing was written")
    write_manifest(job.out, header.digest, outcomes, job.pseudonyms)
    return _conclude(job, outcomes)


def _conclude(job: Job, outcomes: Sequence[Outcome]) -> bool:
    print_summary(outcomes, job.console)
    header = read_header(job.out)
    counts = " · ".join(f"{name} {header.splits.get(name, 0)}" for name in ("train", "val", "test"))
    job.console.print(f"{job.out}: {header.n} slices of {header.size[0]} x {header.size[1]} ({counts})", soft_wrap=True)
    for target in sorted({outcome.target for outcome in outcomes if outcome.target}):
        n = sum(outcome.target == target for outcome in outcomes)
        job.console.print(f"ground truth from {target}: {n} volumes", markup=False)
    return all(outcome.status != "failed" for outcome in outcomes)
