"""Find the plane of each slice of an ISMRMRD file in DICOM's patient coordinates, from the heads of its readouts.

ISMRMRD (doc/mrd_raw_data.md of its repository): ``position`` is the centre of the excited volume in mm of the patient's left,
posterior, superior (LPS), as in DICOM; ``read_dir``, ``phase_dir`` and ``slice_dir`` are direction cosines in the same system
with slice_dir = read_dir x phase_dir.

Here rows are the readout and columns the phase encoding, and the image is the inverse FFT of k-space, so that with the origin
at index n//2 the centre of pixel (row, column) is

    position + (row - H//2) * row spacing * read_dir + (column - W//2) * column spacing * phase_dir.

Siemens scanners define the directions for an image that is the forward FFT of k-space, i.e. the inverse FFT rotated by 180
degrees in the plane: for their files both directions take a minus sign (PTB-MR/mrpro pull request 833, verified against the
scanner's own DICOM images; the NIfTI converter aTrotier/ismrmrd_to_nifti uses the same sign).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data_prep.mri.partitions import central
from es_medical.data.geometry import Geometry
from es_medical.data.stack import along_normal, same_orientation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from data_prep.mri.ismrmrd_header import Encoding

TOLERANCE = 1e-3  # of lengths and cosines; heads hold float32
SAME_PLACE = (
    "several slices have the same position, as where none is recorded: nominal geometry, in the order of their counters"
)
UNEVEN = 0.01  # of the mean distance between slices


@dataclass(frozen=True)
class Stack:
    """The slices of a file in order.

    Attributes:
        order: slice counters; along the normal of DICOM (column direction x row direction) where positions are known.
        planes: plane of the recorded grid of each slice in that order; None where unknown.
        notes: what a user should know.
    """

    order: tuple[int, ...]
    planes: tuple[Geometry | None, ...]
    notes: tuple[str, ...] = ()


def stack_slices(
    heads: Mapping[int, NDArray], encoding: Encoding, size: tuple[int, int], *, forward_fft: bool = False
) -> Stack:
    """Find the plane and the order of the slices.

    Args:
        heads: slice counter -> heads of its imaging readouts.
        encoding: pixel size and slice thickness of the recorded grid.
        size: (H, W) of the recorded grid.
        forward_fft: the directions are defined for the forward FFT of k-space (Siemens).
    """
    numbers = tuple(sorted(heads))
    notes: list[str] = []
    planes = [_plane(heads[number], encoding, size, -1 if forward_fft else 1, notes) for number in numbers]
    known = [plane for plane in planes if plane is not None]
    if len(known) < len(planes) or not same_orientation(known):
        return Stack(numbers, tuple(planes), tuple(dict.fromkeys(notes)))
    offsets = along_normal(known)
    if len(offsets) > 1 and np.diff(np.sort(offsets)).min() <= TOLERANCE:
        return Stack(numbers, (None,) * len(numbers), (*dict.fromkeys(notes), SAME_PLACE))
    spacing, note = _spacing(np.sort(offsets), encoding.slice_thickness)
    order = np.argsort(offsets, kind="stable").tolist()
    ordered = [Geometry(known[i].position, known[i].orientation, known[i].spacing, spacing) for i in order]
    return Stack(
        tuple(numbers[i] for i in order), tuple(ordered), tuple(note for note in (*dict.fromkeys(notes), note) if note)
    )


def slab_heads(head: NDArray, encoding: Encoding, *, forward_fft: bool = False) -> dict[int, NDArray]:
    """Heads of the slices of a 3-D slab inside the reconstructed field of view: the given one, moved along the slab.

    The position of a slab is that of its centre, index n//2 of the transformed partitions. As in the plane, the inverse FFT of
    Siemens' k-space runs against the slice direction.

    Args:
        head: (1,) head of a readout of the slab.
        encoding: its number of partitions and slices, and the thickness of a slice.
        forward_fft: see `stack_slices`.
    """
    directions = [head[0][name].astype(float) for name in ("read_dir", "phase_dir", "slice_dir")]
    normal = directions[2] if directions[2].any() else np.cross(*directions[:2])
    step = (-1 if forward_fft else 1) * encoding.slice_thickness * normal
    found = {}
    for i in central(encoding.partitions, encoding.kept):
        found[i] = head.copy()
        if np.isfinite(step).all():
            found[i]["position"] += (i - encoding.partitions // 2) * step
    return found


def _plane(heads: NDArray, encoding: Encoding, size: tuple[int, int], sign: int, notes: list[str]) -> Geometry | None:
    directions = np.stack([heads[0][name] for name in ("read_dir", "phase_dir", "slice_dir")]).astype(float)
    position = heads[0]["position"].astype(float)
    if not directions[:2].any() or not np.isfinite(encoding.pixel).all():
        return None  # not recorded
    cause = _contradiction(heads, directions, position)
    if cause:
        notes.append(f"{cause}: the planes of the slices are unknown")
        return None
    row, column = (sign * direction / np.linalg.norm(direction) for direction in directions[:2])
    corner = position - size[0] // 2 * encoding.pixel[0] * row - size[1] // 2 * encoding.pixel[1] * column
    orientation = np.concatenate([column, row])
    return Geometry(tuple(corner.tolist()), tuple(orientation.tolist()), encoding.pixel, encoding.slice_thickness)


def _contradiction(heads: NDArray, directions: NDArray, position: NDArray) -> str:
    """Why the heads of one slice do not describe a plane, or an empty string."""
    if not np.isfinite(directions).all() or not np.isfinite(position).all():
        return "positions or directions are not finite"
    if not np.allclose(directions[:2] @ directions[:2].T, np.eye(2), atol=TOLERANCE):
        return "read_dir and phase_dir are not perpendicular directions of length 1"
    if directions[2].any() and not np.isclose(abs(directions[2] @ np.cross(*directions[:2])), 1, atol=TOLERANCE):
        return "slice_dir is not perpendicular to read_dir and phase_dir"
    moved = [np.ptp(heads[name], axis=0).max() > TOLERANCE for name in ("position", "read_dir", "phase_dir")]
    return "position or direction changes within a slice" if any(moved) else ""


def _spacing(offsets: NDArray, thickness: float) -> tuple[float, str]:
    """Distance between neighbouring slices in mm, NaN if it is not constant, and a note."""
    if len(offsets) == 1:
        return thickness, ""
    gaps = np.diff(offsets)
    if np.ptp(gaps) > UNEVEN * gaps.mean():
        return float("nan"), f"distances between slices vary from {gaps.min():.3g} to {gaps.max():.3g} mm"
    return float(gaps.mean()), ""
