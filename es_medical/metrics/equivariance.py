"""EQUIV: how equivariant a reconstructor is, in decibels."""

from collections.abc import Callable

import torch

from es_medical.groups import Group
from es_medical.metrics.image import decibel
from es_medical.physics.base import Operator
from es_medical.physics.virtual import VirtualPhysics
from es_medical.types import Image, Measurement, PerItem


def equivariance(
    reconstruct: Callable[[Measurement, Operator], Image],
    y: Measurement,
    physics: Operator,
    group: Group,
    data_range: float = 1.0,
) -> PerItem:
    """EQUIV = -10 log10 E_g mean |f(y, A T_g) - T_g^-1 f(y, A)|^2 of each item (appendix "Metrics").

    E_g is the exact mean over the group; the identity, whose error is zero, takes no reconstruction.

    Args:
        reconstruct: f, from (y, physics) to images (B, C, H, W).
        y: measurements (B, ...).
        physics: their operator A.
        group: the group of the reconstructor; f is called once for each element.
        data_range: peak value of the images; the paper's are normalised to [0, 1].

    Returns:
        Decibels (B,), at most `es_medical.metrics.image.MAX_DB`, which stands for exact equivariance.
    """
    x_hat = reconstruct(y, physics)
    errors = []
    for element in group.elements()[1:].to(y.device):
        g = element.expand(len(y), *element.shape)
        difference = reconstruct(y, VirtualPhysics(physics, group, g)) - group.inverse(x_hat, g)
        errors.append(difference.square().flatten(1).mean(1))
    return decibel(torch.stack(errors).sum(0) / group.order / data_range**2)
