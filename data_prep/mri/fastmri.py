"""Prepare MR volumes as one slice file: simulated as in the paper (`Simulation`), or from recorded k-space (`Recording`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple

from data_prep.mri.array_file import SUFFIXES as ARRAYS
from data_prep.mri.array_file import read_axes
from data_prep.mri.common_grid import Grid, common_grid, common_recording, field_of, grid_note, pixel_remark, unusual
from data_prep.mri.fastmri_file import unlike
from data_prep.mri.options import FastMRIOptions
from data_prep.mri.recorded import Layout, RecordedTarget, RecordedVolume, inspect_recorded
from data_prep.mri.recording import Recording
from data_prep.mri.simulation import Simulation, Volume, Wanted, inspect
from data_prep.mri.twix_file import TWIX
from data_prep.run.folders import Source, digest_or_nothing, find_sources, without_copies
from data_prep.run.manifest import (
    SUFFIXES,
    Outcome,
    PrepError,
    Pseudonyms,
    SkipError,
    check_replaceable,
    lost_file,
    split_counts,
)
from data_prep.run.plan import Inventory, Made, Plan, Preview, Tally, Task
from data_prep.run.runner import PrepRun, run
from data_prep.run.splits import BEYOND, split_subjects
from data_prep.run.store import Store, Stored, amount, copies_kept, find_objects
from es_medical.data import Shapes, SliceHeader, SliceRecord
from es_medical.data.pixels import Pixels
from es_medical.splits import unit_of

AnyVolume = Volume | RecordedVolume
Pipeline = Simulation | Recording

TASK_BYTES = 2**25  # of records that a thread makes before it hands them on


class Planned(NamedTuple):
    """A volume and the split of its slices."""

    volume: AnyVolume
    split: str


class Chunk(NamedTuple):
    """Slices of a volume that are read together."""

    planned: Planned
    indices: tuple[int, ...]


def prepare(prep: PrepRun[FastMRIOptions], source: Path | Store, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Returns:
        True if every file was done or skipped for a reason, and none failed.

    Raises:
        PrepError: no input, nothing to write, or OUT exists and is no slice file.
    """
    suffixes = suffixes_of(prep.options)
    sources = list[Source | Stored]()
    if isinstance(source, Store):
        objects, stray = find_objects(source, suffixes)
        sources.extend(objects)
        prep.say(f"{source}: {amount(objects)}, copied to {gettempdir()} (TMPDIR) while they are read")
    else:
        files, stray = find_sources(source, prep.out, suffixes)
        sources.extend(files)
    check_replaceable(prep.out, overwrite)
    with copies_kept() if isinstance(source, Store) else nullcontext():
        look = partial(_first_look, options=prep.options)
        looked = list(prep.mapped(look, sources, "files", lambda item: ("", lost_file(item))))
        digests, found = [digest for digest, _ in looked], [one for _, one in looked]
        inventory = Inventory(dict(zip((item.name for item in sources), digests, strict=True)), stray, digests)
        return run(prep, inventory, partial(plan, prep, source, found, stray), report_targets, dry_run, overwrite)


def _first_look(source: Source | Stored, options: FastMRIOptions) -> tuple[str, AnyVolume | Outcome]:
    """The SHA-256 of a file or object, "" if it can't be read, and its volume or what is wrong with it."""
    if isinstance(source, Source):
        digest = digest_or_nothing(source.path)
        return digest, check(source, digest, options)
    try:
        with copies_kept() as copies, copies.of(source) as copy:
            found = check(Source(copy.path, source.name), copy.digest, options)
            return copy.digest, found if isinstance(found, Outcome) else replace(found, path=source)
    except PrepError as error:
        return "", Outcome(source.name, "failed", str(error), error.detail)


