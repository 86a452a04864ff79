"""The voxels of a volume in the patient, and its slices in a plane of the body."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import nibabel
import numpy as np

from data_prep.mr_images.options import Plane
from data_prep.run.manifest import PrepError
from es_medical.data.geometry import LPS_TO_RAS, Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIRECTIONS = {"axial": "LPS", "coronal": "LIP", "sagittal": "PIR"}  # of increasing column, row and slice, as in DICOM
ACROSS = {"R": "sagittal", "L": "sagittal", "A": "coronal", "P": "coronal", "S": "axial", "I": "axial"}
CUBE = 1.2  # largest ratio of the sides of a voxel that counts as a cube
LONGEST = 20.0  # largest ratio of the sides of a pixel


class Stack(NamedTuple):
    """Slices (n, H, W) in raw units, float32, and the plane of each: NaN where the header does not say where they lie."""

    voxels: NDArray[np.float32]
    planes: list[Geometry]


class Scan(NamedTuple):
    """A volume whose header was read.

    Attributes:
        name: path below the source folder; shown, never stored.
        digest: SHA-256 of its content.
        subject: what identifies the subject in this archive; only its salted hash is stored.
        label: name of the subject as told by file names, "" where the header tells it; shown, never stored.
        plane: plane of its slices.
        size: rows and columns of its slices.
        spacing: of rows and columns in mm, NaN where unknown.
        notes: what a user should know.
        read: reads its slices; raises PrepError if it cannot.
    """

    name: str
    digest: str
    subject: str
    label: str
    plane: str
    size: tuple[int, int]
    spacing: tuple[float, float]
    notes: tuple[str, ...]
    read: Callable[[], Stack]


class Grid(NamedTuple):
    """The voxels of a volume.

    Attributes:
        shape: voxels along each axis.
        affine: 4 x 4, from their indices to RAS mm.
        placed: whether the header gives orientation and position; the affine of other files holds only the voxel sizes.
    """

    shape: tuple[int, ...]
    affine: NDArray[np.float64]
    placed: bool = True

    def plane(self, wanted: Plane) -> str:
        """The plane asked for; acquired: across the longest side of the voxels, axial if they are cubes."""
        if wanted != "acquired":
            return wanted
        sides = nibabel.affines.voxel_sizes(self.affine)
        if sides.max() < CUBE * sides.min():
            return "axial"
        return ACROSS[nibabel.aff2axcodes(self.affine)[int(sides.argmax())]]

    def turned(self, directions: str) -> tuple[Grid, NDArray[np.float64]]:
        """The same voxels with axes towards `directions` (columns, rows, slices), and the orientation transform to them."""
        orientations = nibabel.orientations
        turn = orientations.ornt_transform(nibabel.io_orientation(self.affine), orientations.axcodes2ornt(tuple(directions)))
        shape = tuple(self.shape[axis] for axis in np.argsort(turn[:, 0]))
        return Grid(shape, self.affine @ orientations.inv_ornt_aff(turn, self.shape), self.placed), turn

    def planes(self) -> list[Geometry]:
        """The planes of the slices of axes (column, row, slice).

        Raises:
            PrepError: rows and columns are not perpendicular, or pixels are far longer than wide.
        """
        lps = LPS_TO_RAS @ self.affine
        column, row, between = nibabel.affines.voxel_sizes(self.affine).tolist()
        if max(row, column) > LONGEST * min(row, column):
            raise PrepError(f"pixels of {row:g} x {column:g} mm in this plane: expected sides within a factor of {LONGEST:g}")
        if not self.placed:
            return [Geometry(spacing=(row, column), slice_spacing=between)] * self.shape[2]
        orientation = (*(lps[:3, 0] / column).tolist(), *(lps[:3, 1] / row).tolist())
        try:
            between = abs(float(Geometry(orientation=orientation).normal @ lps[:3, 2]))
        except ValueError:
            raise PrepError("rows and columns are not perpendicular (a sheared affine): resample the volume first") from None
        positions = [(lps @ [0, 0, index, 1])[:3].tolist() for index in range(self.shape[2])]
        return [Geometry((x, y, z), orientation, (row, column), between) for x, y, z in positions]


def stack_of(voxels: NDArray[np.float32], grid: Grid, directions: str) -> Stack:
    """The slices of a volume.

    Args:
        voxels: of any three axes.
        grid: the grid of these.
        directions: of columns, rows and slices, see `DIRECTIONS`.

    Raises:
        PrepError: see `Grid.planes`.
    """
    towards, turn = grid.turned(directions)
    return Stack(nibabel.apply_orientation(voxels, turn).transpose(2, 1, 0), towards.planes())
