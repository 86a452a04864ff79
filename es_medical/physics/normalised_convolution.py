"""Normalised convolution: fill in missing values by averages of the measured ones nearby."""

import math
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.types import Image, Mask

WIDTHS = (math.inf, 5.0, 2.0, 1.0, 0.55)
"""Standard deviations of the Gaussians in pixels, from coarse to fine; the first one averages over the image."""

HALF = 0.1
"""Coverage (g * m)(i) at which half of what is still missing at pixel i is added; one value in reach counts 1 at its place."""


def normalised_convolution(y: Image, mask: Mask) -> Image:
    """Estimate an image from the values y that were measured where the mask is 1; linear in y, no value is read elsewhere.

    From coarse to fine Gaussians g, what the coarser ones left of the measured values is averaged and added:

        x <- x + (g * m (y - x)) / (g * m + HALF),

    so a pixel takes its value from the finest g that reaches a measured value. Where there are several channels, each g first
    adds the average over all of them (the channels of a photograph vary together), and then that of each channel.

    All convolutions are cyclic and all g symmetric: the estimate commutes with cyclic shifts, rotations by 90 degrees and
    flips of y and its mask. Measured values are approached, not kept, as they may be noisy. Nothing measured gives zero.

    Args:
        y: images (B, C, H, W).
        mask: 0 or 1, broadcastable to y.

    Source: Knutsson and Westin (1993), "Normalized and differential convolution", CVPR; of residuals, as in matching
    pursuit from coarse to fine.
    """
    x = torch.zeros_like(y)
    mask = mask.to(y).expand(-1, *y.shape[1:])  # (B or 1, C, H, W)
    for width in WIDTHS:
        if y.shape[1] > 1:
            x = x + _smooth((mask * (y - x)).sum(1, keepdim=True), width) / (_smooth(mask.sum(1, keepdim=True), width) + HALF)
        x = x + _smooth(mask * (y - x), width) / (_smooth(mask, width) + HALF)
    return x


def _smooth(x: Image, width: float) -> Image:
    """Return g * x, a cyclic convolution with a Gaussian that is 1 at its centre."""
    height, length = x.shape[-2:]
    rows, columns = (_response(n, width).to(x) for n in (height, length))
    return torch.fft.irfft2(torch.fft.rfft2(x) * (rows[:, None] * columns[: length // 2 + 1]), s=(height, length))


@lru_cache(maxsize=64)
def _response(n: int, width: float) -> Float[Tensor, " n"]:
    """Return the discrete Fourier transform of a Gaussian on a circle of n pixels, float64; it is real, as g is symmetric."""
    distance = torch.minimum(torch.arange(n), n - torch.arange(n)).double()
    return torch.fft.fft(torch.exp(-0.5 * (distance / width) ** 2)).real
