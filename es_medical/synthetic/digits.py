"""Images like handwritten digits: strokes of a pen on a dark ground."""

import torch
from torch import Tensor

from es_medical.synthetic.grid import pixel_grid
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.strokes import boxed, curve, ink, random_knots


def digit(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw one connected stroke and, in 30 % of the images, a second one, (b, 1, h, w) in [0, 1].

    The first stroke fills a box of 20 / 28 of the image and is up to 4 / 28 thick, as in MNIST (LeCun et al. 1998).
    """
    grid = pixel_grid(sampler.batch, size, sampler.device)
    half = torch.full((sampler.batch,), 9 / 14, device=sampler.device)
    points = boxed(curve(random_knots(sampler, 7), 48), half)
    second = points[:, 24:25] + boxed(curve(random_knots(sampler, 4), 24), half * 0.5)
    second = torch.where(sampler.chance(0.3)[:, None, None] > 0, second, points[:, :1])
    pen, edge = sampler.uniform(1.5, 4.0) / 14, sampler.uniform(1.0, 2.0) / 14
    return ink(grid, torch.cat([points, second], dim=1), pen, edge)[:, None]
