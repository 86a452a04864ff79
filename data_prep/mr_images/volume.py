"""Read an MR volume through torchio, as a stack of slices with the plane of each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nibabel
import numpy as np

from data_prep.mr_images.options import Plane
from data_prep.run.manifest import PrepError
from es_medical.data.geometry import LPS_TO_RAS, Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha")
DIRECTIONS = {"axial": "LPS", "coronal": "LIP", "sagittal": "PIR"}  # of increasing column, row and slice, as in DICOM
ACROSS = {"RL": "sagittal", "AP": "coronal", "SI": "axial"}  # plane of the slices along a body axis
CUBE = 1.2  # largest ratio of the sides of a voxel that counts as a cube


class Grid(NamedTuple):
    """The voxels of a volume.

    Attributes:
        shape: voxels along each axis.
        affine: 4 x 4, from their indices to RAS mm.
    """

    shape: tuple[int, int, int]
    affine: Floats

    def directions(self, plane: Plane) -> str:
        """Directions of columns, rows and slices of a plane, as letters; see `DIRECTIONS`."""
        if plane != "acquired":
            return DIRECTIONS[plane]
        sides = nibabel.affines.voxel_sizes(self.affine)
        if sides.max() < CUBE * sides.min():
            return DIRECTIONS["axial"]
        code = nibabel.aff2axcodes(self.affine)[int(sides.argmax())]
        return DIRECTIONS[next(name for letters, name in ACROSS.items() if code in letters)]

    def towards(self, directions: str) -> Grid:
        """The same voxels with their axes in other directions."""
        turn = nibabel.orientations.ornt_transform(
            nibabel.io_orientation(self.affine), nibabel.orientations.axcodes2ornt(tuple(directions))
        )
        order = np.argsort(turn[:, 0]).astype(int)
        shape = tuple(self.shape[axis] for axis in order)
        return Grid(shape, self.affine @ nibabel.orientations.inv_ornt_aff(turn, self.shape))  # type: ignore[arg-type]

    def plane(self, index: int) -> Geometry:
        """The plane of slice `index` of axes (column, row, slice)."""
        lps = LPS_TO_RAS @ self.affine
        column, row, _ = nibabel.affines.voxel_sizes(self.affine).tolist()
        orientation = (*(lps[:3, 0] / column).tolist(), *(lps[:3, 1] / row).tolist())
        x, y, z, _ = (lps @ [0, 0, index, 1]).tolist()
        step = Geometry(orientation=orientation).normal @ lps[:3, 2]
        return Geometry((x, y, z), orientation, (row, column), abs(float(step)))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings and messages of the readers, which name files, from the user."""
    import SimpleITK

    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_grid(path: Path) -> Grid:
    """The grid of a file, from its header.

    Raises:
        PrepError: it cannot be read, or is no volume.
    """
    import torchio

    try:
        image = torchio.ScalarImage(path)
        channels, *shape = image.shape
        affine = np.asarray(image.affine, np.float64)
    except Exception as error:  # the readers raise whatever they like, with the path
        raise PrepError(f"the header cannot be read ({type(error).__name__})") from None
    if channels != 1:
        raise PrepError(f"{channels} volumes or channels in one file: expected one volume")
    if not np.isfinite(affine).all() or np.linalg.det(affine[:3, :3]) == 0:
        raise PrepError("the header gives no positions of voxels")
    return Grid((shape[0], shape[1], shape[2]), affine)


def read_stack(path: Path, directions: str) -> tuple[NDArray[np.float32], Grid]:
    """The voxels of a file as slices.

    Args:
        path: the file.
        directions: of columns, rows and slices, see `DIRECTIONS`.

    Returns:
        (slices, rows, columns) float32, and their grid with axes (column, row, slice).

    Raises:
        PrepError: it cannot be read, or holds values that are not finite.
    """
    import torchio

    try:
        image = torchio.ToOrientation(directions)(torchio.ScalarImage(path))
        voxels = image.numpy()[0].transpose(2, 1, 0).astype(np.float32)
    except Exception as error:
        raise PrepError(f"the voxels cannot be read ({type(error).__name__}): cut off or damaged") from None
    if not np.isfinite(voxels).all():
        raise PrepError("values that are not finite (NaN or infinite)")
    columns, rows, slices = image.spatial_shape
    return voxels, Grid((columns, rows, slices), np.asarray(image.affine, np.float64))
