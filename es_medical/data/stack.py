"""Stacks of parallel slices: positions along the normal, usual distance, gaps, and the regular grid of a volume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_medical.data.geometry import LPS_TO_RAS, Geometry, normal_of

Floats = NDArray[np.float64]

PARALLEL = 0.999  # smallest cosine between the normals of slices of one stack
SAME_PLACE = 1e-3  # mm
TILTED = 1.0  # degrees from which a stack counts as sheared
ALIKE = 1e-3  # tolerance of directions, and relative one of pixel spacings, within a volume
NAMED_GAPS = 3


class Grid(NamedTuple):
    """Position of the slices in an array of the whole volume.

    Attributes:
        places: index of each slice on the third axis of the array.
        affine: 4 x 4, from the array's indices (column, row, slice) to RAS mm.
    """

    places: NDArray[np.int64]
    affine: Floats


def along_normal(planes: Sequence[Geometry]) -> Floats:
    """Positions (n,) in mm along the normal of the first slice."""
    normal = planes[0].normal
    return np.array([normal @ plane.position for plane in planes])


def same_orientation(planes: Sequence[Geometry]) -> bool:
    """Whether rows and columns of all slices have the directions of the first."""
    return all(np.allclose(plane.orientation, planes[0].orientation, atol=ALIKE) for plane in planes[1:])


def tilt_of(positions: Sequence[Sequence[float]], orientation: Sequence[float]) -> float:
    """Angle in degrees between the normal of the slices and the line through their positions: the tilt of a CT gantry.

    >>> round(tilt_of([(0, 0, 0), (0, 0, 5), (0, 0, 10)], (1, 0, 0, 0, 0.8, 0.6)), 2)
    36.87
    """
    places, normal = np.array(positions, float), normal_of(orientation)
    along = places @ normal
    line = places[along.argmax()] - places[along.argmin()]
    length = float(np.linalg.norm(line))
    return float(np.degrees(np.arccos(np.clip(normal @ line / length, -1, 1)))) if length else 0.0


def usual_step(along: Floats) -> float:
    """The usual distance between neighbouring slices, the lower median: for 2.5, 5, 2.5 and for 2.5, 5 it is 2.5.

    Args:
        along: two or more sorted positions in mm.
    """
    steps = np.sort(np.diff(along))
    return float(steps[(len(steps) - 1) // 2])


def gaps(along: Floats) -> list[str]:
    """Say at which positions slices are missing.

    Args:
        along: (n,) sorted positions in mm, NaN where unknown.

    >>> gaps(np.array([0, 2.5, 7.5, 10]))
    ['slice missing at 5 mm along the normal (spacing 2.5 mm)']
    """
    if len(along) < 3 or np.isnan(along).any():
        return []
    usual = round(usual_step(along), 4)
    missing: list[float] = []
    for before, step in zip(along[:-1], np.diff(along), strict=True):
        n = round(float(step) / usual) if step > 1.5 * usual else 1
        missing += [float(before + step * i / n) for i in range(1, n)][: NAMED_GAPS + 1]
    if not missing:
        return []
    some = ", ".join(f"{value:g}" for value in np.round(missing[:NAMED_GAPS], 2))
    more = " and more" if len(missing) > NAMED_GAPS else ""
    return [f"slice missing at {some}{more} mm along the normal (spacing {usual:g} mm)"]


def volume_planes(recorded: Sequence[Geometry], indices: NDArray[np.int64], size: tuple[int, int]) -> tuple[Geometry, ...]:
    """The planes of a volume: the recorded ones if known for all slices, else nominal ones that start at slice 0.

    Where only the pixel spacing is unknown, position and orientation are kept.

    Args:
        recorded: plane of each slice, NaN where unknown.
        indices: number of each slice.
        size: rows and columns.

    Raises:
        ValueError: recorded slices are not parallel, or share a place.
    """
    stated = recorded[0].slice_spacing
    if any(np.isnan(plane.spacing).any() for plane in recorded):
        recorded = _scaled(recorded)
    if all(plane.known for plane in recorded):
        between = stated if len(recorded) == 1 else _grid_step(_volume_positions(recorded), stated)
        return tuple(replace(plane, slice_spacing=between) for plane in recorded)
    numbers = (int(index) - int(indices.min()) for index in indices)
    return tuple(Geometry.nominal(size, recorded[0].spacing, stated, number) for number in numbers)


def _scaled(recorded: Sequence[Geometry]) -> Sequence[Geometry]:
    """The planes with a pixel spacing where one lacks it: that of the others of the volume, else 1 mm, marked as unscaled."""
    known = [plane.spacing for plane in recorded if np.isfinite(plane.spacing).all()]
    new = (known[0], False) if known else ((1.0, 1.0), True)
    return [
        plane if np.isfinite(plane.spacing).all() else replace(plane, spacing=new[0], unscaled=new[1]) for plane in recorded
    ]


def regular_grid(planes: Sequence[Geometry], indices: NDArray[np.int64]) -> Grid:
    """Array indices and affine of parallel slices, in the direction of increasing slice number.

    Args:
        planes: plane of each slice.
        indices: number of each slice; only determines the direction.

    Raises:
        ValueError: the slices are not parallel, share a place, or lie on no regular grid.
    """
    first, last = planes[int(np.argmin(indices))], planes[int(np.argmax(indices))]
    affine = first.affine
    if len(planes) == 1:
        affine[:3, 2] = LPS_TO_RAS[:3, :3] @ first.normal * (1.0 if np.isnan(first.slice_spacing) else first.slice_spacing)
        return Grid(np.zeros(1, np.int64), affine)
    positions = np.array([plane.position for plane in planes])
    along = _volume_positions(planes) * np.sign(first.normal @ np.subtract(last.position, first.position))
    spacing = _grid_step(along, first.slice_spacing)
    places = np.rint((along - along.min()) / spacing).astype(np.int64)
    start, end = positions[places.argmin()], positions[places.argmax()]
    step = (end - start) / places.max()
    error = np.abs(positions - start - places[:, None] * step).max()
    if error > 0.1 * min(*first.spacing, spacing):
        raise ValueError(f"slices are up to {error:.3g} mm off a regular grid of {spacing:.4g} mm: no NIfTI volume holds them")
    affine[:3, 2], affine[:3, 3] = LPS_TO_RAS[:3, :3] @ step, LPS_TO_RAS[:3, :3] @ start
    return Grid(places, affine)


def _volume_positions(planes: Sequence[Geometry]) -> Floats:
    """Positions (n,) in mm along the normal; raises ValueError unless orientation and pixel spacing are the same."""
    for plane in planes[1:]:
        if not same_orientation((planes[0], plane)) or not np.allclose(plane.spacing, planes[0].spacing, rtol=ALIKE):
            raise ValueError(
                f"slices of one volume differ in orientation or pixel spacing: {plane.orientation}, {plane.spacing} mm, "
                f"and {planes[0].orientation}, {planes[0].spacing} mm"
            )
    return along_normal(planes)


def _grid_step(along: Floats, stated: float) -> float:
    """Distance between neighbouring slices: the stated one if the positions agree with it, else the smallest one found."""
    steps = np.diff(np.sort(along))
    smallest = float(steps.min())
    if smallest < SAME_PLACE:
        raise ValueError(f"two slices of one volume are {smallest:.3g} mm apart: expected each slice once")
    multiples = steps / stated
    if np.isfinite(stated) and np.allclose(multiples, np.rint(multiples), atol=0.05):
        smallest = stated
    return float(np.ptp(along) / np.rint(np.ptp(along) / smallest))
