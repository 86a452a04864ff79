"""Images like handwritten digits: strokes of a pen on a dark ground."""

from collections.abc import Sequence

import torch
from torch import Tensor

from es_medical.synthetic.grid import pixel_grid
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.strokes import boxed, curve, ink, random_knots, resampled

WAYS = (
    ((0.1, -1), (-0.6, -0.6), (-0.7, 0.2), (-0.2, 1), (0.5, 0.7), (0.7, -0.2), (0.4, -0.9), (0, -1)),  # 0
    ((-0.1, -1), (0, 0), (0, 1)),  # 1
    ((-0.6, -0.6), (-0.2, -1), (0.5, -0.9), (0.6, -0.4), (0.1, 0.3), (-0.6, 1), (0, 0.9), (0.7, 1)),  # 2
    ((-0.6, -0.8), (0, -1), (0.6, -0.7), (0.4, -0.2), (-0.1, -0.05), (0.5, 0.1), (0.7, 0.6), (0.2, 1), (-0.6, 0.8)),  # 3
    ((-0.3, -1), (-0.6, 0.1), (0, 0.1), (0.7, 0.05)),  # 4, and its second stroke below
    ((0.6, -1), (-0.4, -0.95), (-0.5, -0.2), (0.2, -0.3), (0.6, 0.2), (0.4, 0.8), (-0.2, 1), (-0.6, 0.8)),  # 5
    ((0.4, -1), (-0.3, -0.5), (-0.6, 0.3), (-0.3, 0.95), (0.4, 0.9), (0.6, 0.4), (0.2, 0), (-0.5, 0.4)),  # 6
    ((-0.6, -0.9), (0.1, -0.95), (0.7, -1), (0.3, -0.1), (0, 1)),  # 7
    (
        (0.5, -0.8),
        (-0.1, -1),
        (-0.5, -0.6),
        (0, -0.1),
        (0.5, 0.4),
        (0.1, 1),
        (-0.5, 0.7),
        (-0.3, 0.2),
        (0.3, -0.2),
        (0.5, -0.7),
    ),
    ((0.5, -0.6), (0, -1), (-0.5, -0.6), (-0.2, -0.1), (0.4, -0.4), (0.5, -0.8), (0.5, 0), (0.3, 1)),  # 9
    ((-0.6, -0.6), (0, -1), (0.5, -0.6), (0.2, 0.3), (-0.5, 1), (-0.6, 0.7), (-0.1, 0.7), (0.7, 1)),  # 2 with a loop
    ((0.2, -1), (-0.7, 0.2), (0, 0.25), (0.7, 0.2)),  # 4, closed
    ((-0.6, -0.9), (0.1, -0.95), (0.7, -1), (0.3, -0.1), (0, 1)),  # 7, crossed
)
"""The way of a pen along each numeral, as one teaches it: x to the right, y downwards."""

CROSSINGS = {
    4: ((0.4, -0.9), (0.3, 0.1), (0.3, 1)),
    11: ((0.25, -1), (0.2, 0), (0.2, 1)),
    12: ((-0.3, 0.1), (0.1, 0.05), (0.5, 0)),
}
"""The second stroke of some of them."""

KNOTS, POINTS = 12, 48


def digit(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw numerals (75 %) and free strokes, (b, 1, h, w) in [0, 1], bent, slanted, and thick or thin.

    As in MNIST (LeCun et al. 1998), the longer side of a digit is 20 / 28 of the image, about its centre of mass.
    """
    grid = pixel_grid(sampler.batch, size, sampler.device)
    points = torch.where(sampler.chance(0.75)[:, None, None] > 0, _numerals(sampler), _free_strokes(sampler))
    points = boxed(_slanted(points, sampler), torch.full((sampler.batch,), 17 / 28, device=sampler.device))
    points = points - 0.7 * points.mean(1, keepdim=True)
    pen, edge = sampler.uniform(1.6, 4.4) / 14, sampler.uniform(0.7, 1.3) / 14
    return ink(grid, points, pen, edge)[:, None]


def _numerals(sampler: Sampler) -> Tensor:
    """Draw points of the numerals 0 ... 9, each with its own tremor, (b, 2 POINTS, 2)."""
    which = (sampler.uniform(0, 1) * len(WAYS)).long().clamp_(max=len(WAYS) - 1)
    tremor = sampler.uniform(0.02, 0.12, 1, 1)
    first = _knots(WAYS, KNOTS).to(sampler.device)[which] + tremor * sampler.normal(KNOTS, 2)
    seconds = [CROSSINGS.get(n, way) for n, way in enumerate(WAYS)]
    second = _knots(seconds, KNOTS // 2).to(sampler.device)[which] + 0.7 * tremor * sampler.normal(KNOTS // 2, 2)
    crossed = torch.tensor([n in CROSSINGS for n in range(len(WAYS))]).to(sampler.device)[which]
    first, second = curve(first, POINTS), curve(second, POINTS)
    return torch.cat([first, torch.where(crossed[:, None, None], second, first)], dim=1)


def _knots(ways: Sequence[tuple[tuple[float, float], ...]], k: int) -> Tensor:
    """Take k control points along each way: (ways, k, 2)."""
    return torch.cat([resampled(torch.tensor([way], dtype=torch.float32), k) for way in ways])


def _free_strokes(sampler: Sampler) -> Tensor:
    """Draw points of one winding stroke and, in 30 % of the images, of a second one across it, (b, 2 POINTS, 2)."""
    one = torch.ones(sampler.batch, device=sampler.device)
    first = boxed(curve(random_knots(sampler, 7), POINTS), one)
    second = first[:, POINTS // 2 : POINTS // 2 + 1] + boxed(curve(random_knots(sampler, 4), POINTS), 0.5 * one)
    return torch.cat([first, torch.where(sampler.chance(0.3)[:, None, None] > 0, second, first)], dim=1)


def _slanted(points: Tensor, sampler: Sampler) -> Tensor:
    """Slant, turn a little, and make narrower or wider."""
    slant, angle, wide = 0.2 + 0.25 * sampler.normal(1), 0.15 * sampler.normal(1), sampler.uniform(0.6, 1.1, 1)
    x, y = points[..., 0] * wide - slant * points[..., 1], points[..., 1]
    return torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y], dim=-1)
