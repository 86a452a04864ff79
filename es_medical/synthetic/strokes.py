"""Strokes of a pen: smooth thick curves, as of digits."""

import torch
from torch import Tensor

from es_medical.synthetic.grid import Grid, column
from es_medical.synthetic.leaves import coverage
from es_medical.synthetic.sampler import Sampler


def curve(knots: Tensor, points: int) -> Tensor:
    """Take `points` points on the uniform cubic B-spline of the control points (b, k, 2): (b, points, 2).

    The first and last control point count three times, so that the curve starts and ends there.
    """
    padded = torch.cat([knots[:, :1], knots[:, :1], knots, knots[:, -1:], knots[:, -1:]], dim=1)
    pieces = padded.shape[1] - 3
    t = torch.linspace(0, pieces, points, device=knots.device).clamp(max=pieces - 1e-4)
    start, s = t.long(), t.frac()
    weights = torch.stack([(1 - s) ** 3, 3 * s**3 - 6 * s**2 + 4, -3 * s**3 + 3 * s**2 + 3 * s + 1, s**3]) / 6
    return sum((weights[j][:, None] * padded[:, start + j] for j in range(4)), torch.zeros_like(padded[:, start]))


def stroke_distance(grid: Grid, points: Tensor) -> Tensor:
    """Distance from each pixel to the nearest of the points (b, p, 2): (b, h, w)."""
    nearest = torch.full_like(grid.x, torch.inf)
    for p in range(points.shape[1]):
        x, y = column(points[:, p, 0]), column(points[:, p, 1])
        nearest = torch.minimum(nearest, (grid.x - x) ** 2 + (grid.y - y) ** 2)
    return nearest.sqrt()


def random_knots(sampler: Sampler, k: int) -> Tensor:
    """Draw control points (b, k, 2) of a pen that keeps turning: steps of a smoothly changing direction."""
    start = sampler.uniform(0, 2 * torch.pi)
    bend = sampler.normal(1) * 0.5
    turns = bend + 0.6 * sampler.normal(k - 1)
    direction = start[:, None] + turns.cumsum(1)
    steps = sampler.uniform(0.5, 1.5, k - 1)
    walk = torch.stack([direction.cos() * steps, direction.sin() * steps], dim=-1).cumsum(1)
    return torch.cat([torch.zeros_like(walk[:, :1]), walk], dim=1)


def resampled(polygon: Tensor, k: int) -> Tensor:
    """Take k points at equal steps along open polygons (b, m, 2): (b, k, 2)."""
    length = polygon.diff(dim=1).norm(dim=2).clamp(min=1e-6).cumsum(1)
    at = torch.cat([torch.zeros_like(length[:, :1]), length], dim=1)  # (b, m): where each corner lies
    wanted = at[:, -1:] * torch.linspace(0, 1, k, device=polygon.device)
    right = torch.searchsorted(at, wanted.contiguous()).clamp(1, polygon.shape[1] - 1)
    before, after = at.gather(1, right - 1), at.gather(1, right)
    part = ((wanted - before) / (after - before))[..., None]
    corners = right[..., None].expand(-1, -1, 2)
    return torch.lerp(polygon.gather(1, corners - 1), polygon.gather(1, corners), part)


def boxed(points: Tensor, half: Tensor) -> Tensor:
    """Shift and scale points (b, p, 2) so that the longer side of their box is 2 `half` (b,), and it is centred."""
    low, high = points.amin(1, keepdim=True), points.amax(1, keepdim=True)
    scale = half[:, None, None] / ((high - low).amax(2, keepdim=True) / 2).clamp(min=1e-3)
    return (points - (low + high) / 2) * scale


def ink(grid: Grid, points: Tensor, thickness: Tensor, edge: Tensor) -> Tensor:
    """Draw a pen of `thickness` (b,) through the points, with an edge that fades over `edge` (b,): (b, h, w) in [0, 1]."""
    return coverage(stroke_distance(grid, points) - column(thickness / 2), edge)
