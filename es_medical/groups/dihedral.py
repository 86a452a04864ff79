"""Rotations by 90 degrees and flips: D4 on square images, its four flips on any image."""

import torch
from torch import Tensor

from es_medical.groups.base import Group
from es_medical.randomness import uniform, whole_numbers
from es_medical.types import Elements, Generator, Image


class D4(Group):
    """The eight rotations and flips of a square image.

    An element is a number t + 2a + 4b in 0..7: transpose when t = 1, then flip rows when a = 1 and columns when b = 1:
    T_g = F_w^b F_h^a P^t. Each step is a selection without a branch, so a batch needs no synchronisation with the GPU.

    >>> D4().apply(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([1])).flatten().tolist()
    [1.0, 3.0, 2.0, 4.0]
    """

    order = 8
    _step = 1

    def elements(self) -> Elements:
        """Return all elements, identity first, shape (order,)."""
        return torch.arange(0, 8, self._step)

    def sample(self, n: int, generator: Generator | None, device: torch.device | str = "cpu") -> Elements:
        """Draw n elements uniformly and independently, shape (n,)."""
        return self._step * whole_numbers(uniform((n,), generator, device), self.order)

    def apply(self, x: Image, g: Elements) -> Image:
        """Return T_g x. Raises ValueError when the sides of x differ (see `check`)."""
        self.check((x.shape[-2], x.shape[-1]))
        transpose, rows, columns = _bits(g.to(x.device))
        if self.order == 8:
            x = torch.where(transpose, x.transpose(-2, -1), x)
        x = torch.where(rows, x.flip(-2), x)
        return torch.where(columns, x.flip(-1), x)

    def inverse(self, x: Image, g: Elements) -> Image:
        """Return T_g^-1 x = P^t F_h^a F_w^b x."""
        self.check((x.shape[-2], x.shape[-1]))
        transpose, rows, columns = _bits(g.to(x.device))
        x = torch.where(columns, x.flip(-1), x)
        x = torch.where(rows, x.flip(-2), x)
        return torch.where(transpose, x.transpose(-2, -1), x) if self.order == 8 else x

    def compose(self, g: Elements, h: Elements) -> Elements:
        """Return gh; a transposition in g exchanges the two flips of h: P F_h = F_w P."""
        t, a, b = g & 1, g >> 1 & 1, g >> 2 & 1
        u, c, d = h & 1, h >> 1 & 1, h >> 2 & 1
        swapped = t.bool()
        return (t ^ u) + 2 * (a ^ torch.where(swapped, d, c)) + 4 * (b ^ torch.where(swapped, c, d))

    def check(self, size: tuple[int, int]) -> None:
        """Raise ValueError when the image is not square."""
        height, width = size
        if height != width:
            raise ValueError(
                f"D4 (rotations by 90 degrees) needs square images, got {height} x {width}; "
                "crop or pad to a square, or use the four-element group Flips"
            )


class Flips(D4):
    """The four-element subgroup of D4 that acts on rectangular images: identity, two flips, rotation by 180 degrees."""

    order = 4
    _step = 2

    def check(self, size: tuple[int, int]) -> None:
        """Accept every size."""


def _bits(g: Elements) -> tuple[Tensor, Tensor, Tensor]:
    g = g.view(-1, 1, 1, 1)
    return (g & 1).bool(), (g >> 1 & 1).bool(), (g >> 2 & 1).bool()