def plan(
    prep: PrepRun[FastMRIOptions], source: Path | Store, found: Sequence[AnyVolume | Outcome], stray: Sequence[Outcome]
) -> Plan[Chunk]:
    """Choose the preparation that all slices share.

    Args:
        prep: the preparation run.
        source: the folder, for the error message.
        found: the volumes, and outcomes of files that are none.
        stray: outcomes of the other files in the folder, for the error message.

    Raises:
        PrepError: no usable volume.
    """
    options = prep.options
    outcomes = [item for item in found if isinstance(item, Outcome)]
    volumes = [item for item in found if not isinstance(item, Outcome)]
    if not volumes:
        prep.give_up([*stray, *outcomes], f"no usable volume among {len(found)} files of {source}")
    grid = common_grid(volumes, options.size, None if options.pixels is None else Pixels(*options.pixels))
    pipeline, misfits = choose_pipeline(volumes, options, grid)
    outcomes += [Outcome(volume.name, "failed", misfits[volume.digest]) for volume in volumes if volume.digest in misfits]
    fitting = [volume for volume in volumes if volume.digest not in misfits]
    prep.say(*remarks(fitting, pipeline, options))
    planned, left_out = assign(fitting, options)
    height, width = pipeline.size
    splits = Counter(split for volume, split in planned for _ in volume.slices)
    blank = ", fewer if some are blank" if options.measurements == "real" and options.slices == "all" else ""
    lines = [f"{volume.name}: {len(volume.slices)} slices from {volume.target} to {split}" for volume, split in planned]
    return Plan(
        operator=pipeline,
        shapes=Shapes.kspace(pipeline.size, pipeline.coils),
        make=partial(make, pipeline=pipeline, pseudonyms=prep.pseudonyms),
        tasks=chunks(planned, pipeline),
        report=partial(report, planned={item.volume.name: item for item in planned}, remark=partial(note, grid, options)),
        outcomes=[*outcomes, *left_out],
        coils=pipeline.coils,
        whole=frozenset(volume.name for volume, _ in planned if volume.whole),
        what=f"{len(planned)} volumes",
        preview=Preview(lines, f"{splits.total()} slices of {height} x {width} ({split_counts(splits)}){blank}"),
        setting=nullcontext if isinstance(source, Path) else copies_kept,
    )


def suffixes_of(options: FastMRIOptions) -> frozenset[str]:
    """Ends of the names of files that are read."""
    recorded = {TWIX, *(ARRAYS if options.axes else ())} if options.measurements == "real" else ()
    return frozenset({*SUFFIXES, *recorded})


def check(source: Source, digest: str, options: FastMRIOptions) -> AnyVolume | Outcome:
    """Check one file: return its volume, or an outcome that says what is wrong with it."""
    try:
        if options.measurements == "real":
            target: RecordedTarget = "rss" if options.target == "rss" else "auto"
            layout = Layout(read_axes(options.axes) if options.axes else (), options.variable or "")
            return inspect_recorded(source.path, source.name, digest, options.coils, options.slices, target, layout)
        return inspect(source.path, source.name, digest, Wanted(options.coils, options.target, options.slices))
    except PrepError as error:
        return Outcome(source.name, "skipped" if isinstance(error, SkipError) else "failed", str(error), error.detail)
    except Exception as error:  # one bad file never stops the others
        return Outcome(source.name, "failed", f"unexpected {type(error).__name__}", detail=str(error))


def assign(volumes: Sequence[AnyVolume], options: FastMRIOptions) -> tuple[list[Planned], list[Outcome]]:
    """Drop copies, assign splits by subject, and order the volumes by content."""
    kept, outcomes = without_copies(volumes, lambda volume: volume.digest, lambda volume: volume.name)
    kept.sort(key=lambda volume: volume.digest)
    splits = split_subjects([volume.subject for volume in kept], options.seed, options.shares)
    planned = [Planned(volume, split) for volume in kept if (split := splits[volume.subject]) is not None]
    beyond = [Outcome(volume.name, "skipped", BEYOND) for volume in kept if splits[volume.subject] is None]
    return planned, [*outcomes, *beyond]


def choose_pipeline(volumes: Sequence[AnyVolume], options: FastMRIOptions, grid: Grid) -> tuple[Pipeline, dict[str, str]]:
    """Choose the preparation that all slices share; also return the volumes that do not fit it (digest -> cause)."""
    recorded = [volume for volume in volumes if isinstance(volume, RecordedVolume)]
    if recorded:
        return common_recording(recorded, options, grid)
    sigma = float(options.sigma or 0)
    knobs = options.acceleration, options.center_fraction, sigma, options.seed, options.with_image, options.mask_seed
    images = [volume for volume in volumes if isinstance(volume, Volume)]
    wanted = {image.digest: grid.spacing or image.spacing for image in images}
    fields = {image.digest: field_of(grid.size, wanted[image.digest], image.spacing) for image in images}
    misfits = {image.digest: cause for image in images if (cause := unlike(wanted[image.digest], image.spacing))}
    return Simulation(grid.size, *knobs, by=options.normalise or "slice", fields=unusual(fields, grid.size)), misfits


