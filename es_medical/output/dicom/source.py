"""Read the DICOM series that a reconstruction belongs to: find, check and sort its files, and match them with a volume."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydicom import Dataset, dcmread

from es_medical.data.dicom.elements import quiet_pydicom, raw, whole
from es_medical.data.dicom.files import content_of, is_directory, is_scout, sop_class
from es_medical.data.dicom.frames import frames_of
from es_medical.data.dicom.volumes import identity_of, stacks
from es_medical.data.geometry import NAN, Geometry, Size, square_field
from es_medical.data.stack import PARALLEL, SAME_PLACE, along_normal, usual_step
from es_medical.output.dicom.header import MR, ImageKind

logger = logging.getLogger(__name__)

NEEDED = ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "Rows", "Columns")
SIZES = ("Rows", "Columns")
UID_FORM = re.compile(r"[0-9.]{1,64}")
PLANE = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")


@dataclass(frozen=True, eq=False)
class SourceSeries:
    """One MR or CT series without its pixels.

    Attributes:
        slices: data sets (of frames, where the series is enhanced) in the order of their positions along the slice normal.
        planes: the plane of each.
        size: rows and columns.
    """

    slices: tuple[Dataset, ...]
    planes: tuple[Geometry, ...]
    size: Size

    def matched(
        self, wanted: Sequence[Geometry], size: Size, numbers: Sequence[int] | None = None
    ) -> tuple[tuple[Dataset, ...], tuple[Geometry, ...]]:
        """The source slice and the plane of each slice of a volume.

        The volume's pixel grid is that of the source after a crop or padding about index n//2 (equal pixel spacing), after
        resampling over the same field of view, or after padding to a square field of view and resampling; if the volume's
        positions are known, also after resampling and a crop or padding. Slices are matched by position if the volume's
        positions are known (it may then hold only some of the source's slices), else in order
        along the normal (slice 0 is the first).

        Args:
            wanted: the volume's own planes, in the order of its slices' numbers; NaN where unknown.
            size: the volume's rows and columns.
            numbers: number of each slice in the volume, ascending, with gaps where blank slices were left out; None: no gaps.

        Raises:
            ValueError: another number of slices, another field of view, or positions that disagree.
        """
        known, n = all(plane.known for plane in wanted), len(self.slices)
        rows = list(range(len(wanted))) if numbers is None else [int(number) for number in numbers]
        first = 0 if rows[-1] + 1 == n else rows[0]  # the source may hold only these slices of a scan
        span = rows[-1] - first + 1
        if (known and len(wanted) > n) or (not known and span != n):
            raise ValueError(
                f"the source DICOM series has {n} slices, the volume {len(wanted) if known else span}: expected as many"
                + ("" if known else " where the positions of the volume's slices are unknown")
            )
        planes = tuple(self._on_grid(plane, wanted[0].spacing, size, known) for plane in self.planes)
        if n == 1 and np.isnan(planes[0].slice_spacing):  # a source of one slice may not state it
            planes = (replace(planes[0], slice_spacing=wanted[0].slice_spacing),)
        order = [_nearest(plane, planes, size) for plane in wanted] if known else [row - first for row in rows]
        if known and len(wanted) < n:
            _check_heights(wanted, [planes[i] for i in order])
        if len(set(order)) != len(order):
            raise ValueError("two slices of the volume are nearest to one source slice: is this the source of the volume?")
        return tuple(self.slices[i] for i in order), tuple(planes[i] for i in order)

    def _on_grid(self, plane: Geometry, spacing: tuple[float, float], size: Size, known: bool) -> Geometry:
        """The source's plane with the volume's pixel grid of `size` and `spacing`; `known`: its place is checked later."""
        if size == self.size and np.isnan(spacing).any():
            return plane
        square = square_field(self.size, plane.spacing)
        for changed in (
            plane.resized(self.size, size),
            plane.rescaled(self.size, size),
            plane.resized(self.size, square).rescaled(square, size),
        ):
            if np.allclose(spacing, changed.spacing, rtol=0.01):
                return changed
        if known:
            rows, columns = (math.floor(n * (a / b)) for n, a, b in zip(self.size, plane.spacing, spacing, strict=True))
            return plane.respaced(spacing).resized((rows, columns), size)
        field = [pixels * mm for pixels, mm in zip(self.size, plane.spacing, strict=True)]
        wanted = [pixels * mm for pixels, mm in zip(size, spacing, strict=True)]
        raise ValueError(
            f"the source DICOM series has {self.size} pixels of {plane.spacing} mm (field of view {field} mm), the volume "
            f"{size} pixels of {spacing} mm (field of view {wanted} mm): expected the same pixel spacing or field of view"
        )


def _check_heights(wanted: Sequence[Geometry], found: Sequence[Geometry]) -> None:
    """Check that each slice is clearly nearest to its own source slice; otherwise part of a stack could match anywhere."""
    for plane, other in zip(wanted, found, strict=True):
        off = abs(float(other.normal @ np.subtract(plane.position, other.position)))
        if off > other.slice_spacing / 4:
            raise ValueError(
                f"a slice at {plane.position} mm lies {off:.3g} mm from the nearest slice of the source DICOM series, "
                f"whose slices are {other.slice_spacing:.3g} mm apart: expected {other.slice_spacing / 4:.3g} mm at most"
            )


def _nearest(plane: Geometry, planes: Sequence[Geometry], size: Size) -> int:
    """Index of the source plane of a slice; its corners must agree within a pixel, so that flips are detected."""
    corners = [(0, 0), (0, size[1] - 1), (size[0] - 1, 0)]

    def distance(other: Geometry) -> float:
        return max(float(np.linalg.norm(plane.world(*corner) - other.world(*corner))) for corner in corners)

    distances = [distance(other) for other in planes]
    best = int(np.argmin(distances))
    if distances[best] > max(planes[best].spacing):
        raise ValueError(
            f"a slice at {plane.position} mm along {plane.orientation} has no source slice: the nearest is at "
            f"{planes[best].position} mm along {planes[best].orientation}, {distances[best]:.3g} mm off at a corner"
        )
    return best


def read_source(path: str | Path, kind: ImageKind = MR) -> SourceSeries:
    """Read one volume without its pixels: a classic series, or the frames of an enhanced one.

    Args:
        path: one DICOM file (a series of one slice), or a folder whose DICOM files are found by their content.
        kind: MR or CT. Scout images of a CT scan are left out, with a warning in the log.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: no DICOM, another kind, several series or volumes (see `es_medical.data.dicom.volumes`), or slices without
            the elements that the geometry needs.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no source DICOM at {path}: give a file or a folder")
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    root = path if path.is_dir() else path.parent
    found = {name: data for file in files for name, data in _read(file, str(file.relative_to(root)), kind).items()}
    if not found:
        raise ValueError(f"no DICOM file at {path}")
    found = _without_scouts(found, kind)
    _check_kind(found, kind)
    unique = {
        (data.SOPInstanceUID, data.SOPClassUID in kind.enhanced and data.InstanceNumber): name for name, data in found.items()
    }
    if len(unique) < len(found):
        logger.warning("%d copies of source slices are left out", len(found) - len(unique))
    return _sorted(_one_volume({name: found[name] for name in unique.values()}))


def _read(path: Path, name: str, kind: ImageKind) -> dict[str, Dataset]:
    """The data sets of the frames of a DICOM file without pixels; none for any other file and for a DICOMDIR."""
    content = content_of(path)
    if content not in {"dicom", "bare"}:
        return {}
    try:
        with quiet_pydicom():
            data = dcmread(path, stop_before_pixels=True, force=content == "bare")
            _drop_unreadable(data, name)
        if is_directory(data) or (content == "bare" and not sop_class(data)):
            return {}
        frames = frames_of(data) if data.get("SOPClassUID") in kind.enhanced else [data]
    except MemoryError as error:
        raise ValueError(f"source DICOM {name} cannot be read: an element claims more bytes than the memory holds") from error
    except Exception as error:  # broken bytes can raise any exception in pydicom
        raise ValueError(f"source DICOM {name} cannot be read ({type(error).__name__}: {error})") from error
    several = data.get("SOPClassUID") in kind.enhanced
    return {f"{name} frame {frame.InstanceNumber}" if several else name: frame for frame in frames}


def _drop_unreadable(data: Dataset, name: str) -> None:
    """Drop the elements that pydicom cannot convert, with a warning: such an element counts as absent."""
    broken = [tag for tag in data.keys() if raw(data, tag) is None and data.get_item(tag).value]  # noqa: SIM118
    for tag in broken:
        del data[tag]
    if broken:
        logger.warning("source DICOM %s: invalid elements are left out: %s", name, ", ".join(map(str, broken)))


def _one_volume(found: dict[str, Dataset]) -> list[Dataset]:
    """The slices, checked to be those of one volume."""
    volumes = stacks(found, lambda name: identity_of(found[name]))
    if problems := [volume.problem for volume in volumes if volume.problem]:
        raise ValueError(f"the source DICOM is no volume: {problems[0]}")
    if len(volumes) > 1:
        told = sorted({name for volume in volumes for name in volume.told_by})
        listed = "; ".join(_few(volume.images) for volume in volumes)
        raise ValueError(
            f"the source DICOM holds {len(volumes)} volumes, which differ in {', '.join(told)}; expected one: {listed}"
        )
    return list(found.values())


def _without_scouts(found: dict[str, Dataset], kind: ImageKind) -> dict[str, Dataset]:
    if not kind.scouts:
        return found
    scouts = [
        name for name, data in found.items() if data.get("SOPClassUID") in {kind.sop_class, *kind.enhanced} and is_scout(data)
    ]
    if len(scouts) == len(found):
        raise ValueError(f"the source DICOM holds localizers only: {_few(scouts)}: expected one {kind.modality} series")
    if scouts:
        logger.warning("%d localizers of the source DICOM are left out: %s", len(scouts), _few(scouts))
    return {name: data for name, data in found.items() if name not in scouts}


def _check_kind(found: dict[str, Dataset], kind: ImageKind) -> None:
    known = {kind.sop_class, *kind.enhanced}
    other = {name: data.get("SOPClassUID") for name, data in found.items() if data.get("SOPClassUID") not in known}
    if other:
        kinds = sorted({getattr(uid, "name", "unknown") or "unknown" for uid in other.values()})
        raise ValueError(
            f"not {kind.sop_class.name}: {_few(list(other))} ({', '.join(kinds)}): expected one {kind.modality} series"
        )
    for name, data in found.items():
        missing = [key for key in (*NEEDED, *PLANE) if data.get(key) in (None, "")]
        if missing:
            raise ValueError(f"source DICOM {name} lacks {', '.join(missing)}")
        invalid = [
            key for key in NEEDED if not (whole(data, key) > 0 if key in SIZES else UID_FORM.fullmatch(str(data[key].value)))
        ]
        if invalid:
            raise ValueError(f"source DICOM {name}: invalid {', '.join(invalid)}")
        try:
            _plane(data)
        except (ValueError, TypeError) as error:
            raise ValueError(f"source DICOM {name}: {error}") from error
    series: dict[str, list[str]] = {}
    for name, data in found.items():
        series.setdefault(str(data.SeriesInstanceUID), []).append(name)
    if len(series) > 1:
        listed = "; ".join(_few(names) for names in series.values())
        raise ValueError(f"the source DICOM holds {len(series)} series, expected one: {listed}")


def _few(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _sorted(slices: list[Dataset]) -> SourceSeries:
    sizes = {(int(data.Rows), int(data.Columns)) for data in slices}
    if len(sizes) > 1:
        raise ValueError(f"source DICOM slices of sizes {sorted(sizes)}: expected one size")
    planes = [_plane(data) for data in slices]
    if any(plane.normal @ planes[0].normal < PARALLEL for plane in planes):
        raise ValueError("source DICOM slices are not parallel (a localizer?): expected one stack of slices")
    along = along_normal(planes)
    order = np.argsort(along)
    if len(slices) > 1 and np.diff(along[order]).min() < SAME_PLACE:
        raise ValueError("two source DICOM slices lie at one position (several echoes, phases or times?): expected each once")
    stated = abs(float(slices[0].get("SpacingBetweenSlices") or NAN)) or NAN
    between = usual_step(along[order]) if len(slices) > 1 else stated
    stack = tuple(replace(planes[i], slice_spacing=between) for i in order)
    return SourceSeries(tuple(slices[i] for i in order), stack, sizes.pop())


def _plane(data: Dataset) -> Geometry:
    position, orientation, spacing = (tuple(map(float, data[key].value)) for key in PLANE)
    return Geometry(position, orientation, spacing)  # type: ignore[arg-type]
