"""The slices of one volume, ready to be written: magnitudes or Hounsfield units, and the grid on which they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from es_medical.data.geometry import LPS_TO_RAS, Geometry

Floats = npt.NDArray[np.float32]


class Grid(NamedTuple):
    """Where the slices go in an array of the whole volume.

    Attributes:
        places: index of each slice on the third axis of the array.
        affine: 4 x 4, from the array's indices (column, row, slice) to RAS mm.
    """

    places: npt.NDArray[np.int64]
    affine: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Volume:
    """One volume as it is written.

    Attributes:
        name: of its files.
        subject: salted hash of the subject.
        images: `reconstruction` and `spread`, each (slices, H, W), in raw units.
        indices: number of each slice in the volume, in the order of the images.
        geometries: plane of each slice: what was recorded for all of them, or `Geometry.nominal` for all of them.
    """

    name: str
    subject: str
    images: Mapping[str, Floats]
    indices: npt.NDArray[np.int64]
    geometries: tuple[Geometry, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.images["reconstruction"].shape[1:]
        return rows, columns

    @property
    def nominal(self) -> bool:
        """Whether the orientation is an assumption."""
        return any(plane.assumed for plane in self.geometries)

    def grid(self) -> Grid:
        """The regular grid of the slices, in the order of their numbers.

        Raises:
            ValueError: the slices are not parallel, share a place, or stand on no regular grid.
        """
        return stack(self.geometries, self.indices)


def planes(recorded: list[Geometry], indices: npt.NDArray[np.int64], size: tuple[int, int]) -> tuple[Geometry, ...]:
    """The planes of a volume: as recorded if that is known for all slices, otherwise nominal ones from slice 0 on.

    Args:
        recorded: plane of each slice, NaN where unknown.
        indices: number of each slice.
        size: rows and columns.

    Raises:
        ValueError: recorded slices are not parallel, or share a place.
    """
    if all(plane.known for plane in recorded):
        between = (
            recorded[0].slice_spacing if len(recorded) == 1 else _spacing(_along(tuple(recorded)), recorded[0].slice_spacing)
        )
        return tuple(replace(plane, slice_spacing=between) for plane in recorded)
    first = int(indices.min())
    return tuple(
        Geometry.nominal(size, recorded[0].spacing, recorded[0].slice_spacing, int(index) - first) for index in indices
    )


def stack(geometries: tuple[Geometry, ...], indices: npt.NDArray[np.int64]) -> Grid:
    """Places and affine of parallel slices, increasing with their numbers.

    Args:
        geometries: plane of each slice.
        indices: number of each slice, which only tells the direction.

    Raises:
        ValueError: the slices are not parallel, share a place, or stand on no regular grid.
    """
    first, last = geometries[int(np.argmin(indices))], geometries[int(np.argmax(indices))]
    affine = first.affine
    if len(geometries) == 1:
        affine[:3, 2] = LPS_TO_RAS[:3, :3] @ first.normal * (1.0 if np.isnan(first.slice_spacing) else first.slice_spacing)
        return Grid(np.zeros(1, np.int64), affine)
    positions = np.array([plane.position for plane in geometries])
    along = _along(geometries) * np.sign(first.normal @ np.subtract(last.position, first.position))
    spacing = _spacing(along, first.slice_spacing)
    places = np.rint((along - along.min()) / spacing).astype(np.int64)
    start, end = positions[places.argmin()], positions[places.argmax()]
    step = (end - start) / places.max()
    error = np.abs(positions - start - places[:, None] * step).max()
    if error > 0.1 * min(*first.spacing, spacing):
        raise ValueError(
            f"slices are up to {error:.3g} mm beside a regular grid of {spacing:.4g} mm: no NIfTI volume holds them"
        )
    affine[:3, 2], affine[:3, 3] = LPS_TO_RAS[:3, :3] @ step, LPS_TO_RAS[:3, :3] @ start
    return Grid(places, affine)


def _along(geometries: tuple[Geometry, ...]) -> npt.NDArray[np.float64]:
    """Positions of parallel slices along their normal, mm."""
    for plane in geometries[1:]:
        same = np.allclose(plane.orientation, geometries[0].orientation, atol=1e-3)
        if not same or not np.allclose(plane.spacing, geometries[0].spacing, rtol=1e-3):
            raise ValueError(
                f"slices of one volume differ in orientation or pixel spacing: {plane.orientation}, {plane.spacing} mm, "
                f"and {geometries[0].orientation}, {geometries[0].spacing} mm"
            )
    return np.array([geometries[0].normal @ plane.position for plane in geometries])


def _spacing(along: npt.NDArray[np.float64], stated: float) -> float:
    """Distance of neighbouring slices: as stated where the positions agree with it, otherwise the smallest one found."""
    steps = np.diff(np.sort(along))
    smallest = float(steps.min())
    if smallest < 1e-3:
        raise ValueError(f"two slices of one volume are {smallest:.3g} mm apart: expected each slice once")
    multiples = steps / stated
    if np.isfinite(stated) and np.allclose(multiples, np.rint(multiples), atol=0.05):
        smallest = stated
    return float(np.ptp(along) / np.rint(np.ptp(along) / smallest))


def volume_names(subjects: list[str], slices: list[int]) -> list[str]:
    """Name the volume of each slice: its subject, and a number from the second volume of a subject on.

    Another volume of a subject begins where an index comes again.

    >>> volume_names(["a", "a", "b", "a", "a"], [3, 4, 3, 3, 4])
    ['a', 'a', 'b', 'a_2', 'a_2']
    """
    counts: dict[str, int] = {}
    seen: dict[str, set[int]] = {}
    names = []
    for subject, index in zip(subjects, slices, strict=True):
        if subject not in seen or index in seen[subject]:
            counts[subject], seen[subject] = counts.get(subject, 0) + 1, set()
        seen[subject].add(index)
        names.append(subject if counts[subject] == 1 else f"{subject}_{counts[subject]}")
    return names
