"""Coordinates of the pixels, moved and bent so that simple shapes become organic ones."""

from typing import NamedTuple

import torch
from torch import Tensor

from es_medical.synthetic.fields import smooth_field
from es_medical.synthetic.sampler import Sampler


class Grid(NamedTuple):
    """Coordinates of pixel centres, (b, h, w); the shorter side of the image is 2 long, its centre is (0, 0).

    Attributes:
        x: along the rows, growing to the right.
        y: along the columns, growing downwards.
        pixel: length of a pixel's side.
    """

    x: Tensor
    y: Tensor
    pixel: float

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.x.shape[-2], self.x.shape[-1]

    def moved(self, x: Tensor, y: Tensor, angle: Tensor, scale: Tensor) -> "Grid":
        """Coordinates of an object centred at (x, y), turned by `angle` (radians), `scale` times as large; all (b,)."""
        dx, dy = self.x - column(x), self.y - column(y)
        cos, sin = column(angle.cos() / scale), column(angle.sin() / scale)
        return Grid(cos * dx + sin * dy, cos * dy - sin * dx, self.pixel)

    def bent(self, sampler: Sampler, strength: Tensor, cells: int = 4) -> "Grid":
        """Add a smooth random displacement of standard deviation `strength` (b,) to the coordinates."""
        field = smooth_field(sampler, 2, self.size, cells) * strength[:, None, None, None]
        return Grid(self.x + field[:, 0], self.y + field[:, 1], self.pixel)

    def mirrored(self, which: Tensor) -> "Grid":
        """Fold x at 0 where `which` (b,) is 1: left and right become the same."""
        return Grid(torch.where(column(which) > 0.5, self.x.abs(), self.x), self.y, self.pixel)


def pixel_grid(batch: int, size: tuple[int, int], device: torch.device | str = "cpu") -> Grid:
    """Make the coordinates of the pixels of `batch` images of `size` (height, width)."""
    height, width = size
    pixel = 2 / min(size)
    y = (torch.arange(height, device=device) - (height - 1) / 2) * pixel
    x = (torch.arange(width, device=device) - (width - 1) / 2) * pixel
    return Grid(x.expand(batch, height, width), y[:, None].expand(batch, height, width), pixel)


def column(parameter: Tensor) -> Tensor:
    """Give a parameter (b,) or (b, c) two more axes, for the rows and columns of an image."""
    return parameter[..., None, None]
