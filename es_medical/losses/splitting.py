"""Equivariant splitting: learn to predict measurements that the network did not see."""

import torch
from torch import Tensor

from es_medical.groups import Group, Rotations
from es_medical.losses.base import Loss, LossValue, Reconstructor, Weighting, check_noise, mean_square
from es_medical.losses.weighting import build_weighting
from es_medical.physics.base import noise_level, recorruption
from es_medical.physics.batch import Batch
from es_medical.physics.virtual import draw_virtual
from es_medical.splits import Split
from es_medical.types import Generator


class EquivariantSplitting:
    """The ES loss, and G-ES for Gaussian noise (section "Proposed loss" of the paper).

    With a random split A_1 = M1 A, A_2 = M2 A and omega ~ N(0, sigma^2) on the samples of M1,

        L = w |W (A_1 x_hat - (y_1 - omega / alpha))|^2 / m_1 + |W (A_2 x_hat - y_2)|^2 / m_2,
        x_hat = f(y_1 + alpha omega, A_1).

    sigma = 0 gives the noiseless L_ES, W = I the paper's. Each term is divided by its own number of measured entries; any
    weight w > 0 and any injective linear W leave the minimiser unchanged (see `es_medical.losses.weighting`). For an
    equivariant f this splitting loss *is* the ES loss (Theorem 3): no g is drawn here.

    Args:
        split: draws M1.
        sigma: standard deviation of the noise on each measured number, in the units of y; None takes that of each item.
        alpha: recorruption strength (paper: 0.5); deepinv's R2RLoss(alpha=a) has alpha = sqrt(a / (1 - a)).
        consistency_weight: w.
        group: draw an explicit g and use A T_g in place of A, for reconstructors that are not equivariant; `Rotations` for
            angles that have no action on pixels, with a reconstructor that is equivariant to D4 or not at all.
        sigma_factor: factor by which sigma is multiplied, e.g. 2 to test a noise level that is assumed twice too high.
        weighting: W, or its name for `es_medical.losses.build_weighting` ("ramp", "frequency"); None for the identity.
    """

    needs_image = False

    def __init__(
        self,
        split: Split,
        sigma: float | Tensor | None = 0.0,
        alpha: float = 0.5,
        consistency_weight: float = 1.0,
        group: Group | Rotations | None = None,
        sigma_factor: float = 1.0,
        weighting: Weighting | str | None = None,
    ) -> None:
        if alpha <= 0 or consistency_weight < 0:
            raise ValueError(f"alpha must be > 0 and consistency_weight >= 0, got {alpha} and {consistency_weight}")
        check_noise(sigma, sigma_factor)
        self.split, self.sigma, self.alpha, self.sigma_factor = split, sigma, alpha, sigma_factor
        self.consistency_weight, self.group = consistency_weight, group
        self.weighting = build_weighting(weighting) if isinstance(weighting, str) else weighting

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item and its two parts.

        Raises:
            ValueError: neither the loss nor the batch has a noise level.
        """
        y, physics = batch.y, batch.physics
        if self.group is not None:
            physics = draw_virtual(physics, self.group, len(y), generator, y.device)  # A T_g
        m1 = self.split(physics, len(y), generator)
        m2 = physics.mask - m1
        physics1 = physics.masked(m1)  # A_1
        omega = recorruption(physics1, y, self.sigma_factor * noise_level(self.sigma, batch.sigma), generator)
        x_hat = reconstructor(m1 * y + self.alpha * omega, physics1, generator)
        prediction = physics.A(x_hat)  # A_1 x_hat where M1, A_2 x_hat where M2
        consistency = mean_square(prediction - (y - omega / self.alpha), m1, self.weighting)
        unseen = mean_square(prediction - y, m2, self.weighting)
        return LossValue(self.consistency_weight * consistency + unseen, {"consistency": consistency, "prediction": unseen})


class SeveralSplits:
    """Mean of a splitting loss over n draws for each item: of M1, of omega, of g in the loss and in the network.

    Its gradient has the expectation of that of one draw; the part of its variance that is due to the draws is divided by n.
    It costs n network passes and their memory.

    Args:
        loss: a loss that draws anew in every call.
        n: number of draws.

    Raises:
        ValueError: n is below 1.
    """

    def __init__(self, loss: Loss, n: int) -> None:
        if n < 1:
            raise ValueError(f"n_splits must be at least 1, got {n}")
        self.loss, self.n, self.needs_image = loss, n, loss.needs_image

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the mean of the loss of each item, and of its parts."""
        values = [self.loss(reconstructor, batch, generator) for _ in range(self.n)]
        parts = {name: _mean([value.parts[name] for value in values]) for name in values[0].parts}
        return LossValue(_mean([value.total for value in values]), parts)


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(0)
