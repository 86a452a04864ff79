"""Read `metadata.csv` of an LIDC-IDRI download (old and new NBIA Data Retriever), an optional cross-check of the files."""

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
LARGEST = 2**26  # bytes; larger tables are ignored


class Entry(NamedTuple):
    """One row of the table; "" and 0 where it is empty."""

    patient: str
    images: int
    modality: str


def read_table(path: Path) -> dict[str, Entry]:
    """Read a table: SeriesInstanceUID -> entry; empty if it has no such column.

    Raises:
        OSError: the table cannot be read.
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
    """The column with one of these names; case, blanks and underscores are ignored."""
    plain = {"".join(filter(str.isalnum, name)).lower(): name for name in names}
    return next((plain[name] for name in wanted if name in plain), "")


def _entry(row: Mapping[str, str], names: Mapping[str, str]) -> Entry:
    images = _cell(row, names["images"])
    return Entry(_cell(row, names["patient"]), int(images) if images.isdecimal() else 0, _cell(row, names["modality"]).upper())


def _cell(row: Mapping[str, str], name: str) -> str:
    return (row.get(name) or "").strip()
