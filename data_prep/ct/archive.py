"""The first pass over an archive: every file by its header, CT images gathered into series, everything else with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from data_prep.ct import metadata as ct_metadata
from data_prep.ct.header import CTFile, read_ct
from data_prep.ct.metadata import Entry, read_table
from data_prep.ct.series import CTSeries, by_series, make_series, name_series
from data_prep.run.folders import Source, find_files
from data_prep.run.manifest import Outcome, PrepError, SkipError
from es_medical.data.dicom.files import Content, content_of

DICOM_SUFFIXES = {".dcm", ".dicom", ".ima"}

Mapped = Callable[[Callable[[Source], CTFile | Outcome], Sequence[Source]], Iterable[CTFile | Outcome]]


class Archive(NamedTuple):
    """What an archive holds.

    Attributes:
        series: those with at least one slice to take, by name.
        outcomes: everything that is not taken, with the reason.
        n_files: number of files looked at.
    """

    series: list[CTSeries]
    outcomes: list[Outcome]
    n_files: int


def scan(source: Path, out: Path, mapped: Mapped) -> Archive:
    """Looks at the header of every file; of the pixels it reads nothing.

    Args:
        source: folder, or one file.
        out: the file that will be written, which is left aside.
        mapped: a map over files, in order.

    Raises:
        PrepError: nothing there.
    """
    files, outcomes = find_files(source, out)
    images = list[CTFile]()
    for found in mapped(_looked_at, files):
        if isinstance(found, Outcome):
            outcomes.append(found)
        else:
            images.append(found)
    table = _tables(files, outcomes)
    groups = by_series(images)
    folders = Counter(folder for group in groups for folder in {file.name.rpartition("/")[0] for file in group})
    series = [_checked(make_series(group, name_series(group, folders)), group, table) for group in groups]
    outcomes = [*_with_table(outcomes, table, groups), *_dropped(series)]
    return Archive(sorted((one for one in series if one.slices), key=lambda one: one.name), outcomes, len(files))


def _looked_at(source: Source) -> CTFile | Outcome:
    try:
        content = content_of(source.path)
        return read_ct(source.path, source.name, content) if content in {"dicom", "bare"} else _not_dicom(source, content)
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
    """What becomes of a file that is no DICOM: an error only where its name says that it should be."""
    if content == "archive":
        return Outcome(source.name, "skipped", "a packed file: unpack it where it holds DICOM")
    if source.path.suffix.lower() in DICOM_SUFFIXES:
        return Outcome(source.name, "failed", "not a DICOM file, in spite of its suffix")
    return Outcome(source.name, "skipped", "not a DICOM file")


def _tables(files: Sequence[Source], outcomes: Sequence[Outcome]) -> dict[str, Entry]:
    """All tables of the archive in one."""
    other = {outcome.name for outcome in outcomes}
    table = dict[str, Entry]()
    for file in files:
        if file.path.name.lower() == ct_metadata.NAME and file.name in other:
            try:
                table |= read_table(file.path)
            except OSError:
                continue
    return table


def _checked(series: CTSeries, group: Sequence[CTFile], table: dict[str, Entry]) -> CTSeries:
    """What the table adds to a series: a patient where the files name none, and where the two disagree."""
    entry = table.get(group[0].series)
    if entry is None:
        return series
    notes, patient = list(series.notes), f"patient/{entry.patient}"
    if entry.images and entry.images != len(group):
        notes.append(f"{ct_metadata.NAME} lists {entry.images} images, {len(group)} are here")
    if entry.patient and series.patient.startswith("patient/") and series.patient != patient:
        notes.append(f"{ct_metadata.NAME} names another patient: the files count")
    known = series.patient.startswith("patient/") or not entry.patient
    return replace(series, notes=tuple(notes), patient=series.patient if known else patient)


def _with_table(outcomes: Iterable[Outcome], table: dict[str, Entry], groups: Sequence[Sequence[CTFile]]) -> Iterator[Outcome]:
    """The outcomes; that of a table also counts its CT series that are missing here."""
    here = {group[0].series for group in groups}
    missing = sum(entry.modality in {"", "CT"} and uid not in here for uid, entry in table.items())
    for outcome in outcomes:
        if table and outcome.name.rpartition("/")[2].lower() == ct_metadata.NAME:
            absent = f": {missing} of its CT series are not here" if missing else ""
            yield replace(outcome, cause=f"a table of series, compared with the files{absent}")
        else:
            yield outcome


def _dropped(series: Iterable[CTSeries]) -> Iterator[Outcome]:
    """Files of series that are not taken; a series without one good file is one failure."""
    for one in series:
        if one.slices or len(one.dropped) == 1:
            yield from one.dropped
        else:
            causes = Counter(outcome.cause for outcome in one.dropped).most_common(1)
            yield Outcome(one.name, "failed", f"{causes[0][0]} (all {len(one.dropped)} files fail)")
