"""Supports: where the body is, on a dark background."""

import torch
from torch import Tensor

from es_medical.synthetic.grid import Grid
from es_medical.synthetic.leaves import distance, ellipse
from es_medical.synthetic.sampler import Sampler


def blobs(grid: Grid, sampler: Sampler, scale: Tensor, extra: int = 2) -> Tensor:
    """Signed distance to a bent ellipse with up to `extra` smaller ones at its side: (b, h, w), negative inside.

    Args:
        grid: coordinates, already bent.
        sampler: its random numbers.
        scale: half the longer axis of the main ellipse, (b,).
        extra: number of further ellipses; each is there with a chance of 30 %.
    """
    zero = torch.zeros_like(scale)
    body = distance(grid, ellipse(zero, zero, scale * sampler.uniform(0.6, 0.95), scale))
    for _ in range(extra):
        angle, small = sampler.uniform(0, 2 * torch.pi), scale * sampler.uniform(0.2, 0.6)
        away = scale * sampler.uniform(0.5, 1.2)
        other = distance(grid, ellipse(away * angle.cos(), away * angle.sin(), small, small * sampler.uniform(0.6, 1)))
        absent = (1 - sampler.chance(0.3)) * 1e3
        body = torch.minimum(body, other + absent[:, None, None])
    return body
