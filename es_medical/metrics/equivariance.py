"""EQUIV: how equivariant a reconstructor is, in decibels."""

from collections.abc import Callable

from es_medical.groups import Group
from es_medical.metrics.image import decibel
from es_medical.physics.base import Operator
from es_medical.physics.virtual import VirtualPhysics
from es_medical.randomness import uniform
from es_medical.types import Generator, Image, Measurement, PerItem


def equivariance(
    reconstruct: Callable[[Measurement, Operator], Image],
    y: Measurement,
    physics: Operator,
    group: Group,
    generator: Generator | None,
    data_range: float = 1.0,
) -> PerItem:
    """EQUIV = -10 log10 E_g mean |f(y, A T_g) - T_g^-1 f(y, A)|^2 of each item (appendix "Metrics").

    The identity has no error, so E_g is estimated by (|G| - 1) / |G| times the error of one random g other than it.

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
    others = group.elements()[1:].to(y.device)
    g = others[(len(others) * uniform((len(y),), generator, y.device)).long()]
    moved = reconstruct(y, VirtualPhysics(physics, group, g))
    difference = moved - group.inverse(reconstruct(y, physics), g)
    share = (group.order - 1) / group.order
    return decibel(share * difference.square().flatten(1).mean(1) / data_range**2)
