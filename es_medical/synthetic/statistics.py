"""Statistics in which synthetic images should be like real ones: power spectrum, gradients, grey levels."""

import math

import torch
from torch import Tensor


def shown(images: Tensor) -> Tensor:
    """Turn complex images (n, 2, h, w) into magnitudes (n, 1, h, w); others stay as they are."""
    return images.norm(dim=1, keepdim=True) if images.shape[1] == 2 else images


def power_spectrum(images: Tensor) -> tuple[Tensor, Tensor]:
    """Average the power spectrum over images, channels and directions.

    Each image (its mean taken away) is multiplied by a Hann window, so that its outer edges don't count as edges.

    Args:
        images: (n, c, h, w), h and w the same or nearly so.

    Returns:
        Frequencies in cycles per pixel, and the mean power of each ring of frequencies one cycle per image wide.
    """
    magnitude = shown(images)
    height, width = magnitude.shape[-2:]
    window = torch.hann_window(height)[:, None] * torch.hann_window(width)
    window = window / window.square().mean().sqrt()
    centred = (magnitude - magnitude.mean((-2, -1), keepdim=True)) * window
    power = torch.fft.fft2(centred, norm="ortho").abs().square().mean((0, 1))
    radius = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)[None])
    side = min(height, width)
    ring = (radius * side).round().long()
    rings = range(1, side // 2 + 1)
    return torch.tensor([r / side for r in rings]), torch.stack([power[ring == r].mean() for r in rings])


def gradient_sizes(images: Tensor) -> Tensor:
    """Length of the gradient (differences to the next pixel) at each pixel, (n, c, h - 1, w - 1)."""
    magnitude = shown(images)
    down, right = magnitude.diff(dim=-2)[..., :-1], magnitude.diff(dim=-1)[..., :-1, :]
    return torch.hypot(down, right)


def histogram(values: Tensor, low: float, high: float, bins: int = 25) -> tuple[Tensor, Tensor]:
    """Share of the values in each bin from `low` to `high`, and the bins' centres; values beyond count in the outer bins."""
    shares = torch.histc(values.clamp(low, high), bins, low, high) / values.numel()
    edges = torch.linspace(low, high, bins + 1)
    return (edges[1:] + edges[:-1]) / 2, shares


def gradient_histogram(images: Tensor, smallest: float = 0.01) -> tuple[Tensor, Tensor]:
    """Share of pixels in bins of log10 of the gradient, from `smallest` to 1.4.

    Smaller gradients, lost in noise and in the steps of 8 bits, count in the first bin.
    """
    return histogram(gradient_sizes(images).clamp(min=smallest).log10(), math.log10(smallest), math.log10(1.4))
