"""Images like photographs: dead leaves of correlated colours, shaded, textured, partly out of focus."""

from collections.abc import Callable

import torch
from torch import Tensor

from es_medical.synthetic.fields import smooth_field
from es_medical.synthetic.grid import Grid, column, pixel_grid
from es_medical.synthetic.leaves import coverage, dead_leaves, distance, paint, random_leaves
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.textures import power_noise, small_leaves


def photograph(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw colour images, (b, 3, h, w) in [0, 1]."""
    grid = pixel_grid(sampler.batch, size, sampler.device).bent(sampler, sampler.uniform(0, 0.1))
    palette = _palette(sampler, 5)
    edge = sampler.uniform(1.0, 3.0) * grid.pixel
    canvas = palette[:, 0, :, None, None] + 0.15 * smooth_field(sampler, 1, size, 3)

    def values(m: int) -> Tensor:
        which = sampler.uniform(0, 5, m).long().clamp_(max=4)
        return palette.gather(1, which[..., None].expand(-1, -1, 3)) + 0.05 * sampler.normal(m, 1)

    canvas = _shaded_leaves(canvas, grid, sampler, values, edge)
    everywhere = torch.ones_like(grid.x)
    busy = sampler.uniform(-0.3, 0.8).clamp(min=0)
    for cell in (0.4, 0.2, 0.1):
        canvas = small_leaves(canvas, grid, sampler, cell, values, busy, everywhere)
    late = random_leaves(sampler, 8, 0.1, 1.0)
    canvas = dead_leaves(canvas, grid, late, values(8), edge)
    texture = power_noise(sampler, size, sampler.uniform(0.6, 1.4)) * column(sampler.uniform(0, 0.06))
    return (canvas * (1 + texture[:, None]) + 0.3 * texture[:, None]).clamp_(0, 1)


def leaves(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw dead leaves of one channel, (b, 1, h, w) in [0, 1], of uniform grey levels."""
    grid = pixel_grid(sampler.batch, size, sampler.device).bent(sampler, sampler.uniform(0, 0.1))
    canvas = column(sampler.uniform(0, 1, 1)).expand(-1, 1, *size)
    edge = sampler.uniform(1.0, 2.0) * grid.pixel
    canvas = dead_leaves(canvas, grid, random_leaves(sampler, 60, 0.06, 1.0), sampler.uniform(0, 1, 60, 1), edge)
    everywhere = torch.ones_like(grid.x)
    for cell in (0.4, 0.2, 0.1):
        share = sampler.uniform(0, 0.5)
        canvas = small_leaves(canvas, grid, sampler, cell, lambda m: sampler.uniform(0, 1, m, 1), share, everywhere)
    texture = power_noise(sampler, size, sampler.uniform(0.6, 1.4)) * column(sampler.uniform(0, 0.05))
    return (canvas + texture[:, None]).clamp_(0, 1)


def _palette(sampler: Sampler, m: int) -> Tensor:
    """Draw m colours for each image, (b, m, 3): they differ mostly in brightness, less in hue, and share a tint."""
    bright = sampler.uniform(0, 1, m, 1) ** 1.3
    tint = 0.12 * sampler.normal(1, 3) + 0.12 * sampler.normal(m, 3)
    return (bright + tint - tint.mean(-1, keepdim=True)).clamp(0, 1)


def _shaded_leaves(canvas: Tensor, grid: Grid, sampler: Sampler, values: Callable[[int], Tensor], edge: Tensor) -> Tensor:
    """Lay 30 leaves whose brightness changes linearly across each, as of a surface turned from the light."""
    drawn, colours = random_leaves(sampler, 30, 0.1, 1.5), values(30)
    slope, angle = 0.2 * sampler.normal(30), sampler.uniform(0, 2 * torch.pi, 30)
    for k in range(30):
        leaf = drawn.number(k)
        ahead = (grid.x - column(leaf.x)) * column(angle[:, k].cos()) + (grid.y - column(leaf.y)) * column(angle[:, k].sin())
        shade = ahead * column(slope[:, k] / leaf.a.clamp(min=0.3))
        canvas = paint(canvas, coverage(distance(grid, leaf), edge), column(colours[:, k]) + shade[:, None])
    return canvas
