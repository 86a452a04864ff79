"""MR volumes to one slice file: in the paper's synthetic setting (`Simulation`), or as they were recorded (`Recording`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data_prep.mri.common_grid import common_recording
from data_prep.mri.fastmri_file import FASTMRI_SIZE, Wanted, inspect
from data_prep.mri.normalisation import Acquisition
from data_prep.mri.options import Options
from data_prep.mri.recorded import RecordedTarget, RecordedVolume, inspect_recorded
from data_prep.mri.simulation import Simulation
from data_prep.mri.volume_writer import AnyVolume, Pipeline, Planned, WrittenVolume, failure, second_pass, tasks
from data_prep.run.folders import Source, digest_or_nothing, find_sources
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
from data_prep.run.splits import split_subjects
from data_prep.run.workers import R, T, ordered_map, tracked
from es_medical.data import SliceHeader, SliceWriter, read_header

if TYPE_CHECKING:
    from rich.console import Console


class Read(NamedTuple):
    """What the first pass found in a file: its digest, and a volume or the outcome without one."""

    source: Source
    digest: str
    volume: AnyVolume | None
    outcome: Outcome | None


def first_pass(item: tuple[Source, str], options: Options) -> Read:
    """Checks one file; whatever is wrong with it becomes an outcome."""
    source, digest = item
    try:
        return Read(source, digest, _inspect(source, digest, options), None)
    except Exception as error:  # one bad file never stops the others
        return Read(source, digest, None, failure(source.name, error))


def _inspect(source: Source, digest: str, options: Options) -> AnyVolume:
    if options.measurements == "real":
        target: RecordedTarget = "rss" if options.target == "rss" else "auto"
        return inspect_recorded(source.path, source.name, digest, options.coils, options.slices, target)
    return inspect(source.path, source.name, digest, Wanted(options.coils, options.target, options.slices))


def common_size(volumes: Sequence[AnyVolume], size: int | tuple[int, int] | None) -> tuple[int, int]:
    """(H, W) of the slices: as asked for, else that of all targets, else fastMRI's 320 x 320 when they differ."""
    if size is not None:
        return (size, size) if isinstance(size, int) else size
    sizes = {volume.size for volume in volumes}
    return sizes.pop() if len(sizes) == 1 else FASTMRI_SIZE


def plan(volumes: Sequence[AnyVolume], options: Options) -> tuple[list[Planned], list[Outcome]]:
    """Drops copies, assigns splits by subject, and orders the volumes by content."""
    unique = {volume.digest: volume for volume in reversed(volumes)}
    copies = [v for v in volumes if unique[v.digest] is not v]
    outcomes = [Outcome(v.name, "skipped", "copy of another file", f"({unique[v.digest].name})") for v in copies]
    ordered = [unique[digest] for digest in sorted(unique)]
    splits = split_subjects([v.subject for v in ordered], options.seed, options.shares)
    planned = []
    for volume in ordered:
        split = splits[volume.subject]
        if split is None:
            outcomes.append(Outcome(volume.name, "skipped", "beyond the --train and --test counts"))
        else:
            planned.append(Planned(volume, split))
    return planned, outcomes


