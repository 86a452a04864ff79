"""Cyclic shifts by whole pixels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from es_medical.groups.base import Group
from es_medical.randomness import uniform, whole_numbers
from es_medical.types import Elements, Generator, Image


class Shifts(Group):
    """The H W cyclic shifts of the pixel grid: (T_g x)[i, j] = x[i - dy, j - dx], indices modulo the sides.

    An element is a pair g = (dy, dx) of whole numbers, of any sign and size; those of `elements` and `sample` lie in
    0..H-1 and 0..W-1. Each item of a batch moves by its own g in one selection, without synchronising the GPU.

    Args:
        size: (H, W) of the images.

    Raises:
        ValueError: a side is not positive.

    >>> Shifts((1, 3)).apply(torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([[0, 1]])).flatten().tolist()
    [3.0, 1.0, 2.0]
    """

    def __init__(self, size: tuple[int, int]) -> None:
        if min(size) < 1:
            raise ValueError(f"shifts need images with at least one pixel a side, got {size[0]} x {size[1]}")
        self.size = (int(size[0]), int(size[1]))
        self.order = self.size[0] * self.size[1]

    def elements(self) -> Elements:
        """Return all elements (dy, dx), identity first, shape (H W, 2)."""
        height, width = self.size
        return torch.cartesian_prod(torch.arange(height), torch.arange(width)).view(-1, 2)

    def sample(self, n: int, generator: Generator | None, device: torch.device | str = "cpu") -> Elements:
        """Draw n elements uniformly and independently, shape (n, 2)."""
        drawn = uniform((n, 2), generator, device)
        return torch.stack([whole_numbers(drawn[:, axis], side) for axis, side in enumerate(self.size)], 1)

    def apply(self, x: Image, g: Elements) -> Image:
        """Return T_g x. Raises ValueError when x is of another size (see `check`)."""
        self.check((x.shape[-2], x.shape[-1]))
        return roll_items(x, g)

    def inverse(self, x: Image, g: Elements) -> Image:
        """Return T_g^-1 x, the shift by (-dy, -dx)."""
        self.check((x.shape[-2], x.shape[-1]))
        return roll_items(x, -g)

    def compose(self, g: Elements, h: Elements) -> Elements:
        """Return gh, the sum of the two shifts modulo the sides."""
        return torch.stack([(g[..., axis] + h[..., axis]) % side for axis, side in enumerate(self.size)], -1)

    def check(self, size: tuple[int, int]) -> None:
        """Raise ValueError when `size` (H, W) is not that of the group."""
        if tuple(size) != self.size:
            raise ValueError(
                f"these shifts act on images of {self.size[0]} x {self.size[1]}, got {size[0]} x {size[1]}: "
                f"make Shifts(({size[0]}, {size[1]}))"
            )


def roll_items(x: Image, shift: Elements) -> Image:
    """Shift item b of x (B, C, H, W) cyclically by shift[b] = (dy, dx); differentiable, like `torch.roll` for each item."""
    return _Roll.apply(x, shift.to(x.device))


class _Roll(Function):
    """A selection whose derivative is the opposite shift, which is another selection (autograd's own is a scatter-add)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, shift: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        rows = (torch.arange(height, device=x.device) - shift[:, :1]) % height  # (B, H)
        columns = (torch.arange(width, device=x.device) - shift[:, 1:]) % width  # (B, W)
        index = (rows[:, :, None] * width + columns[:, None]).flatten(1)  # (B, H W)
        return x.flatten(2).gather(2, index[:, None].expand(-1, x.shape[1], -1)).view(x.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ANN401 - torch's context
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (shift,) = ctx.saved_tensors
        return _Roll.apply(grad, -shift), None
