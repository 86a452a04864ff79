"""Smooth random fields: bias fields, phases, displacements."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from es_medical.synthetic.sampler import Sampler


def smooth_field(sampler: Sampler, channels: int, size: tuple[int, int], cells: int = 4) -> Tensor:
    """Draw fields of about unit standard deviation, (b, channels, h, w): cubic through cells x cells random values."""
    knots = sampler.normal(channels, cells, cells)
    return interpolate(knots, size=size, mode="bicubic", align_corners=True)


def bias_field(sampler: Sampler, size: tuple[int, int], strongest: float) -> Tensor:
    """Draw slowly varying positive factors, (b, h, w), as of a receive coil: exp(s n), s uniform in [0, strongest]."""
    strength = sampler.uniform(0, strongest)[:, None, None]
    return torch.exp(strength * smooth_field(sampler, 1, size, 3)[:, 0])


def smooth_phase(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw phases in radians, (b, h, w): a constant, and a smooth field of a standard deviation of up to about 1 radian."""
    constant = sampler.uniform(-torch.pi, torch.pi)[:, None, None]
    strength = sampler.uniform(0, 1.5)[:, None, None]
    return constant + strength * smooth_field(sampler, 1, size, 4)[:, 0]


def blurred(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur images (b, c, h, w), periodic, with a Gaussian of `sigma` (b,) pixels, as scanners and lenses do."""
    height, width = images.shape[-2:]
    rows = torch.fft.fftfreq(height, device=images.device)[:, None]
    columns = torch.fft.rfftfreq(width, device=images.device)[None]
    passed = torch.exp(-2 * torch.pi**2 * sigma[:, None, None, None] ** 2 * (rows**2 + columns**2))
    return torch.fft.irfft2(torch.fft.rfft2(images) * passed, s=(height, width))
