"""Split measurements into the part M1 that the network sees and the part M2 that it has to predict."""

from typing import Literal

import torch
from torch import Tensor

from es_medical.physics.base import Operator
from es_medical.physics.masks import center_lines
from es_medical.randomness import uniform
from es_medical.types import Generator, Mask

Unit = Literal["lines", "samples", "views", "rays", "bins", "pixels", "values", "columns", "rows"]

UNITS: dict[str, tuple[bool, ...]] = {
    "lines": (False, True),
    "samples": (True, True),
    "views": (True, False),
    "rays": (True, True),
    "bins": (False, True),
    "pixels": (True, True),
    "values": (True, True, True),
    "columns": (False, True),
    "rows": (True,),
}
"""Units that can be drawn, and along which of the last axes of y they differ: (H, W) of k-space, (views, detectors) of a
sinogram, (channels, H, W) of an image, or the rows of a matrix."""

KSPACE_UNITS = ("lines", "samples")


def unit_of(mask: Tensor) -> Unit:
    """What a sampling mask (..., H or 1, W) of k-space is made of: "lines" for columns, whole or in a window of rows.

    >>> unit_of(torch.tensor([1, 0, 1])), unit_of(torch.eye(3))
    ('lines', 'samples')
    """
    if mask.ndim == 1 or mask.shape[-2] == 1:
        return "lines"
    measured = mask.bool().flatten(0, -3).any(0) if mask.ndim > 2 else mask.bool()  # (H, W)
    rows, columns = measured.any(1), measured.any(0)
    window = int(rows.int().diff().abs().sum()) <= int(not rows[0]) + int(not rows[-1])  # no gaps
    return "lines" if window and bool((measured == rows[:, None] & columns).all()) else "samples"


