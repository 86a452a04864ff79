"""The slices of one volume, ready to be written: magnitudes or Hounsfield units, and the grid on which they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from es_medical.data.geometry import Geometry
from es_medical.data.stack import Grid, regular_grid

Floats = npt.NDArray[np.float32]


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
        return regular_grid(self.geometries, self.indices)


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
