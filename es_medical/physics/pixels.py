"""Operators that measure a part of the values of an image: inpainting and decimation, in closed form."""

from abc import abstractmethod

import torch

from es_medical.physics.base import Projection
from es_medical.physics.estimates import normalised_convolution as convolution
from es_medical.physics.estimates.normalised_convolution import normalised_convolution
from es_medical.physics.masks import GivenMask, read_mask
from es_medical.types import Image, Mask, Measurement


class Pixels(Projection):
    """A selection of an image's values."""

    baseline = "incomplete image"
    estimated = convolution.NAME
    units: tuple[str, ...] = ("pixels", "values", "columns")
    measured = "an image"

    @property
    @abstractmethod
    def grid(self) -> tuple[int, ...]:
        """(C, H, W) of y, which a split divides."""

    def estimate(self, y: Measurement) -> Image:
        """Return the image (B, C, H, W) whose missing values are filled in from those nearby (see `normalised_convolution`).

        Raises ValueError for measurements of another size.
        """
        measured = self.A_adjoint(y.new_ones(len(self.mask), *self.grid))  # the mask on the grid of the images
        return normalised_convolution(self.A_adjoint(y), measured)


class Inpainting(Pixels):
    """Inpainting, y = m x: the values of an image where the mask m is 1, zero elsewhere.

    Args:
        mask: 0 or 1, of shape (W,) (one value for each column), (H, W) (pixels), (C, H, W) (values), or
            (1 or B, 1 or C, 1 or H, W) where each item of a batch may have its own; bool, integer or float.
        size: (H, W) of the images.
        channels: C of the images.

    Raises:
        ValueError: the mask does not fit, or holds values other than 0 and 1.
    """

    def __init__(self, mask: GivenMask, size: tuple[int, int], channels: int = 1) -> None:
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
        ValueError: the factor or the mask does not fit, or the mask holds values other than 0 and 1.
    """

    def __init__(self, size: tuple[int, int], factor: int = 2, channels: int = 1, mask: GivenMask | None = None) -> None:
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


def pixel_mask(mask: GivenMask, grid: tuple[int, ...]) -> Mask:
    """Bring a mask of values of an image (C, H, W) to float (B or 1, C or 1, H or 1, W) and refuse one that does not fit.

    >>> pixel_mask([0, 1, 1, 0], (3, 8, 4)).shape
    torch.Size([1, 1, 1, 4])
    """
    channels, height, width = grid
    wanted = (
        f"images of {channels} x {height} x {width}: expected ({width},), "
        f"({height}, {width}), ({channels}, {height}, {width}) or (B or 1, {channels} or 1, {height} or 1, {width})"
    )
    return read_mask(mask, [(1, channels), (1, height), (width,)], (1, 2, 3, 4), wanted)
