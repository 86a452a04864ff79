"""Prepare a CT archive (LIDC-IDRI, or any folder of DICOM files) as one slice file of sinograms, simulated once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from data_prep.ct.archive import Archive, scan
from data_prep.ct.options import LIDCOptions
from data_prep.ct.pixels import read_hounsfield
from data_prep.ct.series import CTSeries
from data_prep.ct.simulation import BATCH, Labelled, Scanner
from data_prep.ct.slice import HIGHEST
from data_prep.ct.slice import prepare as prepare_slice
from data_prep.run.folders import digest_or_nothing, no_digest
from data_prep.run.manifest import Outcome, Pseudonyms, check_replaceable, lost_file
from data_prep.run.plan import Inventory, Made, Plan, Preview, Tally, Task
from data_prep.run.runner import PrepRun, noise_and_truth, run, show_preview
from data_prep.run.splits import BEYOND, split_subjects
from es_medical.data import Shapes, SliceHeader
from es_medical.data.dicom.elements import quiet_pydicom

RULES = "volumes, padding and cut values as of 0.2"  # what else decides a file: changed when equal files give other slices
BLANK, COPIES = "blank slices left out", "copies of other slices left out"


class Planned(NamedTuple):
    """A series, the slices to take from it, and their split."""

    series: CTSeries
    indices: tuple[int, ...]
    split: str


class Chosen(NamedTuple):
    """One slice to take: its series, its index in the series, its file, the SHA-256 of the file, and its split."""

    series: CTSeries
    number: int
    path: Path
    digest: str
    split: str


def prepare(prep: PrepRun[LIDCOptions], source: Path, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Returns:
        True if every file was taken or left out for a reason, and none failed.

    Raises:
        PrepError: no input, nothing to write, or OUT exists and is no slice file.
    """
    with quiet_pydicom():
        check_replaceable(prep.out, overwrite)
        archive = scan(source, prep.out, partial(prep.mapped, label="headers", lost=lost_file), bool(prep.options.burned_in))
        if not archive.series:
            prep.give_up(archive.outcomes, f"no CT series among {archive.n_files} files of {source}")
        prep.say(*one_patient(archive.series, prep.options))
        planned, left_out = assign(archive.series, prep.options, prep.pseudonyms)
        outcomes = archive.outcomes + left_out
        if dry_run:
            return show_preview(prep, preview(planned, prep.options), outcomes)
        tasks = chosen_slices(prep, source, planned)
        inventory = take_stock(archive, tasks, outcomes)
        lines = partial(report_scanner, options=prep.options)
        return run(prep, inventory, partial(plan, prep, planned, tasks), lines, overwrite=overwrite)


def assign(series: Sequence[CTSeries], options: LIDCOptions, pseudonyms: Pseudonyms) -> tuple[list[Planned], list[Outcome]]:
    """Choose series and slices, and assign splits by patient (or `split_by`); file and folder names have no influence."""
    patients: dict[str, list[CTSeries]] = defaultdict(list)
    for candidate in series:
        patients[candidate.subject(options.split_by)].append(candidate)
    splits = split_subjects([pseudonyms.of("subject", patient) for patient in patients], options.seed, options.shares)
    planned, outcomes = list[Planned](), list[Outcome]()
    for patient, scans in sorted(patients.items(), key=lambda item: pseudonyms.of("subject", item[0])):
        ranked = sorted(scans, key=partial(_rank, pseudonyms=pseudonyms))
        taken = ranked[:1] if options.series == "one" else ranked
        split = splits[pseudonyms.of("subject", patient)]
        if split is None:
            outcomes += [Outcome(candidate.name, "skipped", BEYOND) for candidate in ranked]
            continue
        planned += [Planned(candidate, candidate.chosen(options.slices), split) for candidate in taken]
        cause = "another series of the patient is taken (--series all takes each)"
        outcomes += [Outcome(candidate.name, "skipped", cause) for candidate in ranked[len(taken) :]]
    return planned, outcomes


def one_patient(series: Sequence[CTSeries], options: LIDCOptions) -> Iterator[str]:
    """A warning where several studies are all of one PatientID: an anonymiser may have replaced all by one."""
    patients, studies = ({item.subject(by) for item in series} for by in (None, "study"))
    if len(patients) == 1 < len(studies) and options.split_by is None and (options.test or options.val != 0):
        yield (
            f"all {len(series)} scans have one PatientID and count as one patient, in one split: where they are of several "
            "people, --split-by study (or series) tells them apart"
        )


def _rank(series: CTSeries, pseudonyms: Pseudonyms) -> tuple[bool, bool, int, str]:
    """Sort key that puts the best series of a patient first: acquired (not derived), axial, most slices."""
    first = series.slices[0].file
    return (
        series.secondary,
        not series.axial,
        -len(series.slices),
        pseudonyms.of("series", first.identity.series, first.instance),
    )