def note(grid: Grid, options: FastMRIOptions, volume: AnyVolume) -> str:
    """What a user should know about a volume and the grid of the file, or ""."""
    if isinstance(volume, RecordedVolume) and volume.mask is not None:  # its lines lie on no other grid
        grid = grid._replace(spacing=None)
    own = "" if options.native_width else grid_note(volume, grid, options.size is not None and options.pixels is None)
    return "; ".join(part for part in (volume.note, own) if part)


def remarks(volumes: Sequence[AnyVolume], pipeline: Pipeline, options: FastMRIOptions) -> Iterator[str]:
    """Say where the volumes force settings that differ from the requested ones."""
    recorded = [volume for volume in volumes if isinstance(volume, RecordedVolume)]
    coils = min([volume.coils for volume in recorded], default=0)
    if 0 < coils < options.virtual_coils and coils < max(volume.coils for volume in recorded):
        yield f"{pipeline.coils} virtual coils: one volume has no more than {coils}, and one file has one number of coils"
    if len({volume.size for volume in volumes}) == 1 and (remark := pixel_remark(volumes)):
        yield remark
    stored = sum(volume.mask is not None for volume in recorded)
    if stored:
        ignored = "the mask asked for is not used" if options.mask else "--acceleration and --center-fraction are not used"
        yield f"{stored} of {len(recorded)} volumes are undersampled: their mask is that of all, no ground truth, {ignored}"


def chunks(planned: Sequence[Planned], pipeline: Pipeline) -> list[Task[Chunk]]:
    """Split the volumes into tasks of at most `TASK_BYTES`, so that memory stays bounded for any volume."""
    height, width = pipeline.size
    n = max(1, TASK_BYTES // (8 * height * width * (1 + max(2 * pipeline.coils, 1))))
    return [
        Task(item.volume.name, Chunk(item, item.volume.slices[i : i + n]))
        for item in planned
        for i in range(0, len(item.volume.slices), n)
    ]


def make(chunk: Chunk, pipeline: Pipeline, pseudonyms: Pseudonyms) -> Made:
    """Make the records of some slices; a blank slice gives a note and no record.

    Raises:
        PrepError: a slice cannot be used; the message names it.
    """
    volume: Any = chunk.planned.volume  # of the type that the pipeline takes
    records, notes = list[SliceRecord](), list[str]()
    try:
        for record, remarked in pipeline.records(volume, chunk.indices, chunk.planned.split, pseudonyms):
            records.extend([record] if record is not None else [])
            notes.extend(remarked)
    except PrepError:
        raise
    except Exception as error:  # one bad file never stops the others
        return Made(failure=f"unexpected {type(error).__name__}", detail=str(error))
    return Made(records, notes)


def report(tally: Tally, planned: dict[str, Planned], remark: Callable[[AnyVolume], str]) -> Iterable[Outcome]:
    """Outcome of a volume: either every chosen slice is taken, or none."""
    volume = planned[tally.name].volume
    if tally.failures:
        return tally.failures
    if tally.n == 0:
        return [Outcome(tally.name, "failed", "every chosen slice is blank")]
    notes = [said] if (said := remark(volume)) else []
    return [tally.done([*notes, *tally.shares(len(volume.slices), " slices")], volume.target)]


def report_targets(header: SliceHeader, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Say where the ground truth comes from, and what a mask of samples measures."""
    if unit_of(header.mask) == "samples":
        yield f"mask of samples: {int(header.mask.sum())} of {header.mask.numel()} (acceleration {header.acceleration:g})"
    for target in sorted({outcome.target for outcome in outcomes if outcome.target and header.has_image}):
        yield f"ground truth from {target}: {sum(outcome.target == target for outcome in outcomes)} volumes"
