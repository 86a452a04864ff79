"""`metadata.csv` of an LIDC-IDRI download (columns of the old and of the new NBIA retriever): a cross-check, never needed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

NAME = "metadata.csv"
COLUMNS = {
    "series": ("seriesuid", "seriesinstanceuid", "seriesid"),
    "patient": ("subjectid", "patientid", "patient"),
    "images": ("numberofimages", "imagecount", "images"),
    "modality": ("modality",),
}
LARGEST = 2**26  # bytes of a table that is read


class Entry(NamedTuple):
    """One row of the table; "" and 0 where it is empty."""

    patient: str
    images: int
    modality: str


def read_table(path: Path) -> dict[str, Entry]:
    """Series by SeriesInstanceUID; nothing from a table without such a column.

    Raises:
        OSError: it cannot be read.
    """
    if path.stat().st_size > LARGEST:
        return {}
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        try:
            names = {key: _column(rows.fieldnames or (), wanted) for key, wanted in COLUMNS.items()}
            found = {_cell(row, names["series"]): _entry(row, names) for row in rows}
        except csv.Error:
            return {}
    found.pop("", None)
    return found


def _column(names: Iterable[str], wanted: tuple[str, ...]) -> str:
    """The column of one of these names, whatever its case, blanks and underscores."""
    plain = {"".join(filter(str.isalnum, name)).lower(): name for name in names}
    return next((plain[one] for one in wanted if one in plain), "")


def _entry(row: Mapping[str, str], names: Mapping[str, str]) -> Entry:
    images = _cell(row, names["images"])
    return Entry(_cell(row, names["patient"]), int(images) if images.isdecimal() else 0, _cell(row, names["modality"]).upper())


def _cell(row: Mapping[str, str], name: str) -> str:
    return (row.get(name) or "").strip()