def choose_pipeline(volumes: Sequence[AnyVolume], options: Options) -> tuple[Pipeline, dict[str, str]]:
    """What all slices go through, and by digest the volumes that do not fit it, with the cause."""
    recorded = [volume for volume in volumes if isinstance(volume, RecordedVolume)]
    if recorded:
        return common_recording(recorded, options, common_size(recorded, options.size))
    size = common_size(volumes, options.size)
    sigma = float(options.sigma or 0)
    acquired = Acquisition(
        size, options.acceleration, options.center_fraction, sigma, options.seed, options.with_image, options.mask_seed
    )
    return Simulation(acquired, options.normalise), {}


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
    digests = list(_mapped(digest_or_nothing, [source.path for source in sources], job, "digests"))
    unread = [outcome.cause for outcome in stray if outcome.status == "failed"]
    digest = provenance(job.pseudonyms, job.configuration(), digests + unread)
    names = [source.name for source in sources] + [outcome.name for outcome in stray]
    earlier = None if overwrite else earlier_outcomes(job.out, digest, names, job.pseudonyms)
    if earlier is not None:
        job.console.print("up to date: same input, same configuration")
        return _conclude(job, earlier)
    items = list(zip(sources, digests, strict=True))
    reads = list(_mapped(partial(first_pass, options=job.options), items, job, "checks"))
    outcomes = stray + [read.outcome for read in reads if read.outcome is not None]
    volumes = [read.volume for read in reads if read.volume is not None]
    if not volumes:
        print_summary(outcomes, job.console)
        raise PrepError(f"no usable volume among {len(sources)} files of {job.source}: nothing was written")
    pipeline, misfits = choose_pipeline(volumes, job.options)
    outcomes += [Outcome(v.name, "failed", misfits[v.digest]) for v in volumes if v.digest in misfits]
    for remark in remarks([v for v in volumes if v.digest not in misfits], pipeline, job.options):
        job.console.print(remark, markup=False, soft_wrap=True)
    planned, left_out = plan([v for v in volumes if v.digest not in misfits], job.options)
    if dry_run:
        return _preview(job, planned, pipeline, outcomes + left_out)
    lineage = {source_hash(read.source.name, job.pseudonyms): read.digest for read in reads}
    header = pipeline.header(job.configuration(), lineage, digest)
    return _write(job, planned, pipeline, header, outcomes + left_out)


def remarks(volumes: Sequence[AnyVolume], pipeline: Pipeline, options: Options) -> Iterator[str]:
    """What the volumes together made of the knobs, where that is not what was asked for."""
    recorded = [volume for volume in volumes if isinstance(volume, RecordedVolume)]
    coils = min([volume.coils for volume in recorded], default=0)
    if 0 < coils < options.virtual_coils and coils < max(volume.coils for volume in recorded):
        yield f"{pipeline.coils} virtual coils: one volume has no more than {coils}, and one file has one number of coils"
    stored = sum(volume.mask is not None for volume in recorded)
    if stored:
        ignored = "the mask asked for is not used" if options.mask else "--acceleration and --center-fraction are not used"
        yield f"{stored} of {len(recorded)} volumes are undersampled: their mask is that of all, no ground truth, {ignored}"


def _mapped(function: Callable[[T], R], items: Sequence[T], job: Job, label: str) -> Iterator[R]:
    return tracked(ordered_map(function, items, job.pool, 2 * job.workers), len(items), label)


def _preview(job: Job, planned: Sequence[Planned], pipeline: Pipeline, outcomes: Sequence[Outcome]) -> bool:
    for volume, split in planned:
        job.console.print(f"{volume.name}: {len(volume.slices)} slices from {volume.target} to {split}", markup=False)
    height, width = pipeline.size
    job.console.print(f"dry run: would write slices of {height} x {width} to {job.out}", soft_wrap=True)
    print_summary(outcomes, job.console)
    return all(outcome.status != "failed" for outcome in outcomes)


def _write(job: Job, planned: Sequence[Planned], pipeline: Pipeline, header: SliceHeader, outcomes: list[Outcome]) -> bool:
    announce_changes(job.out, header.configuration, job.console)
    work = partial(second_pass, pipeline=pipeline, pseudonyms=job.pseudonyms)
    todo = tasks(planned, pipeline)
    with SliceWriter(job.out, header, pipeline.size, pipeline.with_image, pipeline.coils) as writer:
        volume = WrittenVolume(writer)
        for task, part in zip(todo, _mapped(work, todo, job, "slices"), strict=True):
            volume.add(part)
            if task.last:
                outcomes.append(volume.finish(task.planned))
        if writer.n == 0:
            print_summary(outcomes, job.console)
            raise PrepError(f"no slice could be made of {len(planned)} volumes: nothing was written")
    write_manifest(job.out, header.digest, outcomes, job.pseudonyms)
    return _conclude(job, outcomes)


def _conclude(job: Job, outcomes: Sequence[Outcome]) -> bool:
    print_summary(outcomes, job.console)
    header = read_header(job.out)
    counts = split_counts(header.splits)
    job.console.print(f"{job.out}: {header.n} slices of {header.size[0]} x {header.size[1]} ({counts})", soft_wrap=True)
    for target in sorted({outcome.target for outcome in outcomes if outcome.target and header.has_image}):
        n = sum(outcome.target == target for outcome in outcomes)
        job.console.print(f"ground truth from {target}: {n} volumes", markup=False)
    return all(outcome.status != "failed" for outcome in outcomes)
