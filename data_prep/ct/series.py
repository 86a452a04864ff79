"""Turn the files of one CT series into an ordered stack of slices, and report what is missing from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from data_prep.ct.header import CTFile
from data_prep.run.manifest import Outcome, PrepError
from es_medical.data.dicom.volumes import SAME_PLACE, Identity, Stack, by_place, by_uid
from es_medical.data.geometry import NAN, Geometry, normal_of
from es_medical.data.stack import PARALLEL, TILTED, gaps, tilt_of, usual_step

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
        several: whether the patient has another volume of the same SeriesInstanceUID.
    """

    name: str
    patient: str
    slices: tuple[Slice, ...]
    dropped: tuple[Outcome, ...]
    spacing: float
    secondary: bool
    axial: bool
    notes: tuple[str, ...]
    several: bool = False

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

    def subject(self, by: Literal["study", "series"] | None) -> str:
        """What identifies the scan in the split: its patient, or its study or series where it has one."""
        first = self.slices[0].file
        study, series = first.identity.study, first.identity.series
        if by == "series":
            return f"series/{series or first.label}/{study}"
        return f"study/{study}" if by == "study" and study else self.patient

    def geometry(self, index: int) -> Geometry:
        """The plane of a slice, NaN where unknown."""
        file = self.slices[index].file
        unknown = (NAN,) * 3
        return Geometry(
            file.identity.position or unknown,  # type: ignore[arg-type]
            file.identity.orientation or unknown * 2,  # type: ignore[arg-type]
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


class Group(NamedTuple):
    """The files of one volume, and those of its series that belong to none.

    Attributes:
        stack: the files of the volume.
        dropped: why others are left out.
    """

    stack: Stack[CTFile]
    dropped: list[Outcome]

    @property
    def files(self) -> list[CTFile]:
        """The files that the volume is named by."""
        return self.stack.images


def by_volume(files: Iterable[CTFile], pixels: Callable[[CTFile], Hashable]) -> list[Group]:
    """Group files into volumes by `es_medical.data.dicom.volumes`, in whatever folder they are.

    Args:
        files: the files; those without a SeriesInstanceUID form a series in each folder.
        pixels: a digest of the pixels of a file, see `stacks`.
    """
    return [group for part in by_uid(files, _identity) for group in _volumes(part, pixels)]


def _identity(file: CTFile) -> Identity:
    known = file.identity.series
    return file.identity if known else file.identity._replace(series=f"folder {file.name.rpartition('/')[0]}")


def _volumes(part: Stack[CTFile], pixels: Callable[[CTFile], Hashable]) -> list[Group]:
    """The volumes of files with equal UIDs; broken files and those that are no slices of it are dropped from the first one."""
    dropped = [Outcome(file.label, "failed", file.problem) for file in part.images if file.problem]
    dropped += [Outcome(file.label, "skipped", file.left_out) for file in part.images if file.left_out and not file.problem]
    good, copies = _without_copies([file for file in part.images if not (file.problem or file.left_out)])
    for keep, cause in (
        (_primary, "secondary image inside a series of slices"),
        (_placed, "no position, unlike the other slices of its series"),
        (_one_direction, "not parallel to the slices of its series"),
        (_one_size, "image size differs from the other slices of its series"),
    ):
        kept = keep(good)
        if len(kept) < len(good):
            names = {file.label for file in kept}
            dropped += [Outcome(file.label, "skipped", cause) for file in good if file.label not in names]
        good = kept
    if not good:
        return [Group(part, dropped)]
    first, *others = by_place(part._replace(images=good), _identity, pixels)
    return [Group(first._replace(copies=[*first.copies, *copies]), dropped), *(Group(one, []) for one in others)]


def name_series(group: Group, folders: Counter[str]) -> str:
    """Name a volume: its folder if that holds this volume completely and no other, else its first file.

    Args:
        group: files of the volume.
        folders: number of volumes with files in each folder.
    """
    inside = {file.name.rpartition("/")[0] for file in group.files}
    if len(group.files) > 1 and len(inside) == 1 and (folder := next(iter(inside))) and folders[folder] == 1:
        return folder
    first = min(group.files, key=lambda file: (file.name, file.frame))
    return first.label if group.stack.told_by else first.name


def make_series(group: Group, name: str) -> CTSeries:
    """Sort the files of one volume into a stack; none are taken where they form no volume, or cannot be used."""
    good = [file for file in group.files if not (file.problem or file.left_out)]
    dropped, notes = list(group.dropped), Counter(note for file in group.files for note in file.notes)
    if group.stack.problem:
        dropped += [Outcome(file.label, "failed", group.stack.problem) for file in good]
        good = []
    slices, remarks = _ordered(good)
    along = np.array([item.along for item in slices])
    spacing = _spacing(along, good)
    notes.update({"copies of slices left out": n} if (n := len(group.stack.copies)) else {})
    axial = not good or not good[0].identity.orientation or abs(normal_of(good[0].identity.orientation)[2]) >= AXIAL
    secondary = bool(good) and all(file.secondary for file in good)
    lines = [f"one series, several volumes: told apart by {', '.join(told)}"] if (told := group.stack.told_by) else []
    lines += [f"{note} ({count})" for note, count in sorted(notes.items())]
    lines += [*remarks, *gaps(along), *_tilted(slices)]
    lines += ["not axial"] * (not axial) + ["secondary images: derived from others after the scan"] * secondary
    return CTSeries(name, _patient(group.files), tuple(slices), tuple(dropped), spacing, secondary, axial, tuple(lines))


def _tilted(slices: Sequence[Slice]) -> Iterator[str]:
    """A note where the slices are shifted along each other, as those of a tilted gantry are."""
    placed = [item.file.identity for item in slices if item.file.identity.position and item.file.identity.orientation]
    if len(placed) < 2 or len(placed) < len(slices):
        return
    tilt = tilt_of([one.position for one in placed], placed[0].orientation)
    if tilt > TILTED:
        yield f"gantry tilt of {tilt:.3g} degrees: the slices are taken as they are, the volume is sheared"


def _patient(group: Sequence[CTFile]) -> str:
    """The PatientID, else the study, else the series."""
    first = min(group, key=lambda file: file.label)
    known = sorted({file.identity.patient for file in group if file.identity.patient})
    if known:
        return f"patient/{known[0]}"
    study, series = first.identity.study, first.identity.series
    return f"study/{study}" if study else f"series/{series or first.name}"


def _without_copies(files: Sequence[CTFile]) -> tuple[list[CTFile], list[CTFile]]:
    """One file per SOP instance, frame and position, and the copies."""
    unique: dict[Hashable, CTFile] = {}
    for file in sorted(files, key=lambda file: (file.name, file.frame)):
        unique.setdefault((file.instance or f"/{file.name}", file.frame, file.identity.position), file)
    kept = {file.label for file in unique.values()}
    return list(unique.values()), [file for file in files if file.label not in kept]


def _primary(files: list[CTFile]) -> list[CTFile]:
    primary = [file for file in files if not file.secondary]
    return primary or files


def _placed(files: list[CTFile]) -> list[CTFile]:
    placed = [file for file in files if file.identity.position]
    return placed if 2 * len(placed) > len(files) else files


def _one_size(files: list[CTFile]) -> list[CTFile]:
    sizes = Counter(file.encoding.size for file in files if file.encoding)
    common = max(sizes, key=lambda size: (sizes[size], size), default=None)
    return [file for file in files if file.encoding and file.encoding.size == common]


def _one_direction(files: list[CTFile]) -> list[CTFile]:
    """The largest set of parallel slices; files without an orientation are kept."""
    normals = {one: normal_of(one) for one in {file.identity.orientation for file in files} if one}
    best: list[CTFile] = []
    for normal in normals.values():
        parallel = [file for file in files if not (one := file.identity.orientation) or normals[one] @ normal > PARALLEL]
        best = parallel if len(parallel) > len(best) else best
    return best or files


def _ordered(files: Sequence[CTFile]) -> tuple[list[Slice], list[str]]:
    """Slices by position along the normal; by instance number where positions are missing, with a remark."""
    if files and all(file.identity.position for file in files):
        oriented = [file.identity.orientation for file in files if file.identity.orientation]
        normal = normal_of(oriented[0]) if oriented else np.array([0.0, 0.0, 1.0])
        slices = [Slice(file, round(float(normal @ file.identity.position), 4)) for file in files]
        remarks = [] if len(oriented) == len(files) else ["orientation unknown: assumed axial"]
    else:
        slices = [Slice(file, NAN) for file in files]
        remarks = ["positions unknown: ordered by instance numbers"] if len(files) > 1 else []

    def key(item: Slice) -> tuple[float, float, str]:
        numbers = (value if not math.isnan(value) else math.inf for value in (item.along, item.file.number))
        return (*numbers, item.file.instance or item.file.name)  # type: ignore[return-value]

    return sorted(slices, key=key), remarks


def _spacing(along: np.ndarray, files: Sequence[CTFile]) -> float:
    """The usual distance between neighbouring slices; for one slice, or without positions, that stated in the header."""
    if len(along) > 1 and not np.isnan(along).any():
        return round(usual_step(along), 4)
    return files[0].thickness if files else NAN