def preview(planned: Sequence[Planned], options: LIDCOptions) -> Preview:
    """What a dry run prints."""
    lines = [
        "; ".join([f"{series.name}: {len(indices)} of {len(series.slices)} slices to {split}", *series.notes])
        for series, indices, split in planned
    ]
    return Preview(lines, f"{sum(len(item.indices) for item in planned)} slices of {options.size} x {options.size}")


def chosen_slices(prep: PrepRun[LIDCOptions], source: Path, planned: Sequence[Planned]) -> list[Task[Chosen]]:
    """One task per slice; reads all files to compute their digests (each frame of an enhanced image has one of its own)."""
    chosen = [(item, number, item.series.slices[number].file) for item in planned for number in item.indices]
    paths = {file.name: source / file.name if source.is_dir() else source for _, _, file in chosen}
    digests = dict(zip(paths, prep.mapped(digest_or_nothing, list(paths.values()), "digests", no_digest), strict=True))
    return [
        Task(
            item.series.name,
            Chosen(item.series, number, paths[file.name], digests[file.name] + f"/{file.frame}" * bool(file.frame), item.split),
            file.label,
            digests[file.name],
        )
        for item, number, file in chosen
    ]


def take_stock(archive: Archive, tasks: Sequence[Task[Chosen]], outcomes: Sequence[Outcome]) -> Inventory:
    """Inventory of the series: SHA-256 of the chosen file, or of the concatenated digests if several are chosen."""
    digests: dict[str, dict[str, None]] = defaultdict(dict)
    for task in tasks:
        digests[task.source][task.digest] = None  # once, for all frames of an enhanced image
    sources = {
        name: next(iter(one)) if len(one) == 1 else sha256("".join(one).encode()).hexdigest() for name, one in digests.items()
    }
    others = [*(series.name for series in archive.series), *(task.file for task in tasks)]
    return Inventory(sources, outcomes, [RULES, *(task.work.digest for task in tasks)], others)


def plan(prep: PrepRun[LIDCOptions], planned: Sequence[Planned], tasks: Sequence[Task[Chosen]]) -> Plan[Chosen]:
    """Plan of the run: slices are read one by one, and measured in batches by one simulated scanner."""
    options, size = prep.options, (prep.options.size, prep.options.size)
    scanner = Scanner(options.size, options.views, options.sigma, options.seed, options.with_image, options.photons)
    return Plan(
        operator=scanner,
        shapes=Shapes.sinogram(size, scanner.shape),
        make=partial(make_slice, options=options, pseudonyms=prep.pseudonyms),
        tasks=tasks,
        report=partial(report, planned={item.series.name: item for item in planned}),
        measure=scanner.records,
        batch=BATCH,
        what=f"{len(planned)} series",
        setting=quiet_pydicom,
    )


def make_slice(chosen: Chosen, options: LIDCOptions, pseudonyms: Pseudonyms) -> Made:
    """Read and prepare one slice; a blank slice gives a note and nothing to measure.

    Raises:
        PrepError: the slice cannot be used.
    """
    series, number = chosen.series, chosen.number
    hu = read_hounsfield(chosen.path, series.slices[number].file, options.intercept)
    prepared = prepare_slice(hu.values, series.geometry(number), options.size)
    if not prepared.image.any():
        return Made(notes=[BLANK])
    subject = pseudonyms.of("subject", series.subject(options.split_by))
    first = series.slices[0].file
    own: tuple[str | int, ...] = (first.instance or first.label, first.frame) if series.several else ()
    volume = pseudonyms.of("volume", series.patient, first.identity.series, *own)
    key = pseudonyms.of("slice", chosen.digest)
    notes = [*hu.notes, *[f"slices with values above {HIGHEST:g} HU, which stop there"] * bool(prepared.clipped)]
    return Made([Labelled(prepared, key, subject, chosen.split, number, volume)], notes, content=key)


def report(tally: Tally, planned: dict[str, Planned]) -> Iterable[Outcome]:
    """Outcome of a series, followed by those of its slices that failed."""
    series, indices, _ = planned[tally.name]
    if tally.copies:
        tally.notes[COPIES] = tally.copies
    if tally.n:
        yield tally.done([*series.notes, *tally.shares(len(indices))], "CT images")
    elif not tally.failures:
        yield Outcome(series.name, "failed", "every chosen slice is blank, or a copy")
    yield from tally.failures


def report_scanner(header: SliceHeader, _: Sequence[Outcome], options: LIDCOptions) -> Iterable[str]:
    """Describe the simulated scanner in one line."""
    views, detectors = header.mask.shape[0], header.operator.get("n_detectors")
    yield f"{views} views of {detectors} detector bins, parallel beam of unit norm, {noise_and_truth(header, options.noise)}"
