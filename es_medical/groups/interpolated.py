"""Rotations by any angle, with interpolation: which are not a group of pixel permutations."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import grid_sample

from es_medical.randomness import uniform, whole_numbers
from es_medical.types import Elements, Generator, Image

Grid = Float[Tensor, "b h w 2"]
"""Where each pixel of an image is read, as (x, y) from -1 to 1 over the image's width and height (`grid_sample`)."""


class FineRotations:
    """Rotations about the centre of the image by multiples of an angle, bilinear, zero outside.

    The paper uses them, by 1 degree, for equivariant imaging of MRI and CT (section "Network architectures"). An element is a
    whole number k, one for each item of a batch: T_k turns an image anticlockwise by k `degrees` about its centre,
    ((H - 1) / 2, (W - 1) / 2) in pixels, as torchvision and deepinv do.

    This is not a `Group`: interpolation blurs and the corners are lost, so T_k^-1 and T_k^T differ from T_-k (by some 10 %).
    Equivariant imaging needs only `sample` and `apply`; where a transpose is wanted, `adjoint` is exact.

    Args:
        degrees: the angle; a whole number of them makes a full turn.

    Raises:
        ValueError: 360 is not a multiple of `degrees`.

    >>> FineRotations(90).apply(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([1])).round().flatten().tolist()
    [2.0, 4.0, 1.0, 3.0]
    """

    def __init__(self, degrees: float = 1.0) -> None:
        if not 0 < degrees <= 360 or abs(360 / degrees - round(360 / degrees)) > 1e-9:
            raise ValueError(f"the angle must divide 360 degrees into a whole number of parts, got {degrees}")
        self.degrees, self.order = degrees, round(360 / degrees)

    def sample(self, n: int, generator: Generator | None, device: torch.device | str = "cpu") -> Elements:
        """Draw n whole numbers k from 0 to order - 1, uniformly and independently, shape (n,)."""
        return whole_numbers(uniform((n,), generator, device), self.order)

    def apply(self, x: Image, g: Elements) -> Image:
        """Return T_k x, item by item; x is (B, C, H, W), g is (B,)."""
        return _read(x, self._grid(x, g))

    def adjoint(self, x: Image, g: Elements) -> Image:
        """Return T_k^T x, the transpose of the interpolation (not the rotation back); differentiable."""
        return _Transposed.apply(x, self._grid(x, g))

    def _grid(self, x: Image, g: Elements) -> Grid:
        """Turn every pixel clockwise about the centre: the value there moves anticlockwise to the pixel."""
        height, width = x.shape[-2:]
        angle = math.radians(self.degrees) * g.to(x.device, torch.float64).view(-1, 1, 1)
        down = (torch.arange(height, device=x.device, dtype=torch.float64) - (height - 1) / 2)[:, None]
        right = torch.arange(width, device=x.device, dtype=torch.float64) - (width - 1) / 2
        column = angle.cos() * right - angle.sin() * down  # (B, H, W), in pixels from the centre
        row = angle.sin() * right + angle.cos() * down
        return torch.stack((2 * column / width, 2 * row / height), -1).to(x.dtype)


def _read(x: Image, grid: Grid) -> Image:
    return grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


class _Transposed(Function):
    """The transpose of `_read`, by automatic differentiation; its own derivative is `_read`, which torch does not provide."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Tensor) -> Tensor:  # noqa: ANN401 - torch's context
        ctx.save_for_backward(grid)
        with torch.enable_grad():
            z = torch.zeros_like(x).requires_grad_()
            return torch.autograd.grad(_read(z, grid), z, x)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        (grid,) = ctx.saved_tensors
        return _read(grad, grid), None
