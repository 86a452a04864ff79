"""Prepare MR images of any archive as one slice file, with k-space simulated once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from data_prep.mr_images.grid import Scan
from data_prep.mr_images.image_file import SUFFIXES, examine_file, quiet
from data_prep.mr_images.options import MROptions
from data_prep.mr_images.receive import drawn_maps, drawn_phase
from data_prep.mr_images.series import Frame, examine_series, read_images
from data_prep.mr_images.slices import Prepared, Size, new_size, new_spacing
from data_prep.mr_images.slices import prepare as prepare_slices
from data_prep.mr_images.subjects import by_content, statement, subjects_of
from data_prep.mri.normalisation import Acquisition, VolumeRange
from data_prep.run.folders import Source, digest_or_nothing, find_files, no_digest, without_copies
from data_prep.run.manifest import Outcome, PrepError, Pseudonyms, SkipError, check_replaceable, lost_file
from data_prep.run.plan import Inventory, Made, Plan, Tally, Task
from data_prep.run.runner import PrepRun, measured_by, run
from data_prep.run.splits import BEYOND, split_subjects
from es_medical.data import Shapes, SliceHeader, SliceRecord
from es_medical.data.dicom.elements import quiet_pydicom
from es_medical.data.dicom.files import content_of

TARGET = "MR images"
DICOM_SUFFIXES = (".dcm", ".dicom", ".ima")


class Archive(NamedTuple):
    """What an archive holds: its volumes, and why the rest is left out."""

    scans: list[Scan]
    outcomes: list[Outcome]


class Planned(NamedTuple):
    """A volume to take and its split."""

    scan: Scan
    split: str


class Labelled(NamedTuple):
    """A slice with what is stored beside it; `height` is its distance from the middle of the volume, in fields of view."""

    slice: Prepared
    range: VolumeRange
    key: str
    subject: str
    split: str
    volume: str
    height: float


def prepare(prep: PrepRun[MROptions], source: Path, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Returns:
        True if every file was taken or left out for a reason, and none failed.

    Raises:
        PrepError: no input, nothing to write, or OUT exists and is no slice file.
    """
    with _quiet_readers():
        check_replaceable(prep.out, overwrite)
        archive = examine(prep, source)
        if not archive.scans:
            prep.give_up(archive.outcomes, f"no MR volume below {source}")
        prep.say(*statement(archive.scans))
        planned, left_out = assign(archive.scans, prep.options)
        sources = {scan.name: scan.digest for scan in archive.scans}
        identity = [f"{item.split}/{item.scan.digest}" for item in planned]
        inventory = Inventory(sources, [*archive.outcomes, *left_out], identity)
        lines = measured_by(describe, prep.out)
        return run(prep, inventory, partial(plan, prep, planned), lines, dry_run, overwrite)


@contextmanager
def _quiet_readers() -> Iterator[None]:
    with quiet(), quiet_pydicom():
        yield


def examine(prep: PrepRun[MROptions], source: Path) -> Archive:
    """Read the header of every file, and find the volumes.

    Raises:
        PrepError: the source does not exist or holds no file, or the pattern of subjects is not found in a name.
    """
    files, outcomes = find_files(source, prep.out)
    digests = list(prep.mapped(digest_or_nothing, [file.path for file in files], "digests", no_digest))
    subjects = subjects_of([file.name for file in files if _is_image(file)], prep.options.subject_pattern)
    pairs = list(zip(files, digests, strict=True))
    frames, scans = list[Frame](), list[Scan]()
    examined = partial(_examined, subjects=subjects, options=prep.options)
    for found in prep.mapped(examined, pairs, "headers", lambda item: lost_file(item[0])):
        if isinstance(found, Scan):
            scans.append(found)
        elif isinstance(found, Outcome):
            outcomes.append(found)
        else:
            frames.extend(found)
    for one in examine_series(frames, prep.options):
        (outcomes if isinstance(one, Outcome) else scans).append(one)  # type: ignore[arg-type]
    kept, copies = without_copies(by_content(scans), lambda scan: scan.digest, lambda scan: scan.name)
    return Archive(sorted(kept, key=lambda scan: scan.digest), [*outcomes, *copies])


def _is_image(file: Source) -> bool:
    name = PurePosixPath(file.name).name
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _examined(item: tuple[Source, str], subjects: Mapping[str, str], options: MROptions) -> Scan | Outcome | list[Frame]:
    source, digest = item
    try:
        if _is_image(source):
            return examine_file(source, digest, subjects[source.name], options)
        content = content_of(source.path)
        if content in {"dicom", "bare"}:
            return read_images(source, digest, content)
        if source.path.suffix.lower() in DICOM_SUFFIXES:
            raise PrepError("not a DICOM file, in spite of its suffix")
        raise SkipError(f"neither DICOM nor {', '.join(SUFFIXES)}")
    except SkipError as error:
        return Outcome(source.name, "skipped", str(error))
    except PrepError as error:
        return Outcome(source.name, "failed", str(error))
    except Exception as error:  # one bad file never stops the others; its text may quote the file
        return Outcome(source.name, "failed", f"unexpected {type(error).__name__}")


