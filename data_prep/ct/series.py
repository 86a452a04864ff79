"""Turn the files of one CT series into an ordered stack of slices, and report what is missing from it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_prep.ct.header import CTFile
from data_prep.run.manifest import Outcome, PrepError
from es_medical.data.geometry import NAN, Geometry, normal_of
from es_medical.data.stack import PARALLEL, gaps, usual_step

SAME_PLACE = 1e-2  # mm
AXIAL = 0.8  # smallest cosine between normal and body axis; a gantry is tilted by 30 degrees at most

Chosen = str  # middle, all, or every:N


class Slice(NamedTuple):
    """A file and its position along the slice normal in mm; NaN where unknown."""

    file: CTFile
    along: float


@dataclass(frozen=True)
class CTSeries:
    """A stack of slices in the order of their positions along the slice normal.

    Attributes:
        name: its folder or first file, below the source folder; shown, never stored.
        patient: what identifies the patient in this archive; only its salted hash is stored.
        slices: at most one at each position.
        dropped: files of the series that are not part of the stack, or that cannot be used.
        spacing: distance between neighbouring slices in mm, NaN where unknown.
        secondary: whether it was derived from other images.
        axial: whether the slices are axial.
        notes: what a user should know.
    """

    name: str
    patient: str
    slices: tuple[Slice, ...]
    dropped: tuple[Outcome, ...]
    spacing: float
    secondary: bool
    axial: bool
    notes: tuple[str, ...]

    def chosen(self, which: Chosen) -> tuple[int, ...]:
        """Indices of the slices to take: the middle one by position, all, or every n-th about the middle.

        The middle slice is the one nearest to the midpoint of the first and the last position, so that missing slices do not
        change it.
        """
        n = len(self.slices)
        if which == "all":
            return tuple(range(n))
        middle = self._middle()
        if which == "middle":
            return (middle,)
        step = step_of(which)
        return tuple(range(middle % step, n, step))

    def _middle(self) -> int:
        along = np.array([item.along for item in self.slices])
        if np.isnan(along).any():
            return len(along) // 2
        off = np.abs(along - (along[0] + along[-1]) / 2)
        return int(np.flatnonzero(off < off.min() + SAME_PLACE)[-1])  # n // 2 of evenly spaced slices

    def geometry(self, index: int) -> Geometry:
        """The plane of a slice, NaN where unknown."""
        file = self.slices[index].file
        unknown = (NAN,) * 3
        return Geometry(
            file.position or unknown,  # type: ignore[arg-type]
            file.orientation or unknown * 2,  # type: ignore[arg-type]
            file.spacing or unknown[:2],  # type: ignore[arg-type]
            self.spacing,
        )


def step_of(which: Chosen) -> int:
    """The N of ``every:N``.

    Raises:
        PrepError: `which` is not ``every:N`` with N of at least 1.

    >>> step_of("every:5")
    5
    """
    word, _, number = which.partition(":")
    if word != "every" or not number.isdecimal() or int(number) < 1:
        raise PrepError(f"slices {which!r}: expected middle, all, or every:N with N of at least 1")
    return int(number)


def by_series(files: Iterable[CTFile]) -> list[list[CTFile]]:
    """Group files by SeriesInstanceUID, in whatever folder they are; files without one by their folder.

    A UID shared by several patients (after faulty de-identification) gives one series per patient.
    """
    groups: dict[tuple[str, str], list[CTFile]] = defaultdict(list)
    for file in files:
        folder = "" if file.series else file.name.rpartition("/")[0]
        groups[file.series, folder].append(file)
    return [part for group in groups.values() for part in _by_patient(group)]


def _by_patient(group: list[CTFile]) -> list[list[CTFile]]:
    """The group itself, or if it has several patients one group per patient (and one for files without a patient)."""
    parts: dict[str, list[CTFile]] = defaultdict(list)
    for file in group:
        parts[file.patient].append(file)
    if len(parts.keys() - {""}) < 2:
        return [group]
    note = "one SeriesInstanceUID for several patients: separated by PatientID"
    return [[file._replace(notes=(*file.notes, note)) for file in part] for part in parts.values()]


def name_series(group: Sequence[CTFile], folders: Counter[str]) -> str:
    """Name a series: its folder if that holds this series completely and no other, else its first file.

    Args:
        group: files of the series.
        folders: number of series with files in each folder.
    """
    inside = {file.name.rpartition("/")[0] for file in group}
    if len(group) > 1 and len(inside) == 1 and (folder := next(iter(inside))) and folders[folder] == 1:
        return folder
    return min(file.name for file in group)


def make_series(group: Sequence[CTFile], name: str) -> CTSeries:
    """Sort the files of one series into a stack; drop broken files and those that do not belong to it."""
    notes, dropped = Counter(note for file in group for note in file.notes), list[Outcome]()
    good = [file for file in group if not file.problem]
    dropped += [Outcome(file.name, "failed", file.problem) for file in group if file.problem]
    good, copies = _without_copies(good)
    for keep, cause in (
        (_primary, "secondary image inside a series of slices"),
        (_placed, "no position, unlike the other slices of its series"),
        (_one_direction, "not parallel to the slices of its series"),
        (_one_size, "image size differs from the other slices of its series"),
    ):
        kept = keep(good)
        if len(kept) < len(good):
            names = {file.name for file in kept}
            dropped += [Outcome(file.name, "skipped", cause) for file in good if file.name not in names]
        good = kept
    slices, remarks = _ordered(good)
    slices, doubles = _one_each(slices)
    along = np.array([item.along for item in slices])
    spacing = _spacing(along, good)
    notes.update({"copies of slices left out": copies} if copies else {})
    notes.update({"slices left out at positions already taken (several phases?)": doubles} if doubles else {})
    axial = not good or not good[0].orientation or abs(normal_of(good[0].orientation)[2]) >= AXIAL
    secondary = bool(good) and all(file.secondary for file in good)
    lines = [f"{note} ({count})" for note, count in sorted(notes.items())]
    lines += [*remarks, *gaps(along)]
    lines += ["not axial"] * (not axial) + ["secondary images: derived from others after the scan"] * secondary
    return CTSeries(name, _patient(group), tuple(slices), tuple(dropped), spacing, secondary, axial, tuple(lines))


def _patient(group: Sequence[CTFile]) -> str:
    """The PatientID, else the study, else the series."""
    first = min(group, key=lambda file: file.name)
    known = sorted({file.patient for file in group if file.patient})
    if known:
        return f"patient/{known[0]}"
    return f"study/{first.study}" if first.study else f"series/{first.series or first.name}"


def _without_copies(files: Sequence[CTFile]) -> tuple[list[CTFile], int]:
    """One file per SOP instance, and the number of copies."""
    unique: dict[str, CTFile] = {}
    for file in sorted(files, key=lambda file: file.name):
        unique.setdefault(file.instance or f"/{file.name}", file)
    return list(unique.values()), len(files) - len(unique)


def _primary(files: list[CTFile]) -> list[CTFile]:
    primary = [file for file in files if not file.secondary]
    return primary or files


def _placed(files: list[CTFile]) -> list[CTFile]:
    placed = [file for file in files if file.position]
    return placed if 2 * len(placed) > len(files) else files


def _one_size(files: list[CTFile]) -> list[CTFile]:
    sizes = Counter(file.encoding.size for file in files if file.encoding)
    common = max(sizes, key=lambda size: (sizes[size], size), default=None)
    return [file for file in files if file.encoding and file.encoding.size == common]


def _one_direction(files: list[CTFile]) -> list[CTFile]:
    """The largest set of parallel slices; files without an orientation are kept."""
    normals = {file.orientation: normal_of(file.orientation) for file in files if file.orientation}
    best: list[CTFile] = []
    for normal in normals.values():
        parallel = [file for file in files if not file.orientation or normals[file.orientation] @ normal > PARALLEL]
        best = parallel if len(parallel) > len(best) else best
    return best or files


def _ordered(files: Sequence[CTFile]) -> tuple[list[Slice], list[str]]:
    """Slices by position along the normal; by instance number where positions are missing, with a remark."""
    if files and all(file.position for file in files):
        oriented = [file for file in files if file.orientation]
        normal = normal_of(oriented[0].orientation) if oriented else np.array([0.0, 0.0, 1.0])
        slices = [Slice(file, round(float(normal @ file.position), 4)) for file in files]
        remarks = [] if len(oriented) == len(files) else ["orientation unknown: assumed axial"]
    else:
        slices = [Slice(file, NAN) for file in files]
        remarks = ["positions unknown: ordered by instance numbers"] if len(files) > 1 else []

    def key(item: Slice) -> tuple[float, float, str]:
        numbers = (value if not math.isnan(value) else math.inf for value in (item.along, item.file.number))
        return (*numbers, item.file.instance or item.file.name)  # type: ignore[return-value]

    return sorted(slices, key=key), remarks


def _one_each(slices: Sequence[Slice]) -> tuple[list[Slice], int]:
    """One slice per position, and the number of others."""
    kept: list[Slice] = []
    for item in slices:
        if not kept or not item.along - kept[-1].along < SAME_PLACE:  # never true for unknown positions
            kept.append(item)
    return kept, len(slices) - len(kept)


def _spacing(along: np.ndarray, files: Sequence[CTFile]) -> float:
    """The usual distance between neighbouring slices; for one slice, or without positions, that stated in the header."""
    if len(along) > 1 and not np.isnan(along).any():
        return round(usual_step(along), 4)
    return files[0].thickness if files else NAN
