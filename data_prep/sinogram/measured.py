"""Prepare measured sinograms as one slice file: corrected line integrals of one scanner, no simulation."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.run.folders import Source, digest_or_nothing, find_files, no_digest, without_copies
from data_prep.run.manifest import Outcome, PrepError, Pseudonyms, SkipError, check_replaceable
from data_prep.run.plan import Inventory, Made, Plan, Tally, Task
from data_prep.run.runner import PrepRun, run
from data_prep.run.splits import BEYOND, split_subjects
from data_prep.sinogram.archive import File, Item, Scanner, read_row, shared_scanner
from data_prep.sinogram.arrays import format_of
from data_prep.sinogram.files import open_scan
from data_prep.sinogram.geometry_file import Setup
from data_prep.sinogram.options import SinogramOptions
from data_prep.sinogram.preview import write_preview
from data_prep.sinogram.reference import Reference
from data_prep.sinogram.scan import Scan
from es_medical.data import Shapes, SliceHeader, SliceRecord, read_header
from es_medical.data.schema import MEASURED

CONE = "a fan beam with {} detector rows is a cone beam, and only its central row a fan beam: --slices middle"
NUMBER = re.compile(r"-?\d+(\.\d+)?")
LEAST, MOST = 1e-3, 100.0  # 1/cm: no object of matter has another attenuation


class Found(NamedTuple):
    """A file of sinograms, or several of one scan: paths, name, SHA-256, content and split."""

    paths: tuple[Path, ...]
    name: str
    digest: str
    scan: Scan
    split: str = ""

    def items(self, options: SinogramOptions) -> list[Item]:
        """The slices to take of it."""
        return [Item(self.paths, self.digest, row, self.split) for row in options.rows(self.scan.rows)]


def prepare(
    prep: PrepRun[SinogramOptions], source: Path, dry_run: bool = False, overwrite: bool = False, preview: bool = False
) -> bool:
    """Write the slice file and its manifest, unless they are up to date; with `preview` also a picture of some slices.

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
    succeeded = run(prep, inventory, partial(plan, prep, taken), report_scanner, dry_run, overwrite)
    if preview and not dry_run:
        prep.say(f"picture: {write_preview(prep.out)}")
    return succeeded


def prepare_input(prep: PrepRun[SinogramOptions], source: Path, trained: Mapping[str, Any]) -> bool:
    """Prepare what a network reconstructs, and check that it is in the unit of the training data.

    Args:
        prep: the preparation run, with the options of the training.
        source: file or folder.
        trained: what the training data say of their units.

    Raises:
        PrepError: as `prepare`; or 1/bin where the training had 1/cm, or the reverse.
    """
    succeeded = prepare(prep, source)
    found, wanted = read_header(prep.out).operator[MEASURED]["attenuation"], trained["attenuation"]
    if found != wanted:
        raise PrepError(
            f"sinograms in {found}, the weights were trained on {wanted}: the width of the bins decides (bin_width)"
        )
    return succeeded


def find_scans(prep: PrepRun[SinogramOptions], source: Path) -> tuple[list[Found], list[Outcome]]:
    """The scans below a folder, each content once, and the outcomes of the other files."""
    setup = prep.options.setup
    files, outcomes = find_files(source, prep.out)
    beside = {Path(name).name for name in (setup.white, setup.dark, setup.angles) if isinstance(name, str)}
    outcomes += [Outcome(file.name, "skipped", "named in the geometry") for file in files if file.path.name in beside]
    files = [file for file in files if file.path.name not in beside]
    found = list[Found]()
    for name, group in _scans(files, setup).items():
        paths = tuple(file.path for file in group)
        try:
            scan = open_scan(paths, setup)
            if scan.beam.kind == "fan" and len(prep.options.rows(scan.rows)) > 1 and setup.files != "rows":
                raise PrepError(CONE.format(scan.rows))
            named = [path for path in (paths[0].parent / name for name in sorted(beside)) if path.is_file()]
            digests = list(prep.mapped(digest_or_nothing, [*paths, *named], "digests", no_digest))
            digest = digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()
            found.append(Found(paths, name, digest, scan))
        except SkipError as error:
            outcomes.append(Outcome(name, "skipped", str(error)))
        except PrepError as error:
            outcomes.append(Outcome(name, "failed", str(error), error.detail))
    kept, copies = without_copies(found, lambda one: one.digest, lambda one: one.name)
    return kept, [*outcomes, *copies]


