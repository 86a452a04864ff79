"""Read volumes from image files: NIfTI by nibabel, NRRD and MetaImage by torchio."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import nibabel
import numpy as np

from data_prep.mr_images.grid import DIRECTIONS, Grid, Scan, Stack, stack_of
from data_prep.mr_images.options import MROptions
from data_prep.run.folders import Source
from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIXES = (".nii", ".nii.gz", ".nrrd", ".mha")
MILLIMETRES = {"meter": 1000.0, "micron": 0.001}  # of the units that a NIfTI header may name
NO_PLACE = "no position or orientation in the header: nominal ones in outputs"


class Header(NamedTuple):
    """The grid of one volume of a file, the number of volumes in the file, and what a user should know."""

    grid: Grid
    volumes: int
    notes: tuple[str, ...] = ()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings and messages of the readers, which name files, from the user."""
    import SimpleITK

    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
    logging = nibabel.imageglobals.logger
    disabled, logging.disabled = logging.disabled, True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disabled = disabled


def examine_file(source: Source, digest: str, subject: str, options: MROptions) -> Scan:
    """Read the header of a file.

    Args:
        source: its path and name.
        digest: SHA-256 of its bytes.
        subject: its subject, told by its name.
        options: of the command.

    Raises:
        PrepError: it cannot be read, or is not one volume.
    """
    grid, volumes, notes = _header(source.path)
    if volumes > 1 and options.volume is None:
        raise PrepError(f"{volumes} volumes (or channels) in one file: --volume N takes one of each such file, from 0")
    number = 0 if volumes == 1 else options.volume or 0
    if number >= volumes:
        raise PrepError(f"--volume {number}: the file has {volumes}, counted from 0")
    if len(grid.shape) != 3 or 0 in grid.shape:
        raise PrepError(f"an array of shape {grid.shape}: expected a volume of three axes")
    if not np.isfinite(grid.affine).all() or np.linalg.det(grid.affine[:3, :3]) == 0:
        raise PrepError("the header gives no sizes of voxels")
    plane = grid.plane(options.plane)
    towards, _ = grid.turned(DIRECTIONS[plane])
    columns, rows, _ = towards.shape
    spacing, read = towards.planes()[0].spacing, partial(read_file, source.path, DIRECTIONS[plane], number)
    return Scan(source.name, digest, subject, subject, plane, (rows, columns), spacing, notes, read)


def read_file(path: Path, directions: str, volume: int = 0) -> Stack:
    """The slices of a file.

    Args:
        path: the file.
        directions: of columns, rows and slices, see `DIRECTIONS`.
        volume: number of the volume in the file, from 0.

    Raises:
        PrepError: its voxels cannot be read, or are not finite.
    """
    try:
        header = _header(path)
        voxels = _voxels(path, volume)
    except PrepError:
        raise
    except Exception as error:  # the readers raise whatever they like, with the path
        raise PrepError(f"the voxels cannot be read ({type(error).__name__}): cut short or damaged") from None
    if not np.isfinite(voxels).all():
        raise PrepError(f"{np.count_nonzero(~np.isfinite(voxels))} values are not finite (NaN or infinite)")
    return stack_of(voxels, header.grid, directions)


def _is_nifti(path: Path) -> bool:
    return path.name.lower().endswith((".nii", ".nii.gz"))


def _header(path: Path) -> Header:
    try:
        return _nifti_header(nibabel.load(path)) if _is_nifti(path) else _other_header(path)
    except PrepError:
        raise
    except Exception as error:  # the readers raise whatever they like, with the path
        raise PrepError(f"the header cannot be read ({type(error).__name__})") from None


def _nifti_header(image: Any) -> Header:  # noqa: ANN401  nibabel has no types
    header = image.header
    if header.get_data_dtype().kind not in "iuf":
        raise PrepError(f"values of type {header.get_data_dtype()}: expected real numbers")
    shape = tuple(image.shape) + (1,) * (3 - len(image.shape))
    (quaternion, of_quaternion), (affine, of_affine) = header.get_qform(coded=True), header.get_sform(coded=True)
    notes = () if of_quaternion or of_affine else (NO_PLACE,)
    if of_quaternion and of_affine and not np.allclose(quaternion, affine, atol=0.1):
        notes = ("qform and sform disagree: sform is used",)
    unit = MILLIMETRES.get(header.get_xyzt_units()[0], 1.0)
    grid = Grid(shape[:3], np.diag([unit, unit, unit, 1.0]) @ image.affine, bool(of_quaternion or of_affine))
    return Header(grid, int(np.prod(shape[3:])), notes)


def _other_header(path: Path) -> Header:
    import torchio
    from torchio.data.io import get_reader

    image = torchio.ScalarImage(path)
    volumes, *shape = image.shape
    placed = path.suffix.lower() != ".nrrd" or "NRRD_space" in get_reader(path).GetMetaDataKeys()
    notes = () if placed else (NO_PLACE,)
    return Header(Grid(tuple(shape), np.asarray(image.affine, np.float64), placed), volumes, notes)


def _voxels(path: Path, volume: int) -> NDArray[np.float32]:
    """The voxels of one volume (i, j, k), with the scale of the header applied."""
    if not _is_nifti(path):
        import torchio

        return torchio.ScalarImage(path).numpy()[volume].astype(np.float32)
    if path.suffix.lower() == ".gz":
        with gzip.open(path) as packed:  # to the checksum at its end, which nibabel does not reach
            while packed.read(2**20):
                pass
    image: Any = nibabel.load(path)
    data = image.dataobj
    shape = tuple(data.shape) + (1,) * (3 - len(data.shape))
    if len(shape) > 3:
        at = np.unravel_index(volume, shape[3:])
        return np.asarray(data[(..., *at)], np.float32)
    return np.asarray(data, np.float32).reshape(shape)