class Split:
    """Draw M1 for each item of a batch; M2 = M - M1, so M1 + M2 = M and M1 M2 = 0.

    Args:
        unit: what is drawn. Of k-space "lines" (columns) or "samples" (points); of a sinogram whole "views", "bins" of
            the detector in all views, or single "rays"; of an image "pixels" (with all channels), "values" (each channel of
            a pixel) or "columns"; of products with a matrix its "rows".
        split_ratio: s, the share of all measured units that M1 gets (paper: 0.8).
        n_center: central k-space columns that always stay in M1 (the ACS block); at least the zero frequency does. Other
            measurements have no kept units.
        n_rows: central rows of that block, for "samples"; 0 for all rows.
        mode: "exact" gives M1 round(s m) units of m, or the kept ones if they are more; "bernoulli" draws
            each unit that is not kept with probability s.

    Neither M1 nor M2 is ever empty: M1 has the kept units, or at least one, and M2 at least one that is not kept.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        unit: Unit = "lines",
        split_ratio: float = 0.8,
        n_center: int = 1,
        mode: Literal["exact", "bernoulli"] = "exact",
        n_rows: int = 0,
    ) -> None:
        if unit not in UNITS or mode not in ("exact", "bernoulli"):
            raise ValueError(f"unit must be {', '.join(UNITS)} and mode exact or bernoulli, got {unit!r} and {mode!r}")
        if not 0 < split_ratio < 1:
            raise ValueError(f"split_ratio must lie strictly between 0 and 1, got {split_ratio}")
        if unit not in KSPACE_UNITS and n_center > 1:
            raise ValueError(f"n_center keeps columns of k-space, and a split by {unit} has none; got {n_center}")
        self.unit, self.split_ratio = unit, split_ratio
        self.mode: Literal["exact", "bernoulli"] = mode
        self.n_center = max(n_center, 1) if unit in KSPACE_UNITS else 0
        self.n_rows = n_rows if unit == "samples" else 0

    def __call__(self, physics: Operator, batch: int, generator: Generator | None) -> Mask:
        """Return M1, float, with the axes of y, of size 1 where a unit spans the axis; channels and coils share M1.

        Raises:
            ValueError: the operator has too few units to divide (checked where the mask is on the CPU).
        """
        units = self._units(physics)  # (B or 1, n)
        kept = self._kept(physics, units)
        if units.device.type == "cpu":
            self.check(physics)
        drawn = self._draw(units.expand(batch, -1), kept.expand(batch, -1), generator)
        return self._shape(drawn, physics) * physics.mask

    def with_ratio(self, split_ratio: float, mode: Literal["exact", "bernoulli"] | None = None) -> "Split":
        """Return the split that gives M1 another share; the units and what is kept are the same."""
        return Split(self.unit, split_ratio, max(self.n_center, 1), mode or self.mode, self.n_rows)

    def check(self, physics: Operator) -> None:
        """Raise ValueError when an item of `physics` leaves less than one unit for M1 or for M2."""
        units = self._units(physics)
        free = (units.bool() & ~self._kept(physics, units)).sum(-1)
        if int(free.min()) < 1 or int(units.sum(-1).min()) < 2:
            block = f"{self.n_rows} x {self.n_center}" if self.n_rows else str(self.n_center)
            kept = f" of which the central {block} stay in M1" if self.n_center else ""
            raise ValueError(
                f"can't split {int(units.sum(-1).min())} measured {self.unit}{kept}: "
                "at least two are needed, and one that is not kept"
            )

    def _units(self, physics: Operator) -> Tensor:
        """Indicator (B or 1, n) of the measured units: those with a measured entry."""
        grid = self._grid(physics)
        mask = physics.mask.expand(*physics.mask.shape[: -len(grid)], *grid)
        own = {axis - len(grid) for axis, differs in enumerate(UNITS[self.unit]) if differs}
        shared = [axis for axis in range(1 - mask.ndim, 0) if axis not in own]
        return (mask.amax(shared) if shared else mask).flatten(1)

    def _kept(self, physics: Operator, units: Tensor) -> Tensor:
        if not self.n_center:
            return torch.zeros_like(units, dtype=torch.bool)
        return self.center(physics.image_size, units.device).flatten()[None] & units.bool()

    def center(self, size: tuple[int, int], device: torch.device | str = "cpu") -> Tensor:
        """Mark the units of k-space that always stay in M1: (1, W) for lines, (H, W) for samples, bool."""
        height, width = size
        columns = center_lines(width, self.n_center, device)[None]  # made on the device: a copy would make the GPU wait
        if self.unit == "lines":
            return columns
        return center_lines(height, self.n_rows or height, device)[:, None] & columns

    def _grid(self, physics: Operator) -> tuple[int, ...]:
        """Return the sizes of the last axes of y, along which units differ or extend."""
        if self.unit not in physics.units:
            known = " or ".join(physics.units)
            raise TypeError(f"{type(physics).__name__} measures {physics.measured}, which has no {self.unit}: use {known}")
        return physics.grid[-len(UNITS[self.unit]) :]

    def _draw(self, units: Tensor, kept: Tensor, generator: Generator | None) -> Tensor:
        """Choose units by rank: kept ones first, then the others in random order, unmeasured ones never."""
        score = uniform(tuple(units.shape), generator, units.device)
        order = torch.where(kept, -1.0, torch.where(units.bool(), score, 2.0))
        rank = order.argsort(-1).argsort(-1)
        measured, n_kept = units.sum(-1, keepdim=True), kept.sum(-1, keepdim=True)
        if self.mode == "exact":
            n1 = torch.round(self.split_ratio * measured)
        else:
            n1 = n_kept + ((order >= 0) & (order < self.split_ratio)).sum(-1, keepdim=True)
        return (rank < n1.clamp(min=n_kept.clamp(min=1), max=measured - 1)).to(units.dtype)

    def _shape(self, drawn: Tensor, physics: Operator) -> Tensor:
        sides = [n if differs else 1 for n, differs in zip(self._grid(physics), UNITS[self.unit], strict=True)]
        shared = [1] * (physics.mask.ndim - 1 - len(sides))  # channels, and coils where there are several
        return drawn.view(len(drawn), *shared, *sides)