def assign(scans: Sequence[Scan], options: MROptions) -> tuple[list[Planned], list[Outcome]]:
    """Assign splits by subject."""
    splits = split_subjects([scan.subject for scan in scans], options.seed, options.shares)
    planned = [Planned(scan, split) for scan in scans if (split := splits[scan.subject]) is not None]
    return planned, [Outcome(scan.name, "skipped", BEYOND) for scan in scans if splits[scan.subject] is None]


def plan(prep: PrepRun[MROptions], planned: Sequence[Planned]) -> Plan[Planned]:
    """Choose the grid of all slices; each volume is one task."""
    options = prep.options
    size = common_size([item.scan for item in planned], options)
    prep.say(*remarks([item.scan for item in planned], options))
    acquisition = Acquisition(
        size, options.acceleration, options.center_fraction, options.sigma, options.seed, options.with_image, options.mask_seed
    )
    return Plan(
        operator=acquisition,
        shapes=Shapes.kspace(size, options.coils),
        make=partial(make, options=options, size=size, pseudonyms=prep.pseudonyms),
        tasks=[Task(item.scan.name, item) for item in planned],
        report=partial(report, notes={item.scan.name: item.scan.notes for item in planned}),
        coils=options.coils,
        measure=partial(measure, acquisition=acquisition, options=options),
        what=f"{len(planned)} volumes",
        setting=_quiet_readers,
    )


def common_size(scans: Sequence[Scan], options: MROptions) -> Size:
    """Rows and columns of the slices: the size asked for, else the smallest square of 8 n that cuts no image."""
    sizes = (new_size(scan.size, scan.spacing, new_spacing(scan.spacing, options.spacing)) for scan in scans)
    side = options.size or max(16, 8 * math.ceil(max(map(max, sizes)) / 8))  # networks halve it three times
    return side, side


def remarks(scans: Sequence[Scan], options: MROptions) -> Iterator[str]:
    """Say where the slices of a file differ in plane or pixel size."""
    planes = sorted({scan.plane for scan in scans})
    if len(planes) > 1:
        yield f"slices of several planes: {', '.join(planes)} (--plane takes one of all volumes)"
    spacings = sorted({round(new_spacing(scan.spacing, options.spacing)[0], 3) for scan in scans if scan.spacing[0] > 0})
    if len(spacings) > 1:
        yield f"pixels of {spacings[0]:g} to {spacings[-1]:g} mm in one file: --spacing MM makes them equal"


def make(item: Planned, options: MROptions, size: Size, pseudonyms: Pseudonyms) -> Made:
    """Read and prepare one volume.

    Raises:
        PrepError: it cannot be used.
    """
    scan = item.scan
    stack = scan.read()
    prepared = prepare_slices(stack, options, size)
    subject, volume = pseudonyms.of("subject", scan.subject), pseudonyms.of("volume", scan.digest)
    middle = (len(stack.planes) - 1) / 2
    records = [
        Labelled(
            slice=one,
            range=prepared.range,
            key=pseudonyms.of("slice", scan.digest, one.number),
            subject=subject,
            split=item.split,
            volume=volume,
            height=_in_fields(one, size) * (one.number - middle),
        )
        for one in prepared.slices
    ]
    return Made(records, list(prepared.notes.elements()))


def _in_fields(one: Prepared, size: Size) -> float:
    """Distance of neighbouring slices in fields of view; a hundredth where it is unknown."""
    share = one.place.slice_spacing / (size[0] * one.place.spacing[0])
    return share if share > 0 else 0.01


def measure(items: Sequence[Labelled], acquisition: Acquisition, options: MROptions) -> Iterator[SliceRecord]:
    """Simulate the measurements of some slices."""
    side, seed = acquisition.size[0], options.seed
    for (image, place, number), volume, key, subject, split, name, height in items:
        phase = drawn_phase(side, seed, key) if options.phase else None
        maps = drawn_maps(options.coils, side, height, seed, name) if options.coils else None
        record = acquisition.record(image, volume, options.normalise, key, subject, split, place, number, phase, maps)
        yield record._replace(volume=name)


def report(tally: Tally, notes: Mapping[str, Sequence[str]]) -> Iterable[Outcome]:
    """Outcome of a volume, with notes that count slices."""
    if tally.failures:
        return tally.failures
    counted = (f"{note} ({count})" for note, count in sorted(tally.notes.items()))
    return [tally.done([*notes[tally.name], *counted], TARGET)]


def describe(header: SliceHeader) -> str:
    """Describe the sampling mask and the coils in one line."""
    coils = f", {header.coils} coils" if header.coils else ""
    return f"{int(header.mask.sum())} of {header.mask.shape[-1]} k-space lines (nominal x{header.acceleration:g}){coils}"
