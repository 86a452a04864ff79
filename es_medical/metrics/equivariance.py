"""EQUIV: how equivariant a reconstructor is, in decibels."""

from collections.abc import Callable

import torch
from torch import Tensor

from es_medical.groups import Group
from es_medical.metrics.image import MAX_DB
from es_medical.physics.base import Operator
from es_medical.physics.virtual import VirtualPhysics
from es_medical.types import Elements, Image, Measurement, PerItem

SMALL_GROUP = 16
"""Number of elements up to which all of them are used."""

SEED = 0
"""Seed of the elements drawn from a larger group."""


def equivariance(
    reconstruct: Callable[[Measurement, Operator], Image],
    y: Measurement,
    physics: Operator,
    group: Group,
    data_range: float = 1.0,
    n_elements: int = 8,
) -> PerItem:
    """EQUIV = -10 log10 E_g mean |f(y, A T_g) - T_g^-1 f(y, A)|^2 of each item (appendix "Metrics").

    E_g is the exact mean over a group of at most 16 elements, such as D4. From a larger one, such as the shifts of an image,
    `n_elements` are drawn with a fixed seed, without the identity and without repetition: the same for every item, batch
    and run. The identity, whose error is zero, takes no reconstruction but counts in the mean.

    EQUIV is infinite for an error of zero or of rounding only: a mean square of at most 1e-10 (100 dB), relative to
    data_range^2 and to the largest value of f(y, A), squared. Other values are finite.

    Args:
        reconstruct: f, from (y, physics) to images (B, C, H, W).
        y: measurements (B, ...).
        physics: their operator A.
        group: the group of the reconstructor; f is called once for y itself and once for each element.
        data_range: peak value of the images; the paper's are normalised to [0, 1].
        n_elements: number of elements drawn from a group of more than 16.

    Returns:
        Decibels (B,); infinite where f is equivariant to rounding.

    Raises:
        ValueError: n_elements < 1.
    """
    x_hat = reconstruct(y, physics)
    errors = []
    for element in _elements(group, n_elements).to(y.device):
        g = element.expand(len(y), *element.shape)
        difference = reconstruct(y, VirtualPhysics(physics, group, g)) - group.inverse(x_hat, g)
        errors.append(difference.square().flatten(1).mean(1))
    if not errors:  # the group is the identity alone
        return torch.full_like(x_hat.flatten(1)[:, 0], torch.inf)
    error = torch.stack(errors).mean(0) * (group.order - 1) / group.order
    return _decibel(error, x_hat, data_range)


def _elements(group: Group, n: int) -> Elements:
    """Return the elements other than the identity, or n of them where there are many."""
    if n < 1:
        raise ValueError(f"n_elements must be at least 1, got {n}")
    others = group.elements()[1:]
    if group.order <= SMALL_GROUP:
        return others
    return others[torch.randperm(len(others), generator=torch.Generator().manual_seed(SEED))[:n]]


def _decibel(error: Tensor, x_hat: Image, data_range: float) -> PerItem:
    largest = x_hat.detach().flatten(1).abs().amax(1).square()
    exact = error <= 10 ** (-MAX_DB / 10) * largest.clamp(max=data_range**2)
    return torch.where(exact, torch.inf, -10 * torch.log10(error / data_range**2))
