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
    """Draw phases in radians, (b, h, w): a constant, a slope and a smooth field of up to about 1 radian."""
    constant = sampler.uniform(-torch.pi, torch.pi)[:, None, None]
    strength = sampler.uniform(0, 1)[:, None, None]
    return constant + strength * smooth_field(sampler, 1, size, 4)[:, 0]
