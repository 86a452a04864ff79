"""Cross-sections of technical parts in air: one material, with cavities and thin walls between them, from 0 to about 1."""

import torch
from torch import Tensor

from es_medical.synthetic.fields import blurred
from es_medical.synthetic.grid import Grid, column, pixel_grid
from es_medical.synthetic.leaves import FULL, Leaf, coverage, dead_leaves, distance, paint, power_law, random_leaves
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.textures import power_noise, small_leaves

HOLES, WALLS = 10, 8  # at most, for each image
AIR = 0.85  # chance that a cavity is empty


def part(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw images of parts, (b, 1, h, w) in [0, 1]."""
    field = pixel_grid(sampler.batch, size, sampler.device)
    scale, tilt = sampler.uniform(0.6, 0.97), sampler.uniform(0, torch.pi)
    shift = 0.06 * sampler.normal(2)
    moved = field.moved(shift[:, 0], shift[:, 1], tilt, scale)
    edge = sampler.uniform(0.9, 1.5) * field.pixel / scale  # in the part's unit
    body = coverage(distance(moved, _outline(sampler)), edge)
    material = column(sampler.uniform(0.7, 1, 1))
    empty = torch.zeros(sampler.batch, 1, *size, device=sampler.device)
    solid = paint(empty, torch.ones_like(body), material)
    hollow = _holes(solid, moved, sampler, edge)
    walls = _bars(sampler, WALLS, 0.7)
    share = sampler.uniform(0.01, 0.06, WALLS) / walls.a
    hollow = dead_leaves(hollow, moved, walls._replace(b=walls.a * share), material[:, 0].expand(-1, WALLS, -1), edge)
    depth = sampler.uniform(0.0, 0.4)  # of the solid rim
    inner = coverage(distance(moved, _outline(sampler)) + column(depth), edge)
    canvas = torch.lerp(solid, hollow, inner[:, None]) * body[:, None]
    noise = power_noise(sampler, size, sampler.uniform(0, 1.0)) * column(sampler.uniform(0, 0.01))
    return blurred(canvas + noise[:, None], sampler.uniform(0, 0.6)).clamp_(0, 1)


def _outline(sampler: Sampler) -> Leaf:
    """Draw a disc (60 %), or an ellipse or rounded box."""
    one = torch.ones(sampler.batch, device=sampler.device)
    round_ = sampler.chance(0.6)
    aspect = torch.where(round_ > 0, 1.0, sampler.uniform(0.5, 1))
    square = torch.where(round_ > 0, 0.0, sampler.uniform(0, 1))
    return Leaf(0 * one, 0 * one, one - 0.25 * square, (one - 0.25 * square) * aspect, 0 * one, square, FULL * one)


def _bars(sampler: Sampler, k: int, reach: float) -> Leaf:
    """Draw k boxes that are long enough to cross the part; a random number of them in each image, the others far away."""
    zero = torch.zeros(sampler.batch, k, device=sampler.device)
    absent = FULL * (sampler.uniform(0, 1, k) > sampler.uniform(0, 1, 1))
    long = sampler.uniform(0.2, 1.2, k)
    x, y = sampler.uniform(-reach, reach, k), sampler.uniform(-reach, reach, k)
    return Leaf(x + absent, y, long, long, sampler.uniform(0, torch.pi, k), zero + 1, zero + FULL)


def _holes(solid: Tensor, grid: Grid, sampler: Sampler, edge: Tensor) -> Tensor:
    """Cut cavities: a few of any size, and a lattice of cells with walls between them in half of the images."""

    def values(m: int) -> Tensor:
        return torch.where(sampler.chance(AIR, m, 1) > 0, 0.0, sampler.uniform(0, 1, m, 1))

    canvas = solid
    for cell in (0.8, 0.5):
        share = sampler.chance(0.4) * sampler.uniform(0.2, 1)
        canvas = small_leaves(canvas, grid, sampler, cell, values, share, edge)
    holes = random_leaves(sampler, HOLES, 0.05, 0.5, reach=0.8)
    larger = power_law(sampler.uniform(0, 1, HOLES), 0.05, 0.7, exponent=1.2) / holes.a
    holes = holes._replace(a=holes.a * larger, b=holes.b * larger, wall=holes.wall * larger)
    absent = FULL * (sampler.uniform(0, 1, HOLES) > sampler.uniform(0, 1, 1))
    return dead_leaves(canvas, grid, holes._replace(x=holes.x + absent), values(HOLES), edge)
