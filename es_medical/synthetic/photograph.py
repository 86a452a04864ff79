"""Images like photographs: dead leaves of correlated colours, shaded, textured, partly out of focus."""

from collections.abc import Callable

import torch
from torch import Tensor

from es_medical.synthetic.fields import blurred, smooth_field
from es_medical.synthetic.grid import Grid, column, pixel_grid
from es_medical.synthetic.leaves import FULL, Leaf, coverage, dead_leaves, distance, paint, power_law, random_leaves
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.textures import grain, power_noise, small_leaves, stripes


def photograph(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw colour images, (b, 3, h, w) in [0, 1]: from a plain wall or sky to a crowded table."""
    grid = pixel_grid(sampler.batch, size, sampler.device).bent(sampler, sampler.uniform(0, 0.1))
    palette = _palette(sampler, 6)
    edge = sampler.uniform(0.8, 1.6) * grid.pixel
    crowd = sampler.uniform(0, 1.3).clamp(max=1)  # share of the leaves that are there

    def values(m: int) -> Tensor:
        which = sampler.uniform(0, 6, m).long().clamp_(max=5)
        return palette.gather(1, which[..., None].expand(-1, -1, 3)) + 0.04 * sampler.normal(m, 1)

    canvas = palette[:, 0, :, None, None] + 0.1 * smooth_field(sampler, 1, size, 3)
    canvas = _shaded_leaves(canvas, grid, sampler, 16, 0.3, values, crowd, edge * sampler.uniform(1, 3))
    canvas = _patterned_leaves(canvas, grid, sampler, 2, values, crowd, edge)
    busy = (crowd * sampler.uniform(-0.4, 0.6)).clamp(min=0)
    for cell in (0.5, 0.25, 0.12):
        canvas = small_leaves(canvas, grid, sampler, cell, values, busy, edge)
    canvas = _shaded_leaves(canvas, grid, sampler, 8, 0.2, values, crowd, edge)
    canvas = _bars(canvas, grid, sampler, 8, values, edge)
    return blurred(_textured(canvas, sampler, size), sampler.uniform(0, 0.4)).clamp_(0, 1)


def _textured(canvas: Tensor, sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Add clouds to all of a canvas (b, c, h, w), and streaks to the part of it that a smooth field chooses."""
    clouds = power_noise(sampler, size, sampler.uniform(0.7, 1.5)) * column(sampler.uniform(-0.3, 1).clamp(min=0) ** 2 * 0.05)
    where = (smooth_field(sampler, 1, size, 3)[:, 0] * 3 + column(sampler.uniform(-2, 1))).clamp(0, 1)
    streaks = grain(sampler, size, sampler.uniform(3, 12), sampler.uniform(0.5, 1.5), sampler.uniform(0, torch.pi))
    texture = clouds + where * streaks * column(sampler.uniform(-0.04, 0.08).clamp(min=0))
    return canvas + texture[:, None] * (0.3 + canvas.clamp(0, 1))


def leaves(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw dead leaves of one channel, (b, 1, h, w) in [0, 1], of uniform grey levels."""
    grid = pixel_grid(sampler.batch, size, sampler.device).bent(sampler, sampler.uniform(0, 0.1))
    canvas = column(sampler.uniform(0, 1, 1)).expand(-1, 1, *size)
    edge = sampler.uniform(1.0, 2.0) * grid.pixel
    canvas = dead_leaves(canvas, grid, random_leaves(sampler, 60, 0.06, 1.0), sampler.uniform(0, 1, 60, 1), edge)
    for cell in (0.4, 0.2, 0.1):
        canvas = small_leaves(canvas, grid, sampler, cell, lambda m: sampler.uniform(0, 1, m, 1), sampler.uniform(0, 0.5), edge)
    texture = power_noise(sampler, size, sampler.uniform(0.6, 1.4)) * column(sampler.uniform(0, 0.05))
    return (canvas + texture[:, None]).clamp_(0, 1)


def _palette(sampler: Sampler, m: int) -> Tensor:
    """Draw m colours for each image, (b, m, 3): they differ mostly in brightness, less in hue, and share a tint.

    Hue varies along red to blue more than along green to magenta, as daylight and lamps do.
    """
    bright = sampler.uniform(0, 1, m, 1) ** 1.5
    warm, green = torch.tensor([1.0, 0.1, -1.1]), torch.tensor([-0.5, 1.0, -0.5])
    hue = 0.07 * sampler.normal(1, 1) + 0.06 * sampler.normal(m, 1) * sampler.chance(0.5, m, 1)
    tint = hue * warm.to(bright) + 0.25 * hue.roll(1, 1) * green.to(bright)
    strong = sampler.chance(0.12, m, 1) * sampler.normal(m, 3) * 0.15
    return (bright + tint * (0.3 + 2 * bright).clamp(max=1.5) + strong).clamp(0, 1)


def _shaded_leaves(
    canvas: Tensor,
    grid: Grid,
    sampler: Sampler,
    k: int,
    smallest: float,
    values: Callable[[int], Tensor],
    crowd: Tensor,
    edge: Tensor,
) -> Tensor:
    """Lay k leaves whose brightness changes linearly across each, as of a surface turned from the light."""
    drawn, colours = random_leaves(sampler, k, smallest, 2.0), values(k)
    present = (sampler.uniform(0, 1, k) < crowd[:, None]).float()
    slope, angle = 0.12 * sampler.normal(k), sampler.uniform(0, 2 * torch.pi, k)
    for j in range(k):
        leaf = drawn.number(j)
        ahead = (grid.x - column(leaf.x)) * column(angle[:, j].cos()) + (grid.y - column(leaf.y)) * column(angle[:, j].sin())
        shade = ahead * column(slope[:, j] / leaf.a.clamp(min=0.4))
        cover = coverage(distance(grid, leaf), edge) * column(present[:, j])
        canvas = paint(canvas, cover, column(colours[:, j]) + shade[:, None])
    return canvas


def _patterned_leaves(
    canvas: Tensor, grid: Grid, sampler: Sampler, k: int, values: Callable[[int], Tensor], crowd: Tensor, edge: Tensor
) -> Tensor:
    """Lay k leaves of stripes, each in half of the images."""
    drawn, colours = random_leaves(sampler, k, 0.3, 1.0), values(2 * k)
    for j in range(k):
        bars = stripes(grid, sampler.uniform(0, torch.pi), sampler.uniform(0.1, 0.5), sampler.uniform(0, 6.28), edge)
        colour = torch.lerp(column(colours[:, j]), column(colours[:, k + j]), bars[:, None])
        cover = coverage(distance(grid, drawn.number(j)), edge) * column(sampler.chance(0.4) * crowd.round())
        canvas = paint(canvas, cover, colour)
    return canvas


def _bars(canvas: Tensor, grid: Grid, sampler: Sampler, k: int, values: Callable[[int], Tensor], edge: Tensor) -> Tensor:
    """Lay k long thin bars of three directions in a third of the images, as of a fence, a mast or the edge of a table."""
    directions = sampler.uniform(0, torch.pi, 3)
    long = power_law(sampler.uniform(0, 1, k), 0.3, 3.0, 2.0)
    wide = sampler.uniform(0.4, 1, k) * edge[:, None] * sampler.uniform(0.5, 3, 1)
    x, y = sampler.uniform(-1, 1, k), sampler.uniform(-1, 1, k)
    bars = Leaf(x, y, long, wide, sampler.one_of(directions, k), torch.ones_like(x), torch.full_like(x, FULL))
    present, colours = column(sampler.chance(0.35)), values(k)
    for j in range(k):
        canvas = paint(canvas, coverage(distance(grid, bars.number(j)), edge) * present, column(colours[:, j]))
    return canvas
