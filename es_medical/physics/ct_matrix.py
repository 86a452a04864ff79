"""The system matrix of a CT scanner, built by astra-toolbox and kept on disk."""

import hashlib
import json
import os
import warnings
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from es_medical.data.atomic import whole_or_not
from es_medical.physics.ct_geometry import FanBeam, Geometry, ParallelBeam, geometry_from_dict

__all__ = ["FanBeam", "Geometry", "ParallelBeam", "cache_folder", "geometry_from_dict", "system_matrix"]

FORMAT = 1
"""Version of the files in the cache."""
SMALLEST = 1e-6
"""Smallest entry that is kept, in pixels."""
RAYS = 4
"""Lines whose mean is a bin of a fan with a shifted detector: then as accurate as "strip", for bins of 1 to 4 pixels."""
TOGETHER = 32
"""Views that astra builds at a time."""
BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def system_matrix(geometry: Geometry) -> csr_array:
    """Return the matrix (views detectors, H W) of a scanner, float32 with int32 indices, from the cache or newly built.

    Rows are rays, view by view; columns are pixels, row by row; entries are lengths in pixels. A broken
    cache file is built anew, with a warning; without a writable folder, every call builds the matrix.

    Raises:
        ImportError: astra-toolbox is not installed and the cache does not hold the matrix.
    """
    path = _path(geometry)
    matrix = None if path is None else _read(path, geometry)
    if matrix is None:
        matrix = _build(geometry)
        if path is not None:
            _write(path, matrix)
    return matrix


def kernel(geometry: Geometry) -> str:
    """Return the name of astra's most accurate kernel for a geometry.

    Against the exact bin averages of a Shepp-Logan phantom (256 x 256, 50 views) the relative error of a parallel beam is
    0.7 % for "linear" (Joseph) and "strip" (areas) with bins of one pixel, where strip needs 1.3 times the entries, and
    0.6 % and 0.4 % with bins of two pixels, which thin rays no longer fill. A fan beam has "line" (0.9 %) and "strip"
    (0.8 %, bins of two pixels: 0.5 %), which astra has for detectors without a shift only: with one, each bin is the mean
    of `RAYS` lines.
    """
    if isinstance(geometry, FanBeam):
        return "line_fanflat" if geometry.shift else "strip_fanflat"
    return "linear" if geometry.pitch <= 1 else "strip"


def cache_folder() -> Path | None:
    """Return the folder of matrices: $ES_MEDICAL_CACHE, or es_medical in the user's cache folder; None without a home."""
    given = os.environ.get("ES_MEDICAL_CACHE")
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "es_medical"
    except RuntimeError:  # no home folder
        return None


def _build(geometry: Geometry) -> csr_array:
    if kernel(geometry) == "line_fanflat":
        places = geometry.shift + geometry.pitch * ((np.arange(RAYS) + 0.5) / RAYS - 0.5)
        matrix = sum((_project(geometry, place) for place in places[1:]), _project(geometry, places[0]))
        matrix.data /= RAYS  # in place: scipy would divide in float64
    else:
        matrix = _project(geometry, geometry.shift)
    matrix.sum_duplicates()  # sorts the columns of each row, too
    matrix.data[matrix.data < SMALLEST] = 0  # rounding errors where ray and pixel only touch
    matrix.eliminate_zeros()
    return _narrow(matrix)


def _project(geometry: Geometry, shift: float) -> csr_array:
    """Build the matrix of a scanner whose detector is at `shift`, with the kernel of its own."""
    angles = np.deg2rad(geometry.angles)
    parts = [_views(geometry, angles[first : first + TOGETHER], shift) for first in range(0, len(angles), TOGETHER)]
    return csr_array(vstack(parts, format="csr"))


def _views(geometry: Geometry, angles: NDArray[np.floating], shift: float) -> csr_array:
    """Build the rows of some views; astra keeps more than their bytes in single precision, and gives double precision."""
    astra = _astra()
    height, width = geometry.size
    volume = astra.create_vol_geom(height, width)
    if isinstance(geometry, FanBeam):
        distances = (geometry.source_distance, geometry.detector_distance)
        scanner = astra.create_proj_geom("fanflat", geometry.pitch, geometry.n_detectors, angles, *distances)
    else:
        scanner = astra.create_proj_geom("parallel", geometry.pitch, geometry.n_detectors, angles)
    if shift:
        scanner = astra.geom_postalignment(scanner, shift / geometry.pitch)
    projector = astra.create_projector(kernel(geometry), scanner, volume)
    handle = astra.projector.matrix(projector)
    try:
        return csr_array(astra.matrix.get(handle)).astype(np.float32)
    finally:
        astra.matrix.delete(handle)
        astra.projector.delete(projector)


def _narrow(matrix: csr_array) -> csr_array:
    """Hold int32 indices, half the memory traffic of int64 ones, wherever they suffice."""
    if max(matrix.nnz, *matrix.shape) < 2**31:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def _astra() -> ModuleType:
    try:
        import astra
    except ImportError as error:
        raise ImportError("building a CT system matrix needs astra-toolbox: pip install astra-toolbox") from error
    return astra


def _path(geometry: Geometry) -> Path | None:
    """Return the cache file of a geometry: its name is a hash of everything that the matrix depends on."""
    folder = cache_folder()
    try:
        astra = version("astra-toolbox")
    except PackageNotFoundError:
        astra = "none"
    key = json.dumps([FORMAT, astra, kernel(geometry), geometry.to_dict()], sort_keys=True)
    return folder and folder / f"ct_{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def _read(path: Path, geometry: Geometry) -> csr_array | None:
    """Read a matrix; None if there is no file or, with a warning, a broken one (zip files carry a checksum)."""
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            parts = file["data"].astype(np.float32, copy=False), file["indices"], file["indptr"]
        shape = (geometry.shape[0] * geometry.shape[1], geometry.size[0] * geometry.size[1])
        matrix = csr_array(parts, shape=shape)
        matrix.check_format(full_check=True)
        return matrix
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BROKEN as error:
        warnings.warn(f"the CT system matrix in {path} can't be read ({error}): it is built anew", stacklevel=3)
        return None


def _write(path: Path, matrix: csr_array) -> None:
    """Store the matrix; several processes may build the same one at the same time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_or_not(path) as temporary:
            np.savez(temporary, data=matrix.data, indices=matrix.indices, indptr=matrix.indptr)
    except OSError:  # a read-only folder or a full disk: go on without the cache
        return
