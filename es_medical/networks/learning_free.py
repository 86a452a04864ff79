"""Learning-free reconstructions: pseudo-inverse, Tikhonov and total variation."""

import math

import torch
from torch import nn

from es_medical.networks.interpolation import Biharmonic
from es_medical.networks.penalised import tikhonov, total_variation
from es_medical.physics.base import Operator
from es_medical.types import Generator, Image, Measurement


class PseudoInverse(nn.Module):
    """f(y, A) = A^dagger y, the image of least norm among those that fit y best."""

    start = "pseudo_inverse"
    """Name of the method in a file of weights."""

    @torch.no_grad()
    def forward(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Reconstruct y measured by `physics`; `generator` is not used (nothing here is random)."""
        return physics.A_dagger(y)


class Penalised(nn.Module):
    """A reconstruction with one number to choose: the weight w of a penalty, kept as log w so that it is positive.

    Args:
        weight: w, in the units of the objective: it is relative to |A|^2 for `Tikhonov`, and to |A|^2 times the image's
            scale for `TotalVariation`.

    Raises:
        ValueError: the weight is not positive.
    """

    start = ""
    log_weight: nn.Parameter

    def __init__(self, weight: float = 0.01) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(()))
        self.set_weight(weight)

    @property
    def weight(self) -> float:
        """The weight w."""
        return math.exp(float(self.log_weight.detach()))

    @torch.no_grad()
    def set_weight(self, weight: float) -> None:
        """Set w. Raises ValueError when it is not positive and finite."""
        if not 0 < weight < math.inf:
            raise ValueError(f"a weight is positive and finite, got {weight}")
        self.log_weight.fill_(math.log(weight))


class Tikhonov(Penalised):
    """f(y, A) = argmin_x 1/2 |A x - y|^2 + w/2 |D x|^2, D the differences of neighbouring pixels (see `tikhonov`).

    With |x|^2 in place of |D x|^2 an operator for which A^T A is a projection (single-coil MRI, inpainting) would only
    scale the zero-filled image down.
    """

    start = "tikhonov"

    @torch.no_grad()
    def forward(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Reconstruct y measured by `physics`; `generator` is not used (nothing here is random)."""
        return tikhonov(y, physics, self.weight)


class TotalVariation(Penalised):
    """f(y, A) = argmin_x 1/2 |A x - y|^2 + w TV(x), TV the sum over pixels of |(D x)_i| (see `total_variation`)."""

    start = "tv"

    @torch.no_grad()
    def forward(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Reconstruct y measured by `physics`; `generator` is not used (nothing here is random)."""
        return total_variation(y, physics, self.weight).image


LEARNING_FREE: dict[str, type[nn.Module]] = {
    "pseudo_inverse": PseudoInverse,
    "tikhonov": Tikhonov,
    "tv": TotalVariation,
    "biharmonic": Biharmonic,
}
"""The learning-free methods of `es_medical.methods`."""


def learning_free(name: str) -> nn.Module:
    """Make the reconstructor of a learning-free method from its name.

    Raises:
        ValueError: an unknown name.
        ImportError: biharmonic without scikit-image.
    """
    if name not in LEARNING_FREE:
        raise ValueError(f"unknown learning-free method {name!r}: choose one of {', '.join(LEARNING_FREE)}")
    return LEARNING_FREE[name]()
