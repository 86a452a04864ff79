"""Images like handwritten digits: strokes of a pen on a dark ground."""

import torch
from torch import Tensor

from es_medical.synthetic.grid import pixel_grid
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.strokes import boxed, curve, ink, random_knots, resampled

# The way of a pen, x to the right and y downwards, as one teaches it; the second stroke of 4 and 7 crosses the first.
WAYS = (
    ((0.1, -1), (-0.6, -0.6), (-0.7, 0.2), (-0.2, 1), (0.5, 0.7), (0.7, -0.2), (0.4, -0.9), (0, -1)),
    ((-0.1, -1), (0, 0), (0, 1)),
    ((-0.6, -0.6), (-0.2, -1), (0.5, -0.9), (0.6, -0.4), (0.1, 0.3), (-0.6, 1), (0, 0.9), (0.7, 1)),
    ((-0.6, -0.8), (0, -1), (0.6, -0.7), (0.4, -0.2), (-0.1, -0.05), (0.5, 0.1), (0.7, 0.6), (0.2, 1), (-0.6, 0.8)),
    ((-0.3, -1), (-0.6, 0.1), (0, 0.1), (0.7, 0.05)),
    ((0.6, -1), (-0.4, -0.95), (-0.5, -0.2), (0.2, -0.3), (0.6, 0.2), (0.4, 0.8), (-0.2, 1), (-0.6, 0.8)),
    ((0.4, -1), (-0.3, -0.5), (-0.6, 0.3), (-0.3, 0.95), (0.4, 0.9), (0.6, 0.4), (0.2, 0), (-0.5, 0.4)),
    ((-0.6, -0.9), (0.1, -0.95), (0.7, -1), (0.3, -0.1), (0, 1)),
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
    ((0.5, -0.6), (0, -1), (-0.5, -0.6), (-0.2, -0.1), (0.4, -0.4), (0.5, -0.8), (0.5, 0), (0.3, 1)),
)
CROSSINGS = {4: ((0.4, -0.9), (0.3, 0.1), (0.3, 1)), 7: ((-0.3, 0.1), (0.1, 0.05), (0.5, 0))}
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
    ways = [resampled(torch.tensor([way], dtype=torch.float32), KNOTS)[0] for way in WAYS]
    crossings = [
        resampled(torch.tensor([CROSSINGS.get(n, way[-2:])], dtype=torch.float32), KNOTS // 2)[0] for n, way in enumerate(WAYS)
    ]
    which = sampler.uniform(0, 10).long().clamp_(max=9)
    tremor = sampler.uniform(0.02, 0.12, 1, 1)
    first = torch.stack(ways).to(which.device)[which] + tremor * sampler.normal(KNOTS, 2)
    second = torch.stack(crossings).to(which.device)[which] + 0.7 * tremor * sampler.normal(KNOTS // 2, 2)
    crossed = (which == 4) | ((which == 7) & (sampler.chance(0.2) > 0))
    first, second = curve(first, POINTS), curve(second, POINTS)
    return torch.cat([first, torch.where(crossed[:, None, None], second, first)], dim=1)


def _free_strokes(sampler: Sampler) -> Tensor:
    """Draw points of one winding stroke and, in 30 % of the images, of a second one across it, (b, 2 POINTS, 2)."""
    one = torch.ones(sampler.batch, device=sampler.device)
    first = boxed(curve(random_knots(sampler, 7), POINTS), one)
    second = first[:, POINTS // 2 : POINTS // 2 + 1] + boxed(curve(random_knots(sampler, 4), POINTS), 0.5 * one)
    return torch.cat([first, torch.where(sampler.chance(0.3)[:, None, None] > 0, second, first)], dim=1)


def _slanted(points: Tensor, sampler: Sampler) -> Tensor:
    """Slant, turn a little, and make narrower or wider."""
    slant, angle, wide = 0.25 * sampler.normal(1), 0.15 * sampler.normal(1), sampler.uniform(0.6, 1.1, 1)
    x, y = points[..., 0] * wide - slant * points[..., 1], points[..., 1]
    return torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y], dim=-1)
