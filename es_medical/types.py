"""Shapes of the arrays that pass between the modules, in the field's words (checked while the tests run)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Image = Float[Tensor, "b c h w"]
"""Images; complex MR images have c = 2 (real, imaginary)."""

KSpace = Float[Tensor, "b 2 h w"]
"""k-space samples as (real, imaginary), zero frequency at index n//2 of each axis."""

CoilKSpace = Float[Tensor, "b 2 coils h w"]
"""k-space samples of every coil, as `KSpace`."""

CoilMaps = Float[Tensor, "b_or_1 2 coils h w"]
"""Complex sensitivity maps as (real, imaginary), of each item or of the whole batch."""

Measurement = Float[Tensor, "b ..."]
"""What an operator returns, zero where nothing was measured."""

Mask = Float[Tensor, "..."]
"""Indicator (0 or 1) of measured entries, broadcastable to the measurement."""

PerItem = Float[Tensor, " b"]
"""One number for each item of a batch."""

Elements = Int[Tensor, "n ..."]
"""Elements g of a group, one for each item of a batch."""


@dataclass(frozen=True)
class Part:
    """Items first to last - 1 of a batch of n: what one process has of it, or one pass of several."""

    first: int
    last: int
    n: int

    def __len__(self) -> int:
        """Return the number of items in the part."""
        return self.last - self.first

    def divided(self, i: int, pieces: int) -> "Part":
        """Return piece i of equal pieces; sizes differ by one item where they must.

        >>> Part(0, 5, 5).divided(1, 2), Part(2, 5, 9).divided(0, 2)
        (Part(first=2, last=5, n=5), Part(first=2, last=3, n=9))
        """
        size = len(self)
        return Part(self.first + size * i // pieces, self.first + size * (i + 1) // pieces, self.n)


@dataclass(frozen=True)
class PartGenerator:
    """Draws for all n items of a batch and keeps the numbers of a part: an item's numbers don't depend on how it is divided."""

    generator: torch.Generator
    part: Part


Generator = torch.Generator | Sequence[torch.Generator] | PartGenerator
"""Source of randomness: one for the whole batch or a part of it (training), or one for each item (evaluation)."""