def _scans(files: Sequence[Source], setup: Setup) -> dict[str, list[Source]]:
    """The files of each scan by its name: one each, or all arrays of a folder in the order of their names."""
    groups: dict[str, list[Source]] = defaultdict(list)
    for file in files:
        array = setup.files != "scans" and format_of(file.path)
        groups[file.name.rpartition("/")[0] or "." if array else file.name].append(file)
    return groups


def plan(prep: PrepRun[SinogramOptions], found: Sequence[Found]) -> Plan[Item]:
    """Find what all slices share by reading each once, and plan to make them."""
    options, pseudonyms = prep.options, prep.pseudonyms
    ordered = sorted(found, key=lambda one: (one.split, pseudonyms.of("subject", one.digest)))  # names have no influence
    scanner, notes, deviating = shared_scanner(prep, [File(one.name, one.scan, one.items(options)) for one in ordered])
    prep.say(*notes)
    kept = [one for one in ordered if one.name not in {outcome.name for outcome in deviating}]
    reference = Reference.of(scanner) if options.reference else None
    return Plan(
        operator=scanner,
        shapes=Shapes.sinogram((options.size, options.size), scanner.mask.shape),
        make=partial(make_slice, scanner=scanner, reference=reference, options=options, pseudonyms=pseudonyms),
        tasks=[Task(one.name, item) for one in kept for item in one.items(options)],
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
    y, sigma, notes = scanner.stored(row.p, scanner.physics), row.sigma / scanner.divisor, row.whole.notes
    if options.noise == "fit" and (unexplained := scanner.unexplained(y)) > sigma:
        times = f"{unexplained / sigma:.1f} times the noise" if sigma > 0 else "all that is known of the noise"
        notes = (*notes, f"what no image explains is {times}: counted as noise")
        sigma = unexplained
    volume = pseudonyms.of("volume", item.digest)
    image = None if reference is None else reference.image(row.whole)
    scale, offset = scanner.units
    record = SliceRecord(
        measurement=y,
        image=image,
        id=pseudonyms.of("slice", item.digest, item.row),
        subject=pseudonyms.of("subject", item.digest),
        split=item.split,
        scale=scale,
        offset=offset,
        spacing=scanner.spacing,
        data_range=math.nan if image is None else 1.0,
        slice=item.row,
        slice_spacing=row.slice_spacing,
        sigma=sigma,
        volume=volume,
    )
    return Made([record], notes)


def report(tally: Tally, scans: dict[str, Scan]) -> Iterable[Outcome]:
    """Outcome of a file."""
    if tally.failures:
        return tally.failures
    return [tally.done([*scans[tally.name].notes, *summed(tally.notes)], "measured")]


def summed(notes: Mapping[str, int]) -> list[str]:
    """Notes of the slices of a file as one: whole numbers are added, others become a range.

    >>> summed({"3 outliers: masked": 2, "1 outliers: masked": 1, "air read 0.10": 1, "air read 0.12": 1})
    ['7 outliers: masked', 'air read 0.10 to 0.12']
    """
    alike: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for note, count in notes.items():
        number = NUMBER.search(note)
        alike[NUMBER.sub("{}", note, count=1)].append((number[0] if number else "", count))
    return [words.format(_together(numbers)) for words, numbers in alike.items()]


def _together(numbers: Sequence[tuple[str, int]]) -> str:
    texts = sorted({text for text, _ in numbers}, key=lambda text: float(text or 0))
    if all(text.isdecimal() for text in texts):
        return str(sum(int(text) * count for text, count in numbers))
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def report_scanner(header: SliceHeader, _: Sequence[Outcome]) -> Iterable[str]:
    """Describe the scanner in one line."""
    views, bins = header.mask.shape
    measured, kind = header.operator[MEASURED], header.operator["geometry"]
    image = "reference stored" if header.has_image else "no image stored"
    yield (
        f"{views} views of {bins} bins, {kind} beam, {1 - header.mask.float().mean():.1%} of the rays masked, an image of 1 is "
        f"{measured['scale']:g} {measured['attenuation']}, noise of each slice stored, {image}"
    )
    if measured["attenuation"] == "1/cm" and not LEAST < measured["scale"] < MOST:
        yield f"an attenuation of {measured['scale']:g} 1/cm is unusual: are all lengths in mm?"
