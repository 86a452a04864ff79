"""Images like those of CT: chests, abdomens and heads on a table, or a part of them; -1000 ... 1000 HU as 0 ... 1."""

import torch
from torch import Tensor

from es_medical.synthetic.fields import blurred
from es_medical.synthetic.grid import Grid, column, pixel_grid
from es_medical.synthetic.leaves import coverage, dead_leaves, distance, ellipse, paint, random_leaves
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.textures import band_noise, power_noise, small_leaves


def ct(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw CT images, (b, 1, h, w) in [0, 1]."""
    field = pixel_grid(sampler.batch, size, sampler.device)
    one = torch.ones(sampler.batch, device=sampler.device)
    part = sampler.chance(0.65)  # of the images show a part of the body, without air around it
    scale = torch.where(part > 0, sampler.uniform(1.2, 2.4), sampler.uniform(0.6, 1.0))
    shift = torch.where(part > 0, 0.7, 0.1)
    grid = field.moved(shift * sampler.uniform(-1, 1), 0.5 * shift * sampler.uniform(-1, 1), 0.1 * sampler.normal(), scale)
    grid = Grid(grid.x, grid.y, field.pixel).bent(sampler, sampler.uniform(0, 0.08))
    edge = sampler.uniform(0.9, 1.6) * field.pixel / scale  # in the body's unit
    canvas = _table(torch.zeros(sampler.batch, 1, *size, device=sampler.device), grid, sampler, edge)
    body = distance(grid, ellipse(0 * one, 0 * one, one, sampler.uniform(0.6, 0.9)))
    canvas = _body(canvas, grid, sampler, body, edge)
    trunk = sampler.chance(0.88)  # the others are heads
    canvas = _skull(canvas, sampler, body, 1 - trunk, edge)
    canvas = _lungs(canvas, grid, sampler, scale, trunk, edge)
    canvas = _bones(canvas, grid, sampler, body, trunk, edge)
    canvas = _vertebra(canvas, grid, sampler, trunk, edge)
    noise = power_noise(sampler, size, sampler.uniform(0, 0.7)) * column(sampler.uniform(0, 0.012))
    return blurred(canvas + noise[:, None], sampler.uniform(0, 0.45)).clamp_(0, 1)


def _table(canvas: Tensor, grid: Grid, sampler: Sampler, edge: Tensor) -> Tensor:
    """Lay one or two thin lines below the body: the table."""
    for _ in range(2):
        height = sampler.uniform(0.9, 1.1)
        line = (grid.y - column(height) + 0.1 * grid.x**2).abs() - 0.01
        canvas = paint(canvas, coverage(line, edge) * column(sampler.chance(0.4)), column(sampler.uniform(0.1, 0.4, 1)))
    return canvas


def _body(canvas: Tensor, grid: Grid, sampler: Sampler, body: Tensor, edge: Tensor) -> Tensor:
    """Lay skin, fat, muscle, and organs of low contrast inside."""
    fat = sampler.uniform(0.01, 0.2)
    canvas = paint(canvas, coverage(body, edge), column(sampler.uniform(0.43, 0.47, 1)))
    canvas = paint(canvas, coverage(body + column(fat), edge), column(sampler.uniform(0.51, 0.55, 1)))
    organs = random_leaves(sampler, 24, 0.06, 0.7, reach=0.8)
    values = torch.where(sampler.chance(0.25, 24) > 0, sampler.uniform(0.43, 0.48, 24), sampler.uniform(0.5, 0.57, 24))
    gas = sampler.chance(0.3, 1) * sampler.chance(0.15, 24)  # in the bowel
    values = values * (1 - gas * sampler.uniform(0.8, 1, 24))
    shell = torch.maximum(body + column(fat), -body - column(fat + sampler.uniform(0.05, 0.4)))
    period = (sampler.uniform(0.05, 0.2) * min(grid.size)).clamp(min=5)
    streaks = (band_noise(sampler, grid.size, period) * column(period / 4) + 0.5).clamp(0, 1)  # fat between muscles
    streaks = streaks * coverage(shell, edge) * column(sampler.chance(0.5))
    canvas = paint(canvas, streaks, column(sampler.uniform(0.44, 0.53, 1)))
    inside = coverage(body + column(fat + sampler.uniform(0.03, 0.2)), edge)
    drawn = dead_leaves(canvas, grid, organs, values[..., None], edge)
    drawn = small_leaves(drawn, grid, sampler, 0.15, lambda m: sampler.uniform(0.43, 0.58, m, 1), sampler.uniform(0, 0.4), edge)
    return torch.lerp(canvas, drawn, inside[:, None])


def _skull(canvas: Tensor, sampler: Sampler, body: Tensor, present: Tensor, edge: Tensor) -> Tensor:
    """Lay a skull of bright tables and a darker marrow."""
    outer, thick = sampler.uniform(0.03, 0.1), sampler.uniform(0.02, 0.05)
    depth = (body + column(outer + thick)).abs() - column(thick)  # of the shell, thick on both sides of its middle
    canvas = paint(canvas, coverage(depth, edge) * column(present), column(sampler.uniform(0.8, 1, 1)))
    marrow = coverage(depth + column(0.7 * thick), edge) * column(present * sampler.chance(0.5))
    return paint(canvas, marrow, column(sampler.uniform(0.6, 0.8, 1)))


def _lungs(canvas: Tensor, grid: Grid, sampler: Sampler, scale: Tensor, trunk: Tensor, edge: Tensor) -> Tensor:
    """Lay two lungs with vessels in 85 % of the trunks, and a windpipe."""
    present = trunk * sampler.chance(0.85)
    lung = torch.full_like(grid.x, 1e3)
    for side in (-1, 1):
        x, y = side * sampler.uniform(0.4, 0.5), sampler.uniform(-0.1, 0.1)
        a, b = sampler.uniform(0.35, 0.55), sampler.uniform(0.22, 0.36)
        lung = torch.minimum(lung, distance(grid, ellipse(x, y, a, b, torch.pi / 2 + 0.2 * sampler.normal())))
    heart = ellipse(0.1 * sampler.normal(), sampler.uniform(-0.3, 0.2), sampler.uniform(0.1, 0.4), sampler.uniform(0.1, 0.3))
    lung = torch.maximum(lung, -distance(grid, heart))
    air = column(sampler.uniform(0.05, 0.16, 1)).expand_as(canvas)
    cloud = power_noise(sampler, grid.size, sampler.uniform(0.8, 1.5)) * column(sampler.uniform(0.0, 0.03))
    inner = _vessels(air + cloud[:, None], grid, sampler, scale, edge)
    canvas = torch.lerp(canvas, inner, (coverage(lung, edge) * column(present))[:, None])
    small = sampler.uniform(0.03, 0.08)
    pipe = ellipse(0.15 * sampler.normal(), 0.2 * sampler.normal(), small, small * sampler.uniform(0.6, 1))
    cover = coverage(distance(grid, pipe), edge) * column(trunk * sampler.chance(0.7))
    return paint(canvas, cover, column(sampler.uniform(0, 0.03, 1)))


def _vessels(canvas: Tensor, grid: Grid, sampler: Sampler, scale: Tensor, edge: Tensor) -> Tensor:
    """Lay round and long vessels of all sizes, and thin branching lines: ridges of band noise."""

    def values(m: int) -> Tensor:
        return sampler.uniform(0.25, 0.55, m, 1)

    scaled = Grid(grid.x * column(scale), grid.y * column(scale), grid.pixel)  # lattices in the field's unit
    for cell in (0.3, 0.18, 0.1):
        canvas = small_leaves(canvas, scaled, sampler, cell, values, sampler.uniform(0, 0.5), edge * scale)
    period = sampler.uniform(0.1, 0.3) * min(grid.size)
    noise = band_noise(sampler, grid.size, period.clamp(min=4))
    line = (1 - noise.abs() * column(period.clamp(min=4) / 5)).clamp(0, 1)
    where = (band_noise(sampler, grid.size, period * 2) - 0.3).clamp(0, 1)
    return paint(canvas, line * where, column(sampler.uniform(0.25, 0.5, 1)))


def _bones(canvas: Tensor, grid: Grid, sampler: Sampler, body: Tensor, trunk: Tensor, edge: Tensor) -> Tensor:
    """Lay eight ribs, bright with darker marrow, along the wall of most trunks."""
    wall = sampler.uniform(0.1, 0.22)
    present = trunk * sampler.chance(0.9)
    depth = body + column(wall)
    for _ in range(8):
        angle, long = sampler.uniform(0, 2 * torch.pi), sampler.uniform(0.06, 0.2)
        x, y = angle.cos(), angle.sin()
        apart = (grid.x * column(y) - grid.y * column(x)).abs() - column(long)  # along the wall, from its ray
        apart = torch.maximum(apart, -(grid.x * column(x) + grid.y * column(y)))
        thick = sampler.uniform(0.02, 0.05)
        rib = torch.maximum(depth.abs() - column(thick), apart)
        canvas = paint(canvas, coverage(rib, edge) * column(present), column(sampler.uniform(0.6, 0.95, 1)))
        marrow = torch.maximum(depth.abs() - column(thick * 0.4), apart + 0.02)
        canvas = paint(canvas, coverage(marrow, edge) * column(present), column(sampler.uniform(0.5, 0.65, 1)))
    return canvas


def _vertebra(canvas: Tensor, grid: Grid, sampler: Sampler, trunk: Tensor, edge: Tensor) -> Tensor:
    """Lay a vertebral body with a bright rim, its processes, and the dark canal behind it, in most trunks."""
    present = column(trunk * sampler.chance(0.95))
    y, size = sampler.uniform(0.3, 0.55), sampler.uniform(0.1, 0.17)
    zero = torch.zeros_like(y)
    rim, core = sampler.uniform(0.65, 0.95, 1), sampler.uniform(0.55, 0.68, 1)
    for dx, dy, long, wide, tilt in ((0, 1.7, 0.9, 0.25, 1.57), (1.1, 1.0, 1.0, 0.25, 0.3), (-1.1, 1.0, 1.0, 0.25, -0.3)):
        arm = ellipse(zero + dx * size, y + dy * size, long * size, wide * size, zero + tilt)
        canvas = paint(canvas, coverage(distance(grid, arm), edge) * present, column(rim))
    outer = distance(grid, ellipse(zero, y, size, size * 0.8))
    canvas = paint(canvas, coverage(outer, edge) * present, column(rim))
    canvas = paint(canvas, coverage(outer + 0.025, edge) * present, column(core))
    canal = distance(grid, ellipse(zero, y + 1.05 * size, 0.4 * size, 0.33 * size))
    return paint(canvas, coverage(canal, edge) * present, column(sampler.uniform(0.49, 0.54, 1)))
