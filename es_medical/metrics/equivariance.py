"""EQUIV: how equivariant a reconstructor is, in decibels."""

from collections.abc import Callable

from es_medical.groups import Group
from es_medical.metrics.image import decibel
from es_medical.physics.base import Operator
from es_medical.physics.virtual import VirtualPhysics
from es_medical.types import Generator, Image, Measurement, PerItem


def equivariance(
    reconstruct: Callable[[Measurement, Operator], Image],
    y: Measurement,
    physics: Operator,
    group: Group,
    generator: Generator | None,
    data_range: float = 1.0,
) -> PerItem:
    """EQUIV = -10 log10 mean |f(y, A T_g) - T_g^-1 f(y, A)|^2 of each item (appendix "Metrics"), one random g each.

    Args:
        reconstruct: f, from (y, physics) to images (B, C, H, W).
        y: measurements (B, ...).
        physics: their operator A.
        group: the group of the reconstructor.
        generator: source of g, one for the batch or one for each item.
        data_range: peak value of the images; the paper's are normalised to [0, 1].

    Returns:
        Decibels (B,), at most `es_medical.metrics.image.MAX_DB`, which stands for exact equivariance.
    """
    g = group.sample(len(y), generator, y.device)
    moved = reconstruct(y, VirtualPhysics(physics, group, g))
    difference = moved - group.inverse(reconstruct(y, physics), g)
    return decibel(difference.square().flatten(1).mean(1) / data_range**2)
