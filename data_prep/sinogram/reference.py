"""The image of all views of a file, by regularised least squares: a reference for images of fewer views, not ground truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from data_prep.sinogram.archive import Scanner
from data_prep.sinogram.corrections import Row
from es_medical.physics.estimates.smooth import smooth_least_squares

if TYPE_CHECKING:
    from es_medical.physics.ct import CT

LIGHTER = 0.1  # weight of the smoothness / that of `CT.estimate`, which is meant for few views
LARGEST = 60_000_000  # entries of the system matrix: about 1 GB with its transpose
FILLED = 1.5  # entries of a ray / rows of the image


@dataclass(frozen=True)
class Reference:
    """The scanner with all views of a file (every n-th where the matrix would not fit into memory).

    Attributes:
        scanner: the scanner of the slice file.
        views: the views.
        physics: its operator, all rays.
    """

    scanner: Scanner
    views: tuple[int, ...]
    physics: CT

    @classmethod
    def of(cls, scanner: Scanner) -> Reference:
        """The reference's scanner for a slice file."""
        from es_medical.physics.ct import CT

        views = np.flatnonzero(~scanner.acquisition.beam.repeated())
        entries = len(views) * scanner.acquisition.n_bins * scanner.size * FILLED
        views = views[:: max(-(-int(entries) // LARGEST), 1)]
        every = scanner.acquisition._replace(views=tuple(views.tolist()))
        return cls(scanner, every.views, CT(every.geometry(scanner.size, scanner.pixel)))

    def __dask_tokenize__(self) -> tuple[Scanner, tuple[int, ...]]:
        """What tells references apart: the operator follows from it."""
        return self.scanner, self.views

    def image(self, row: Row) -> Tensor:
        """The image (1, H, W) of a detector row in stored units, from its usable rays."""
        every = self.scanner.acquisition._replace(views=self.views)
        A = self.physics.masked(torch.from_numpy(every.usable(row.usable)).float())
        y = self.scanner.stored(every.taken(row.p), A)[None]
        return smooth_least_squares(A.A_adjoint_A, A.A_adjoint(y), LIGHTER * A._diagonal)[0]
