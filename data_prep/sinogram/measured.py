"""Prepare measured sinograms as one slice file: corrected line integrals of one scanner, no simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from data_prep.run.folders import digest_or_nothing, find_files, without_copies
from data_prep.run.manifest import Outcome, PrepError, Pseudonyms, SkipError, check_replaceable
from data_prep.run.plan import Inventory, Made, Plan, Tally, Task
from data_prep.run.runner import PrepRun, run
from data_prep.run.splits import BEYOND, split_subjects
from data_prep.sinogram.archive import Item, Scanner, read_row, shared_scanner
from data_prep.sinogram.files import open_scan
from data_prep.sinogram.options import SinogramOptions
from data_prep.sinogram.reference import Reference
from data_prep.sinogram.scan import Scan
from es_medical.data import Shapes, SliceHeader, SliceRecord


class Found(NamedTuple):
    """A file of sinograms: its path, name, SHA-256, content and split."""

    path: Path
    name: str
    digest: str
    scan: Scan
    split: str = ""

    def items(self, options: SinogramOptions) -> list[Item]:
        """The slices to take of it."""
        return [Item(self.path, self.digest, row, self.split) for row in options.rows(self.scan.rows)]


def prepare(prep: PrepRun[SinogramOptions], source: Path, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Returns:
        True if every file was taken or left out for a reason, and none failed.

    Raises:
        PrepError: no sinogram, nothing to write, or OUT exists and is no slice file.
    """
    check_replaceable(prep.out, overwrite)
    found, outcomes = find_scans(prep, source)
    if not found:
        prep.give_up(outcomes, f"no sinogram below {source}")
    subjects = [prep.pseudonyms.of("subject", one.digest) for one in found]
    splits = split_subjects(subjects, prep.options.seed, prep.options.shares)
    assigned = [one._replace(split=splits[subject] or "") for one, subject in zip(found, subjects, strict=True)]
    outcomes += [Outcome(one.name, "skipped", BEYOND) for one in assigned if not one.split]
    taken = [one for one in assigned if one.split]
    inventory = Inventory({one.name: one.digest for one in found}, outcomes, [one.digest for one in found])
    return run(prep, inventory, partial(plan, prep, taken), partial(report_scanner, prep), dry_run, overwrite)


def find_scans(prep: PrepRun[SinogramOptions], source: Path) -> tuple[list[Found], list[Outcome]]:
    """The files of sinograms, each content once, and the outcomes of the other files."""
    files, outcomes = find_files(source, prep.out)
    found = list[Found]()
    for file in files:
        try:
            found.append(Found(file.path, file.name, digest_or_nothing(file.path), open_scan(file.path)))
        except SkipError as error:
            outcomes.append(Outcome(file.name, "skipped", str(error)))
        except PrepError as error:
            outcomes.append(Outcome(file.name, "failed", str(error)))
    kept, copies = without_copies(found, lambda one: one.digest, lambda one: one.name)
    return kept, [*outcomes, *copies]


def plan(prep: PrepRun[SinogramOptions], found: Sequence[Found]) -> Plan[Item]:
    """Find what all slices share by reading each once, and plan to make them."""
    options, pseudonyms = prep.options, prep.pseudonyms
    scanner, notes, deviating = shared_scanner(prep, [(one.name, one.scan, one.items(options)) for one in found])
    prep.say(*notes)
    kept = [one for one in found if one.name not in {outcome.name for outcome in deviating}]
    ordered = sorted(kept, key=lambda one: (one.split, pseudonyms.of("subject", one.digest)))
    reference = Reference.of(scanner) if options.reference else None
    return Plan(
        operator=scanner,
        shapes=Shapes.sinogram((options.size, options.size), scanner.mask.shape),
        make=partial(make_slice, scanner=scanner, reference=reference, options=options, pseudonyms=pseudonyms),
        tasks=[Task(one.name, item) for one in ordered for item in one.items(options)],
        report=partial(report, scans={one.name: one.scan for one in kept}),
        outcomes=deviating,
    )


def make_slice(
    item: Item, scanner: Scanner, reference: Reference | None, options: SinogramOptions, pseudonyms: Pseudonyms
) -> Made:
    """Read and correct one detector row, and bring it to the units of the file.

    Raises:
        PrepError: the row cannot be used.
    """
    row = read_row(item, scanner.acquisition, options)
    volume = pseudonyms.of("volume", item.digest)
    image = None if reference is None else reference.image(row.whole)
    record = SliceRecord(
        measurement=scanner.stored(row.p, scanner.physics),
        image=image,
        id=pseudonyms.of("slice", item.digest, item.row),
        subject=pseudonyms.of("subject", item.digest),
        split=item.split,
        scale=scanner.scale,
        spacing=scanner.spacing,
        data_range=float("nan") if image is None else max(float(image.max()), 1e-6),
        slice=item.row,
        sigma=row.sigma / scanner.divisor,
        volume=volume,
    )
    return Made([record], row.whole.notes)


def report(tally: Tally, scans: dict[str, Scan]) -> Iterable[Outcome]:
    """Outcome of a file."""
    if tally.failures:
        return tally.failures
    return [tally.done([*scans[tally.name].notes, *tally.shares(tally.n)], "measured")]


def report_scanner(prep: PrepRun[SinogramOptions], header: SliceHeader, _: Sequence[Outcome]) -> Iterable[str]:
    """Describe the scanner in one line."""
    views, bins = header.mask.shape
    measured, kind = header.operator["measured"], header.operator["geometry"]
    image = "reference stored" if header.has_image else "no image stored"
    yield (
        f"{views} views of {bins} bins, {kind} beam, {1 - header.mask.float().mean():.1%} of the rays masked, images of 1 are "
        f"{measured['scale']:g} {measured['unit']}, noise of each slice stored, {image}"
    )
