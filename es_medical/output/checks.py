"""What is checked, and said, before the first reconstruction: the output folder, and the planes of every volume."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_medical.data import SliceHeader
from es_medical.data.geometry import Geometry
from es_medical.data.stack import TILTED, regular_grid, tilt_of

logger = logging.getLogger(__name__)


def check_writable(folder: Path) -> None:
    """Check that files can be written below a folder, which need not exist; raises OSError that names it."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists() or path.is_symlink())
    if not there.is_dir():
        raise NotADirectoryError(f"output_dir {folder} cannot be made: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"output_dir {folder} cannot be written: no permission for {there}")


def check_planes(name: str, planes: Sequence[Geometry], numbers: NDArray[np.int64]) -> None:
    """Warn if no NIfTI file will hold a volume, and of what its positions do not say; `numbers` are those of its slices."""
    try:
        regular_grid(planes, numbers)
    except ValueError as error:
        logger.warning("volume %s will not be written as NIfTI: %s", name, error)
    if any(plane.unscaled and not plane.assumed for plane in planes):
        logger.warning(
            "volume %s: the pixel spacing is unknown; position and orientation are kept, lengths in its files are no mm", name
        )
    tilt = tilt_of([plane.position for plane in planes], planes[0].orientation) if len(planes) > 1 else 0.0
    if tilt > TILTED:
        logger.warning("volume %s: gantry tilt of %.3g degrees; the axes of its NIfTI files are sheared by it", name, tilt)


def cut_values(columns: Mapping[str, Any], rows: NDArray[np.int64], unit: str, name: str = "") -> tuple[str, ...]:
    """For each slice of a volume, in how many pixels its values were cut at the upper end of the window; "" for none.

    Args:
        columns: with `clipped` (N,), the number of such pixels, and `scale` (N, 2).
        rows: the slices.
        unit: of raw units, with a space before it.
        name: of the volume, for a warning in the log; "" gives none.
    """
    cut, level = columns["clipped"][rows], columns["scale"][rows].sum(1).max()
    if name and cut.any():
        logger.warning(
            "volume %s: values stop at %g%s, in %d pixels of %d slices", name, level, unit, cut.sum(), (cut > 0).sum()
        )
    said = f"Values stop at {level:g}{unit}: {{}} pixels of this slice held more before its measurements were simulated."
    return tuple(said.format(n) if n else "" for n in cut.tolist())


def in_hounsfield_units(header: SliceHeader, asked: bool) -> bool:
    """Whether CT images can be DICOM, else with a warning; an error where DICOM was `asked` for. Other images always can."""
    if header.unit in ("", "HU"):
        return True
    said = f"DICOM holds Hounsfield units, and these images are in {header.unit}: prepare them with water's attenuation"
    if asked:
        raise ValueError(said)
    logger.warning("no DICOM is written: %s", said)
    return False
