"""Operators that measure some of an image's values: inpainting and decimation, in closed form."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from es_medical.physics.base import Operator, per_item
from es_medical.types import Image, Mask, Measurement


class Pixels(Operator):
    """A selection of an image's values: A A^T = M, A^dagger = A^T, and A^T A is a projection, also after masking."""

    baseline = "incomplete image"
    units: tuple[str, ...] = ("pixels", "values", "columns")
    measured = "an image"

    @property
    @abstractmethod
    def grid(self) -> tuple[int, ...]:
        """(C, H, W) of y, which a split divides."""

    def A_dagger(self, y: Measurement) -> Image:
        """Pseudo-inverse of A, which is its adjoint."""
        return self.A_adjoint(y)

    def prox_l2(self, z: Image, y: Measurement, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2 = z + gamma / (1 + gamma) A^T (y - A z), gamma a number or (B,)."""
        gamma = per_item(gamma, z)
        return z + gamma / (1 + gamma) * self.A_adjoint(y - self.A(z))

    def _check(self, x: Tensor, shape: tuple[int, ...]) -> None:
        n = len(self.mask)
        if tuple(x.shape[1:]) != tuple(shape) or (n > 1 and len(x) != n):
            sides = ", ".join(str(side) for side in shape)
            raise ValueError(f"this operator takes ({'B' if n == 1 else n}, {sides}), got {tuple(x.shape)}")


class Inpainting(Pixels):
    """Inpainting, y = m x: the values of an image where the mask m is 1, zero elsewhere.

    Args:
        mask: 0 or 1, of shape (W,) (one value for each column), (H, W) (pixels), (C, H, W) (values), or
            (1 or B, 1 or C, 1 or H, W) where each item of a batch may have its own; bool, integer or float.
        size: (H, W) of the images.
        channels: C of the images.

    Raises:
        ValueError: the mask does not fit, or holds other values than 0 and 1.
    """

    def __init__(self, mask: Tensor | np.ndarray | Sequence[float], size: tuple[int, int], channels: int = 1) -> None:
        super().__init__(img_size=(channels, *size))
        self.register_buffer("mask", pixel_mask(mask, (channels, *size)))

    @property
    def grid(self) -> tuple[int, ...]:
        """(C, H, W) of y, that of the images."""
        return tuple(self.img_size)

    def A(self, x: Image) -> Measurement:
        """Return m x, (B, C, H, W). Raises ValueError for images of another size."""
        self._check(x, self.grid)
        return self.mask * x

    def A_adjoint(self, y: Measurement) -> Image:
        """Return m y, the incomplete image (B, C, H, W). Raises ValueError for measurements of another size."""
        return self.A(y)

    def masked(self, m: Mask) -> "Inpainting":
        """Return M1 A for a mask m of any shape that the constructor takes."""
        return Inpainting(self.mask * pixel_mask(m, self.grid).to(self.mask), self.image_size, self.grid[0])


class Decimation(Pixels):
    """Decimation, y = m x[..., ::f, ::f]: every f-th row and column of an image, the first ones included.

    Args:
        size: (H, W) of the images.
        factor: f; any whole number from 1 to the shorter side. Images have ceil(H / f) x ceil(W / f) values in y.
        channels: C of the images.
        mask: measured values of y, in the shapes that `Inpainting` takes, with the sides of y; None for all.

    Raises:
        ValueError: the factor or the mask does not fit, or the mask holds other values than 0 and 1.
    """

    def __init__(
        self,
        size: tuple[int, int],
        factor: int = 2,
        channels: int = 1,
        mask: Tensor | np.ndarray | Sequence[float] | None = None,
    ) -> None:
        if not 1 <= factor <= min(size):
            raise ValueError(
                f"the factor must be from 1 to {min(size)}, the shorter side of {size[0]} x {size[1]}; got {factor}"
            )
        super().__init__(img_size=(channels, *size))
        self.factor = factor
        self.register_buffer("mask", pixel_mask(torch.ones(self.grid[-1]) if mask is None else mask, self.grid))

    @property
    def grid(self) -> tuple[int, ...]:
        """(C, ceil(H / f), ceil(W / f)) of y."""
        channels, *size = self.img_size
        return channels, *(-(-side // self.factor) for side in size)

    def A(self, x: Image) -> Measurement:
        """Every f-th row and column of x (B, C, H, W), where m is 1. Raises ValueError for images of another size."""
        self._check(x, self.img_size)
        return self.mask * x[..., :: self.factor, :: self.factor]

    def A_adjoint(self, y: Measurement) -> Image:
        """Values of y at their places, zeros between, (B, C, H, W). Raises ValueError for measurements of another size."""
        self._check(y, self.grid)
        values = self.mask * y
        x = values.new_zeros(len(y), *self.img_size)
        x[..., :: self.factor, :: self.factor] = values
        return x

    def masked(self, m: Mask) -> "Decimation":
        """Return M1 A for a mask m of any shape that the constructor takes."""
        return Decimation(self.image_size, self.factor, self.grid[0], self.mask * pixel_mask(m, self.grid).to(self.mask))


def pixel_mask(mask: Tensor | np.ndarray | Sequence[float], grid: tuple[int, ...]) -> Mask:
    """Bring a mask of values of an image (C, H, W) to float (B or 1, C or 1, H or 1, W) and refuse one that does not fit.

    >>> pixel_mask([0, 1, 1, 0], (3, 8, 4)).shape
    torch.Size([1, 1, 1, 4])
    """
    given = torch.as_tensor(mask)
    shaped = given.view(*[1] * (4 - given.ndim), *given.shape) if given.ndim < 4 else given
    channels, height, width = grid
    fits = 1 <= given.ndim <= 4 and shaped.shape[1] in (1, channels) and shaped.shape[2] in (1, height)
    if not fits or shaped.shape[3] != width:
        raise ValueError(
            f"mask of shape {tuple(given.shape)} does not fit images of {channels} x {height} x {width}: expected ({width},), "
            f"({height}, {width}), ({channels}, {height}, {width}) or (B or 1, {channels} or 1, {height} or 1, {width})"
        )
    shaped = shaped.to(torch.float32, copy=True)  # the operator keeps its own mask, and y the precision of x
    if shaped.device.type == "cpu" and not bool(((shaped == 0) | (shaped == 1)).all()):  # a GPU would have to wait
        raise ValueError(f"mask values must be 0 or 1, got values from {shaped.min():g} to {shaped.max():g}")
    return shaped
