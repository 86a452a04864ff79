"""Dead leaves: images of shapes of power-law sizes that hide one another.

Lee, Mumford, Huang, "Occlusion models for natural images", IJCV 41, 2001; as training images: Achddou, Gousseau, Ladjal,
"Fully synthetic training for image restoration tasks", Computer Vision and Image Understanding 233, 2023.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from es_medical.synthetic.grid import Grid, column
from es_medical.synthetic.sampler import Sampler


class Leaf(NamedTuple):
    """One leaf of each image: all fields have shape (b,), or (b, k) for k leaves; lengths in the grid's unit.

    Attributes:
        x, y: centre.
        a, b: half the length along and across.
        angle: of its length, in radians.
        square: 0 for an ellipse, 1 for a rectangle, between them a rounded one.
        wall: thickness of a hollow leaf's wall; large for a full leaf.
    """

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    angle: Tensor
    square: Tensor
    wall: Tensor

    def number(self, k: int) -> "Leaf":
        """Take the k-th leaf of each image."""
        return Leaf(*(field[:, k] for field in self))

    def scaled(self, scale: Tensor) -> "Leaf":
        """Make the leaves, and their distances from (0, 0), `scale` times as large; scale is (b, 1) for k leaves."""
        x, y, a, b, wall = (field * scale for field in (self.x, self.y, self.a, self.b, self.wall))
        return self._replace(x=x, y=y, a=a, b=b, wall=wall)


FULL = 1e3  # a wall thicker than any leaf


def power_law(uniform: Tensor, smallest: float | Tensor, largest: float, exponent: float = 3.0) -> Tensor:
    """Turn uniform numbers in [0, 1) into sizes of density r^-exponent between `smallest` and `largest`.

    With exponent 3 the image looks the same at every scale (Lee, Mumford, Huang 2001): each octave covers the same area.

    >>> power_law(torch.tensor([0.0, 0.75]), 1.0, float("inf")).tolist()
    [1.0, 2.0]
    """
    power = 1 - exponent
    low, high = torch.as_tensor(smallest) ** power, largest**power
    return (low + uniform * (high - low)) ** (1 / power)


def ellipse(x: Tensor, y: Tensor, a: Tensor, b: Tensor, angle: Tensor | None = None) -> Leaf:
    """Make full ellipses."""
    zero = torch.zeros_like(x)
    return Leaf(x, y, a, b, zero if angle is None else angle, zero, zero + FULL)


def distance(grid: Grid, leaf: Leaf) -> Tensor:
    """Approximate the signed distance to the edge of a leaf, (b, h, w): negative inside, exact at the edge of a disc."""
    dx, dy = grid.x - column(leaf.x), grid.y - column(leaf.y)
    cos, sin = leaf.angle.cos(), leaf.angle.sin()
    u = (column(cos / leaf.a) * dx).addcmul_(column(sin / leaf.a), dy).abs_()
    v = (column(cos / leaf.b) * dy).addcmul_(column(-sin / leaf.b), dx).abs_()
    radius = torch.hypot(u, v).lerp_(torch.maximum(u, v), column(leaf.square))
    outer = (radius - 1).mul_(column(torch.minimum(leaf.a, leaf.b)))
    return torch.maximum(outer, -outer - column(leaf.wall))


def coverage(signed: Tensor, edge: Tensor | float) -> Tensor:
    """Part of each pixel that a shape covers: 1 inside, 0 outside, linear over an `edge` (b,) or number, about one pixel."""
    width = edge if isinstance(edge, float) else column(edge)
    return (0.5 - signed / width).clamp_(0, 1)


def paint(canvas: Tensor, cover: Tensor, value: Tensor) -> Tensor:
    """Lay a value, (b, c, 1, 1) or (b, c, h, w), over a canvas (b, c, h, w) where `cover` (b, h, w) is 1."""
    return torch.lerp(canvas, value.expand_as(canvas), cover[:, None])


def random_leaves(sampler: Sampler, k: int, smallest: float, largest: float, thinnest: float = 0.3, reach: float = 1.1) -> Leaf:
    """Draw k leaves for each image: discs, ellipses, rounded boxes and hollow ones (15 %), anywhere within `reach`.

    Their aspect is log-uniform from `thinnest` to 1.
    """
    size = power_law(sampler.uniform(0, 1, k), smallest, largest)
    aspect = thinnest ** sampler.uniform(0, 1, k)
    square = sampler.uniform(-1, 1, k).clamp_(min=0)
    wall = torch.where(sampler.chance(0.15, k) > 0, size * sampler.uniform(0.1, 0.4, k), FULL)
    x, y = sampler.uniform(-reach, reach, k), sampler.uniform(-reach, reach, k)
    return Leaf(x, y, size, size * aspect, sampler.uniform(0, torch.pi, k), square, wall)


def dead_leaves(canvas: Tensor, grid: Grid, leaves: Leaf, values: Tensor, edge: Tensor | float) -> Tensor:
    """Lay the leaves one by one over a canvas (b, c, h, w), each of its own value (b, k, c), the last on top."""
    for k in range(leaves.x.shape[1]):
        cover = coverage(distance(grid, leaves.number(k)), edge)
        canvas = paint(canvas, cover, column(values[:, k]))
    return canvas
