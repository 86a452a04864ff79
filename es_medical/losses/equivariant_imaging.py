"""Equivariant imaging (EI): what a network makes of transformed images has to be transformed images."""

from torch import Tensor

from es_medical.groups.base import Transform
from es_medical.losses.base import LossValue, Reconstructor, Weighting, measured_numbers
from es_medical.losses.sure import check_noise, is_zero, replayed, risk
from es_medical.physics.base import Operator, measure, noise_level
from es_medical.types import Generator, Image, Measurement, PerItem


class EquivariantImaging:
    r"""The EI loss (Chen et al. 2021), and robust EI for Gaussian noise (Chen et al. 2022); section "Equivariant imaging".

    With x1 = f(y, A), x2 = T_g x1 for a random g of each item, and y2 = A x2 + N(0, sigma^2),

        L = (|W (A x1 - y)|^2 + lambda |f(y2, A) - x2|^2) / m,

    the paper's sums divided by the m measured numbers of y. With noise the first term is SURE (see `Sure`). Gradients flow
    through all passes, also through x2. Two passes where the noise level is the number 0, three otherwise.

    T_g: `Shifts` for inpainting and compressed sensing, `FineRotations` for MRI and CT (the paper's choices).

    Args:
        transform: draws g and applies T_g; a `Group`, or a family of transformations that is none.
        weight: lambda (paper: 1).
        sigma: standard deviation of the noise on each measured number, in the units of y; None takes that of each item,
            which counts as noise, whatever its value: a loss for measurements without noise is given the number 0.
        tau: step of SURE; None is 0.1 sigma.
        sigma_factor: what sigma is multiplied by.
        weighting: W, None for the identity.

    Raises:
        ValueError: weight, sigma or sigma_factor is negative, or tau is not positive.
        TypeError: the transform can't be drawn or applied, as `Rotations`, whose angles act on the operator alone.
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
    ) -> None:
        check_noise(sigma, tau, sigma_factor)
        if not weight >= 0:
            raise ValueError(f"weight must be >= 0, got {weight}")
        if not isinstance(transform, Transform):
            raise TypeError(f"EI transforms images, and {type(transform).__name__} has no sample and apply: use FineRotations")
        self.transform, self.weight, self.sigma, self.tau = transform, weight, sigma, tau
        self.sigma_factor, self.weighting = sigma_factor, weighting

    def __call__(
        self,
        reconstructor: Reconstructor,
        y: Measurement,
        physics: Operator,
        generator: Generator | None = None,
        x: Image | None = None,
        sigma: PerItem | None = None,
    ) -> LossValue:
        """Return the loss of each item and its parts; x is not used, sigma only where the loss has no own one.

        Raises:
            ValueError: neither the loss nor the call has a sigma.
        """
        level = self.sigma_factor * noise_level(self.sigma, sigma)
        generator, again = replayed(generator, y.device)
        x1 = reconstructor(y, physics, generator)
        data = risk(reconstructor, y, physics, x1, level, self.tau, self.weighting, generator, again)
        x2 = self.transform.apply(x1, self.transform.sample(len(y), generator, y.device))
        y2 = physics.A(x2) if is_zero(level) else measure(physics, x2, level, generator)
        equivariance = (reconstructor(y2, physics, generator) - x2).square().flatten(1).sum(1)
        equivariance = equivariance / measured_numbers(y, physics.mask)
        return LossValue(data.total + self.weight * equivariance, data.parts | {"equivariance": equivariance})
