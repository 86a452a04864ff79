"""Equivariant imaging (EI): reconstructing a transformed image has to give the transformed reconstruction."""

from collections.abc import Sequence

import torch
from torch import Tensor

from es_medical.groups.base import Transform
from es_medical.losses.base import LossValue, Reconstructor, Weighting, check_noise, measured_numbers
from es_medical.losses.sure import check_step, is_zero, replayed, risk
from es_medical.physics.base import measure, noise_level
from es_medical.physics.batch import Batch
from es_medical.randomness import uniform_on_cpu
from es_medical.types import Generator, Image, PerItem


class EquivariantImaging:
    r"""The EI loss (Chen et al. 2021), and robust EI for Gaussian noise (Chen et al. 2022); section "Equivariant imaging".

    With x1 = f(y, A), x2 = T_g x1 for a random g of each item, and y2 = A x2 + N(0, sigma^2),

        L = (|W (A x1 - y)|^2 + lambda |f(y2, A) - x2|^2) / m,

    the paper's sums divided by the m measured numbers of y. With noise the first term is SURE (see `Sure`). Gradients flow
    through all passes, also through x2. Two passes where the noise level is the number 0, three otherwise.

    T_g: `Shifts` for inpainting and compressed sensing, `FineRotations` for MRI and CT (the paper's choices).

    With `alternating` and noise, a step takes two passes: it draws which of the divergence and the equivariance term it
    evaluates, each with probability 1/2 and twice its weight. The loss and its gradient keep their expectations.

    Args:
        transform: draws g and applies T_g; a `Group`, or transformations that form no group.
        weight: lambda (paper: 1).
        sigma: standard deviation of the noise on each measured number, in the units of y; None takes that of each item,
            which counts as noise whatever its value; for noiseless measurements give the number 0.
        tau: step of SURE; None is 0.1 sigma.
        sigma_factor: factor by which sigma is multiplied.
        weighting: W, None for the identity.
        alternating: evaluate only one of the divergence and the equivariance term in each step.

    Raises:
        ValueError: weight, sigma or sigma_factor is negative, or tau is not positive.
        TypeError: the transform can't be drawn or applied, such as `Rotations`, whose angles act on the operator alone.
    """

    needs_image = False

    def __init__(
        self,
        transform: Transform,
        weight: float = 1.0,
        sigma: float | Tensor | None = None,
        tau: float | None = None,
        sigma_factor: float = 1.0,
        weighting: Weighting | None = None,
        alternating: bool = False,
    ) -> None:
        check_noise(sigma, sigma_factor)
        check_step(tau)
        if not weight >= 0:
            raise ValueError(f"weight must be >= 0, got {weight}")
        if not isinstance(transform, Transform):
            raise TypeError(f"EI transforms images, and {type(transform).__name__} has no sample and apply: use FineRotations")
        self.transform, self.weight, self.sigma, self.tau = transform, weight, sigma, tau
        self.sigma_factor, self.weighting, self.alternating = sigma_factor, weighting, alternating

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item and its parts.

        Raises:
            ValueError: neither the loss nor the batch has a noise level.
        """
        level = self.sigma_factor * noise_level(self.sigma, batch.sigma)
        generator, again = replayed(generator, batch.y.device)
        x1 = reconstructor(batch.y, batch.physics, generator)
        if self.alternating and not is_zero(level):
            return self._one_term(reconstructor, batch, x1, level, generator, again)
        data = risk(reconstructor, batch, x1, level, self.tau, self.weighting, generator, again)
        equivariance = self._equivariance(reconstructor, batch, x1, level, generator)
        return LossValue(data.total + self.weight * equivariance, data.parts | {"equivariance": equivariance})

    def _equivariance(
        self, reconstructor: Reconstructor, batch: Batch, x1: Image, level: float | Tensor, generator: Generator
    ) -> PerItem:
        """|f(A T_g x1 + noise, A) - T_g x1|^2 / m."""
        y, physics = batch.y, batch.physics
        x2 = self.transform.apply(x1, self.transform.sample(len(y), generator, y.device))
        y2 = physics.A(x2) if is_zero(level) else measure(physics, x2, level, generator)
        equivariance = (reconstructor(y2, physics, generator) - x2).square().flatten(1).sum(1)
        return equivariance / measured_numbers(y, physics.mask)

    def _one_term(
        self,
        reconstructor: Reconstructor,
        batch: Batch,
        x1: Image,
        level: float | Tensor,
        generator: Generator,
        again: Generator,
    ) -> LossValue:
        """Return the consistency plus twice one of the two terms; the other is 0 in this step."""
        level_now = level if _heads(generator) else 0.0
        data = risk(reconstructor, batch, x1, level_now, self.tau, self.weighting, generator, again)
        consistency, none = data.parts["consistency"], torch.zeros_like(data.total)
        if "divergence" in data.parts:
            correction = data.total - consistency  # with sigma^2, so that this mean is that of SURE too
            parts = {"divergence": 2 * data.parts["divergence"], "equivariance": none}
            return LossValue(consistency + 2 * correction, data.parts | parts)
        equivariance = 2 * self._equivariance(reconstructor, batch, x1, level, generator)
        parts = {"divergence": none, "equivariance": equivariance}
        return LossValue(consistency + self.weight * equivariance, data.parts | parts)


def _heads(generator: Generator) -> bool:
    """Draw true or false, with probability 1/2, on the CPU; with the first generator if each item has its own."""
    return float(uniform_on_cpu(1, [generator[0]] if isinstance(generator, Sequence) else generator)) < 0.5
