"""Position of the pixels of a slice in the patient: DICOM's plane, and the NIfTI affine derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

Vector = tuple[float, float, float]
Size = tuple[int, int]

NAN = float("nan")
AXIAL_SUPINE = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def square_field(size: Size, spacing: tuple[float, float]) -> Size:
    """Rows and columns that cover a square in mm: the longer side is kept, the shorter one is extended.

    Args:
        size: rows and columns.
        spacing: spacing of rows and columns in mm; NaN counts as square pixels.

    >>> square_field((64, 80), (0.5, 1.0)), square_field((512, 512), (0.7, 0.7)), square_field((10, 30), (NAN, NAN))
    ((160, 80), (512, 512), (30, 30))
    """
    rows, columns = (1.0, 1.0) if np.isnan(spacing).any() else spacing
    side = max(size[0] * rows, size[1] * columns)
    return max(round(side / rows), size[0]), max(round(side / columns), size[1])


def normal_of(orientation: Sequence[float]) -> NDArray[np.float64]:
    """Unit normal (3,) of a plane, d_column x d_row.

    Args:
        orientation: d_column and d_row, as ImageOrientationPatient.

    >>> normal_of(AXIAL_SUPINE).tolist()
    [0.0, 0.0, 1.0]
    """
    normal = np.cross(orientation[:3], orientation[3:])
    return np.asarray(normal / np.linalg.norm(normal))


@lru_cache(maxsize=4096)
def is_orientation(orientation: tuple[float, ...]) -> bool:
    """Whether six numbers are two perpendicular directions of length 1 (cached, since slices of a series repeat them)."""
    axes = np.array(orientation).reshape(2, 3)
    return np.allclose(axes @ axes.T, np.eye(2), atol=1e-3)


@dataclass(frozen=True)
class Geometry:
    """The plane of one slice, in mm of the patient's left, posterior and superior (LPS) as in DICOM (PS3.3 C.7.6.2).

    The centre of pixel (row, column) is position + row * row spacing * d_row + column * column spacing * d_column.

    Attributes:
        position: centre of pixel (0, 0): ImagePositionPatient.
        orientation: d_column, direction of increasing column index, then d_row: ImageOrientationPatient.
        spacing: distance between neighbouring rows and between neighbouring columns in mm: PixelSpacing.
        slice_spacing: distance between the centres of neighbouring slices in mm.
        assumed: whether the orientation is assumed (`nominal`), not recorded by a scanner.
        unscaled: whether a spacing is assumed as well.
    """

    position: Vector = (NAN, NAN, NAN)
    orientation: tuple[float, float, float, float, float, float] = (NAN,) * 6
    spacing: tuple[float, float] = (NAN, NAN)
    slice_spacing: float = NAN
    assumed: bool = False
    unscaled: bool = False

    def __post_init__(self) -> None:
        for name, length in (("position", 3), ("orientation", 6), ("spacing", 2)):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) != length:
                raise ValueError(f"{name} {values}: {len(values)} numbers, expected {length}")
            object.__setattr__(self, name, values)
        object.__setattr__(self, "slice_spacing", float(self.slice_spacing))
        given = np.array([*self.spacing, self.slice_spacing])
        if (given <= 0).any() or np.isinf(given).any():
            raise ValueError(f"spacing of rows, columns and slices {given.tolist()} mm: expected positive numbers, or NaN")
        self._check_orientation()

    def _check_orientation(self) -> None:
        if np.isnan(self.orientation).any():
            return
        if not is_orientation(self.orientation):
            raise ValueError(f"orientation {self.orientation}: expected two perpendicular directions of length 1")

    @classmethod
    def nominal(cls, size: Size, spacing: tuple[float, float] = (NAN, NAN), slice_spacing: float = NAN, index: int = 0) -> Self:
        """The nominal plane of a slice whose orientation is unknown: axial, supine, head first.

        Columns run to the patient's left, rows to posterior and slices to superior; index n//2 of slice 0 is the origin.

        Args:
            size: rows and columns.
            spacing: row and column spacing in mm; 1 where unknown.
            slice_spacing: in mm; 1 where unknown.
            index: number of the slice in its volume.

        >>> Geometry.nominal((4, 6), (2.0, 1.0), 5.0, index=3).position
        (-3.0, -4.0, 15.0)
        """
        given = (*spacing, slice_spacing)
        rows, columns, between = (1.0 if np.isnan(value) else float(value) for value in given)
        position = (-columns * (size[1] // 2), -rows * (size[0] // 2), between * index)
        unscaled = bool(np.isnan(given).any())
        return cls(position, AXIAL_SUPINE, (rows, columns), between, assumed=True, unscaled=unscaled)

    @property
    def known(self) -> bool:
        """Whether position, orientation and pixel spacing were recorded by a scanner."""
        return not self.assumed and bool(np.isfinite([*self.position, *self.orientation, *self.spacing]).all())

    @property
    def normal(self) -> NDArray[np.float64]:
        """Unit vector d_column x d_row, (3,)."""
        return normal_of(self.orientation)

    def world(self, row: float, column: float) -> NDArray[np.float64]:
        """LPS coordinates (3,) in mm of a pixel centre; indices may be fractional and outside the image."""
        d_column, d_row = np.array(self.orientation).reshape(2, 3)
        return np.asarray(self.position + row * self.spacing[0] * d_row + column * self.spacing[1] * d_column)

    def resized(self, old_size: Size, new_size: Size) -> Self:
        """The plane after a crop or zero-padding that maps index n//2 to N//2; pixels keep their size.

        >>> Geometry.nominal((8, 8)).resized((8, 8), (4, 5)).position
        (-2.0, -2.0, 0.0)
        """
        row, column = (old // 2 - new // 2 for old, new in zip(old_size, new_size, strict=True))
        return replace(self, position=self._point(row, column))

    def rescaled(self, old_size: Size, new_size: Size) -> Self:
        """The plane after resampling to a finer or coarser grid over the same field of view (between outer edges).

        512 -> 256 doubles the spacing and moves the first pixel centre by half an old pixel.

        >>> Geometry.nominal((512, 512)).rescaled((512, 512), (256, 256)).spacing
        (2.0, 2.0)
        """
        row, column = (old / new for old, new in zip(old_size, new_size, strict=True))
        spacing = (self.spacing[0] * row, self.spacing[1] * column)
        return replace(self, position=self._point((row - 1) / 2, (column - 1) / 2), spacing=spacing)

    def respaced(self, spacing: tuple[float, float]) -> Self:
        """The plane after resampling to another pixel spacing, the outer edge of the first pixel kept.

        >>> Geometry.nominal((4, 4)).respaced((2.0, 2.0)).position
        (-1.5, -1.5, 0.0)
        """
        row, column = (new / old for old, new in zip(self.spacing, spacing, strict=True))
        return replace(self, position=self._point((row - 1) / 2, (column - 1) / 2), spacing=spacing)

    def resampled(self, old_size: Size, new_size: Size) -> Self:
        """The plane after zero-padding or cropping k-space: the same field of view, index n//2 maps to N//2.

        >>> Geometry.nominal((4, 4)).resampled((4, 4), (8, 8)).spacing
        (0.5, 0.5)
        """
        row, column = (old / new for old, new in zip(old_size, new_size, strict=True))
        first = (old // 2 - new // 2 * step for old, new, step in zip(old_size, new_size, (row, column), strict=True))
        spacing = (self.spacing[0] * row, self.spacing[1] * column)
        return replace(self, position=self._point(*first), spacing=spacing) if old_size != new_size else self

    @property
    def affine(self) -> NDArray[np.float64]:
        """4 x 4 matrix from the indices (column, row, slice) of a NIfTI array to RAS mm, slices along the normal."""
        matrix = np.eye(4)
        matrix[:3, 0] = np.array(self.orientation[:3]) * self.spacing[1]
        matrix[:3, 1] = np.array(self.orientation[3:]) * self.spacing[0]
        matrix[:3, 2] = self.normal * self.slice_spacing
        matrix[:3, 3] = self.position
        return np.asarray(LPS_TO_RAS @ matrix)

    def _point(self, row: float, column: float) -> Vector:
        """A point in the plane; the position itself where the pixel spacing is unknown, so that its height is kept."""
        if np.isnan(self.spacing).any():
            return self.position
        x, y, z = self.world(row, column).tolist()
        return x, y, z
