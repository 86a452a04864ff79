"""Prepare MR images of any archive as one slice file, with k-space simulated once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from data_prep.mr_images.options import MROptions
from data_prep.mr_images.slices import Prepared, Size, new_size, new_spacing
from data_prep.mr_images.slices import prepare as prepare_slices
from data_prep.mr_images.subjects import statement, subjects_of
from data_prep.mr_images.volume import SUFFIXES, Grid, quiet, read_grid, read_stack
from data_prep.mri.normalisation import Acquisition, VolumeRange
from data_prep.run.folders import Source, digest_or_nothing, listed, regular, without_copies
from data_prep.run.manifest import Outcome, PrepError, Pseudonyms, check_replaceable
from data_prep.run.plan import Inventory, Made, Plan, Tally, Task
from data_prep.run.runner import PrepRun, measured_by, run
from data_prep.run.splits import BEYOND, split_subjects
from es_medical.data import Shapes, SliceHeader, SliceRecord

TARGET = "MR images"


class Examined(NamedTuple):
    """A file whose header was read.

    Attributes:
        source: its path and name.
        digest: SHA-256 of its bytes.
        directions: of columns, rows and slices, see `data_prep.mr_images.volume.DIRECTIONS`.
        grid: its voxels, axes in these directions.
    """

    source: Source
    digest: str
    directions: str
    grid: Grid


class Planned(NamedTuple):
    """A file to take, its subject (the digest of one of the subject's files) and its split."""

    file: Examined
    subject: str
    split: str


class Labelled(NamedTuple):
    """A slice with what is stored beside it."""

    slice: Prepared
    range: VolumeRange
    key: str
    subject: str
    split: str
    volume: str


def prepare(prep: PrepRun[MROptions], source: Path, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Returns:
        True if every file was taken or left out for a reason, and none failed.

    Raises:
        PrepError: no input, nothing to write, or OUT exists and is no slice file.
    """
    with quiet():
        check_replaceable(prep.out, overwrite)
        files, stray = listed(source, prep.out, _check)
        if not files:
            raise PrepError(f"no {', '.join(SUFFIXES)} file below {source} ({len(stray)} others)")
        digests = list(prep.mapped(digest_or_nothing, [file.path for file in files], "digests"))
        pairs = list(zip(files, digests, strict=True))
        subjects = subjects_of([file.name for file in files], prep.options.subject_pattern)
        prep.say(*statement(subjects))
        people = _people(pairs, subjects)
        identity = [f"{people[subjects[file.name]]}/{digest}" for file, digest in pairs]
        inventory = Inventory({file.name: digest for file, digest in pairs}, stray, identity)
        lines = measured_by(describe, prep.out)
        return run(prep, inventory, partial(plan, prep, pairs, stray, subjects, people), lines, dry_run, overwrite)


def _check(item: Source) -> Source | Outcome:
    name = PurePosixPath(item.name).name
    found = regular(item)
    if isinstance(found, Outcome) or (name.lower().endswith(SUFFIXES) and not name.startswith(".")):
        return found
    return Outcome(item.name, "skipped", f"not a {', '.join(SUFFIXES)} file")


def _people(pairs: Sequence[tuple[Source, str]], subjects: Mapping[str, str]) -> dict[str, str]:
    """Subject -> the first of the digests of its files, so that names do not decide the split."""
    digests = defaultdict[str, list[str]](list)
    for file, digest in pairs:
        digests[subjects[file.name]].append(digest)
    return {subject: min(several) for subject, several in digests.items()}


def plan(
    prep: PrepRun[MROptions],
    pairs: Sequence[tuple[Source, str]],
    stray: Sequence[Outcome],
    subjects: Mapping[str, str],
    people: Mapping[str, str],
) -> Plan[Planned]:
    """Read every header, assign splits by subject, and choose the grid of all slices.

    Raises:
        PrepError: no usable volume.
    """
    options = prep.options
    found = list(prep.mapped(partial(examine, options=options), pairs, "headers"))
    outcomes = [item for item in found if isinstance(item, Outcome)]
    files, copies = without_copies(
        [item for item in found if isinstance(item, Examined)], lambda file: file.digest, lambda file: file.source.name
    )
    outcomes += copies
    if not files:
        prep.give_up([*stray, *outcomes], f"no usable volume among {len(pairs)} files")
    files.sort(key=lambda file: file.digest)
    person = {file.source.name: people[subjects[file.source.name]] for file in files}
    splits = split_subjects([person[file.source.name] for file in files], options.seed, options.shares)
    planned, beyond = list[Planned](), list[Outcome]()
    for file in files:
        subject = person[file.source.name]
        if (split := splits[subject]) is None:
            beyond.append(Outcome(file.source.name, "skipped", BEYOND))
        else:
            planned.append(Planned(file, subject, split))
    size = common_size([item.file.grid for item in planned], options)
    prep.say(*remarks([item.file for item in planned], options))
    acquisition = Acquisition(
        size, options.acceleration, options.center_fraction, options.sigma, options.seed, options.with_image, options.mask_seed
    )
    return Plan(
        operator=acquisition,
        shapes=Shapes.kspace(size),
        make=partial(make, options=options, size=size, pseudonyms=prep.pseudonyms),
        tasks=[Task(item.file.source.name, item) for item in planned],
        report=report,
        outcomes=[*outcomes, *beyond],
        measure=partial(measure, acquisition=acquisition, options=options),
    )


def examine(item: tuple[Source, str], options: MROptions) -> Examined | Outcome:
    """Read the header of one file: its grid, or an outcome that says what is wrong with it."""
    source, digest = item
    try:
        grid = read_grid(source.path)
        directions = grid.directions(options.plane)
        return Examined(source, digest, directions, grid.towards(directions))
    except PrepError as error:
        return Outcome(source.name, "failed", str(error))
    except Exception as error:  # one bad file never stops the others
        return Outcome(source.name, "failed", f"unexpected {type(error).__name__}")


def common_size(grids: Sequence[Grid], options: MROptions) -> Size:
    """Rows and columns of the slices: the size asked for, else the smallest square that cuts no image."""
    if options.size is not None:
        return options.size, options.size
    side = 0
    for grid in grids:
        old = grid.plane(0).spacing
        side = max(side, *new_size((grid.shape[1], grid.shape[0]), old, new_spacing(old, options.spacing)))
    return side, side


def remarks(files: Sequence[Examined], options: MROptions) -> Iterator[str]:
    """Say where the slices of a file will differ in plane or pixel size."""
    names = {"LPS": "axial", "LIP": "coronal", "PIR": "sagittal"}
    planes = sorted({names[file.directions] for file in files})
    if len(planes) > 1:
        yield f"slices of several planes: {', '.join(planes)} (--plane takes one of all volumes)"
    spacings = sorted({round(new_spacing(file.grid.plane(0).spacing, options.spacing)[0], 3) for file in files})
    if len(spacings) > 1:
        yield f"pixels of {spacings[0]:g} to {spacings[-1]:g} mm in one file: --spacing MM makes them equal"


def make(item: Planned, options: MROptions, size: Size, pseudonyms: Pseudonyms) -> Made:
    """Read and prepare one volume.

    Raises:
        PrepError: it cannot be used.
    """
    file, digest = item.file, item.file.digest
    volume = prepare_slices(*read_stack(file.source.path, file.directions), options, size)
    subject, name = pseudonyms.of("subject", item.subject), pseudonyms.of("volume", digest)
    keys = [pseudonyms.of("slice", digest, one.number) for one in volume.slices]
    records = [
        Labelled(one, volume.range, key, subject, item.split, name) for one, key in zip(volume.slices, keys, strict=True)
    ]
    return Made(records, list(volume.notes.elements()))


def measure(items: Sequence[Labelled], acquisition: Acquisition, options: MROptions) -> Iterator[SliceRecord]:
    """Simulate the measurements of some slices."""
    for (image, place, number), volume, key, subject, split, name in items:
        record = acquisition.record(image, volume, options.normalise, key, subject, split, place, number)
        yield record._replace(volume=name)


def report(tally: Tally) -> Iterable[Outcome]:
    """Outcome of a volume, with notes that count slices."""
    if tally.failures:
        return tally.failures
    return [tally.done([f"{note} ({count})" for note, count in sorted(tally.notes.items())], TARGET)]


def describe(header: SliceHeader) -> str:
    """Describe the sampling mask in one line."""
    return f"{int(header.mask.sum())} of {header.mask.shape[-1]} k-space lines (nominal x{header.acceleration:g})"
