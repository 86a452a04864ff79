"""First pass over an archive: read every header, group CT images into series, and give a reason for every other file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from data_prep.ct import metadata as ct_metadata
from data_prep.ct.header import CTFile, read_ct
from data_prep.ct.metadata import Entry, read_table
from data_prep.ct.pixels import read_hounsfield
from data_prep.ct.series import CTSeries, Group, by_volume, make_series, name_series
from data_prep.run.folders import Source, find_files
from data_prep.run.manifest import Outcome, PrepError, SkipError
from es_medical.data.dicom.files import Content, content_of

DICOM_SUFFIXES = {".dcm", ".dicom", ".ima"}

Mapped = Callable[[Callable[[Source], list[CTFile] | Outcome], Sequence[Source]], Iterable[list[CTFile] | Outcome]]


class Archive(NamedTuple):
    """What an archive holds.

    Attributes:
        series: the series with at least one usable slice, sorted by name.
        outcomes: everything that is not taken, with the reason.
        n_files: number of files read.
    """

    series: list[CTSeries]
    outcomes: list[Outcome]
    n_files: int


def scan(source: Path, out: Path, mapped: Mapped, burned_in: bool = False) -> Archive:
    """Read the header of every file; pixels are read only where nothing else tells several images at one place apart.

    Args:
        source: folder, or one file.
        out: the file that will be written; it is ignored as a source.
        mapped: a map over files, in order.
        burned_in: whether to take images with annotations in their pixels.

    Raises:
        PrepError: the source does not exist or holds no file.
    """
    files, outcomes = find_files(source, out)
    images = list[CTFile]()
    for found in mapped(partial(_read_header, burned_in=burned_in), files):
        if isinstance(found, Outcome):
            outcomes.append(found)
        else:
            images += found
    table = _tables(files, outcomes)
    groups = by_volume(images, partial(_pixels, paths={file.name: file.path for file in files}))
    folders = Counter(folder for group in groups for folder in {file.name.rpartition("/")[0] for file in group.files})
    counts = Counter(file.identity.series for file in images if file.frame <= 1)
    series = [_checked(make_series(group, name_series(group, folders)), group, table, counts) for group in groups]
    shared = Counter((item.patient, item.slices[0].file.identity.series) for item in series if item.slices)
    series = [
        replace(item, several=shared[item.patient, item.slices[0].file.identity.series] > 1) if item.slices else item
        for item in series
    ]
    outcomes = [*_with_table(outcomes, table, set(counts)), *_dropped(series)]
    return Archive(sorted((item for item in series if item.slices), key=lambda item: item.name), outcomes, len(files))


def _pixels(file: CTFile, paths: Mapping[str, Path]) -> Hashable:
    """A digest of the pixels of a file; of its own name where they cannot be read."""
    try:
        return sha256(read_hounsfield(paths[file.name], file, 0.0).values.tobytes()).digest()
    except (PrepError, OSError):
        return file.label


def _read_header(source: Source, burned_in: bool) -> list[CTFile] | Outcome:
    try:
        content = content_of(source.path)
        if content not in {"dicom", "bare"}:
            return _not_dicom(source, content)
        return read_ct(source.path, source.name, content, burned_in)
    except SkipError as error:
        return Outcome(source.name, "skipped", str(error))
    except PrepError as error:
        known = str(error) != _not_dicom(source, "other").cause
        return Outcome(source.name, "failed", str(error)) if known else _not_dicom(source, "other")
    except OSError as error:
        return Outcome(source.name, "failed", f"cannot be read ({error.strerror})")
    except Exception as error:  # one bad file never stops the others; its text may quote the file
        return Outcome(source.name, "failed", f"unexpected {type(error).__name__}")


def _not_dicom(source: Source, content: Content) -> Outcome:
    """Outcome of a file that is not DICOM: failed only if its suffix claims that it is."""
    if content == "archive":
        return Outcome(source.name, "skipped", "a packed file: unpack it where it holds DICOM")
    if source.path.suffix.lower() in DICOM_SUFFIXES:
        return Outcome(source.name, "failed", "not a DICOM file, in spite of its suffix")
    return Outcome(source.name, "skipped", "not a DICOM file")


def _tables(files: Sequence[Source], outcomes: Sequence[Outcome]) -> dict[str, Entry]:
    """Merge all tables of the archive."""
    other = {outcome.name for outcome in outcomes}
    table = dict[str, Entry]()
    for file in files:
        if file.path.name.lower() == ct_metadata.NAME and file.name in other:
            try:
                table |= read_table(file.path)
            except OSError:
                continue
    return table


def _checked(series: CTSeries, group: Group, table: dict[str, Entry], counts: Counter[str]) -> CTSeries:
    """Complete a series from the table: the patient if the files name none, and notes where files and table disagree."""
    uid = group.files[0].identity.series
    entry = table.get(uid)
    if entry is None:
        return series
    notes, patient = list(series.notes), f"patient/{entry.patient}"
    if entry.images and entry.images != counts[uid]:
        notes.append(f"{ct_metadata.NAME} lists {entry.images} images, {counts[uid]} are here")
    if entry.patient and series.patient.startswith("patient/") and series.patient != patient:
        notes.append(f"{ct_metadata.NAME} names another patient: that of the files is used")
    known = series.patient.startswith("patient/") or not entry.patient
    return replace(series, notes=tuple(notes), patient=series.patient if known else patient)


def _with_table(outcomes: Iterable[Outcome], table: dict[str, Entry], here: set[str]) -> Iterator[Outcome]:
    """The outcomes; the outcome of a table also says how many of its CT series are missing."""
    missing = sum(entry.modality in {"", "CT"} and uid not in here for uid, entry in table.items())
    for outcome in outcomes:
        if table and outcome.name.rpartition("/")[2].lower() == ct_metadata.NAME:
            absent = f": {missing} of its CT series are not here" if missing else ""
            yield replace(outcome, cause=f"a table of series, compared with the files{absent}")
        else:
            yield outcome


def _dropped(series: Iterable[CTSeries]) -> Iterator[Outcome]:
    """Outcomes of the dropped files of all series; a series without any good file is a single failure."""
    for item in series:
        if item.slices or len(item.dropped) == 1:
            yield from item.dropped
        else:
            causes = Counter(outcome.cause for outcome in item.dropped).most_common(1)
            yield Outcome(item.name, "failed", f"{causes[0][0]} (all {len(item.dropped)} files fail)")
