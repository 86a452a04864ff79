"""Normalised convolution: fill in missing values by averages of the measured ones nearby."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.types import Image, Mask

WIDTHS = (math.inf, 5.0, 2.0, 1.0, 0.5)
"""Standard deviations of the Gaussians in pixels, from coarse to fine; the first one averages over the image."""

HALF = 0.1
"""Coverage (g * m)(i) at which half of what is still missing at i is added; a measured value covers its own pixel by 1."""

NAME = f"normalised convolution {WIDTHS} {HALF}"
"""Name and constants, kept with weights that were trained from this estimate: they fit no other."""


def normalised_convolution(y: Image, mask: Mask) -> Image:
    """Estimate an image from the values y that were measured where the mask is 1; linear in y, no value is read elsewhere.

    From coarse to fine Gaussians g, what the coarser ones left of the measured values is averaged and added:

        x <- x + (g * m (y - x)) / (g * m + HALF),

    so a pixel takes its value from the finest g that reaches a measured value. Where there are several channels, each g first
    adds the average over all of them (the channels of a photograph vary together), and then that of each channel.

    The estimate commutes with rotations by 90 degrees and flips of y and its mask, and with shifts that keep all measured
    values in the image. The image ends at its border: opposite edges of a photograph do not continue each other. Measured
    values are approached, not kept, as they may be noisy. Nothing measured gives zero.

    Args:
        y: images (B, C, H, W).
        mask: 0 or 1, broadcastable to y.

    Source: Knutsson and Westin (1993), "Normalized and differential convolution", CVPR, here of the residual at each width.
    """
    x, mask = torch.zeros_like(y), mask.to(y).expand(-1, *y.shape[1:])  # (B or 1, C, H, W)
    with torch.autocast(y.device.type, enabled=False):
        for width in WIDTHS:
            if y.shape[1] > 1:
                x = x + _mean((mask * (y - x)).sum(1, keepdim=True), mask.sum(1, keepdim=True), width)
            x = x + _mean(mask * (y - x), mask, width)
    return x


def _mean(residual: Image, mask: Mask, width: float) -> Image:
    """Return (g * r) / (g * m + HALF), where nothing is measured outside the image."""
    rows, columns = (gaussian(n, width, residual.device).to(residual) for n in residual.shape[-2:])
    return (rows @ residual @ columns) / (rows @ mask @ columns + HALF)


@lru_cache(maxsize=64)
def gaussian(n: int, width: float, device: torch.device) -> Float[Tensor, "n n"]:
    """Return g(i - j), 1 at its centre, for pixels i and j of a line of n; float64, copied to a device once."""
    place = torch.arange(n, dtype=torch.float64)
    return torch.exp(-0.5 * ((place[:, None] - place) / width) ** 2).to(device)
