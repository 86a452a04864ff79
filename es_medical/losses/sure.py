"""Stein's unbiased risk estimate (SURE): the error of A f(y), estimated from noisy measurements alone."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from es_medical.losses.base import LossValue, Reconstructor, Weighting, check_noise, mean_product, mean_square
from es_medical.physics.base import noise_level, per_item, recorruption
from es_medical.physics.batch import Batch
from es_medical.types import Generator, Image, Measurement, PartGenerator, PerItem

RELATIVE_STEP = 0.1
"""Default of tau / sigma: the paper's tau is 0.0005 at sigma = 0.005 and 0.01 at sigma = 0.1."""


class Sure:
    r"""SURE with a Monte-Carlo divergence (Ramani et al. 2008; Metzler et al. 2018), for Gaussian noise of known level.

    With b ~ N(0, I) on the m measured numbers and h(y) = A f(y, A),

        L = |h(y) - y|^2 / m - sigma^2 + 2 sigma^2 / (m tau) b^T (h(y + tau b) - h(y)),    E L = E |h(y) - A x|^2 / m

    up to the finite step tau. It is blind to the null space of A. Two network passes, which share what f draws (the g of
    a Reynolds average): each f_g has a divergence of its own, and a difference of two f_g would be of order 1 / tau.

    With a weighting W, |W M r|^2 in place of |M r|^2 (M keeps measured entries): E epsilon^T V h = sigma^2 tr(V dh/dy) with
    V = M W^T W M (Stein's lemma), so the inner product with b is weighted by V as well, and sigma^2 by tr V / m:

        L = |W M (h(y) - y)|^2 / m - sigma^2 tr V / m + 2 sigma^2 / (m tau) (W M b)^T W M (h(y + tau b) - h(y)).

    Where the noise level is the number 0 this is measurement consistency, in one pass.

    The difference quotient loses digits, so compute f in float32: at sigma = 0.005 a denoiser in bfloat16, whose numbers
    near 1 are 0.004 apart, gets the divergence right but its gradient wrong by 85 % (at sigma = 0.1 by 20 %; float32: 0.01 %).

    Args:
        sigma: standard deviation of the noise on each measured number, in the units of y; None takes that of each item.
        tau: step in the units of y; None is 0.1 sigma.
        sigma_factor: factor by which sigma is multiplied.
        weighting: W, None for the identity (see `es_medical.losses.weighting`).

    Raises:
        ValueError: sigma or sigma_factor is negative, or tau is not positive.
    """

    needs_image = False

    def __init__(
        self,
        sigma: float | Tensor | None = None,
        tau: float | None = None,
        sigma_factor: float = 1.0,
        weighting: Weighting | None = None,
    ) -> None:
        check_noise(sigma, sigma_factor)
        check_step(tau)
        self.sigma, self.tau, self.sigma_factor, self.weighting = sigma, tau, sigma_factor, weighting

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item and its parts.

        Raises:
            ValueError: neither the loss nor the batch has a noise level.
        """
        level = self.sigma_factor * noise_level(self.sigma, batch.sigma)
        generator, again = replayed(generator, batch.y.device)
        x_hat = reconstructor(batch.y, batch.physics, generator)
        return risk(reconstructor, batch, x_hat, level, self.tau, self.weighting, generator, again)


def risk(
    reconstructor: Reconstructor,
    batch: Batch,
    x_hat: Image,
    sigma: float | Tensor,
    tau: float | None,
    weighting: Weighting | None,
    generator: Generator,
    again: Generator,
) -> LossValue:
    """Compute SURE from the first pass x_hat = f(y, A): one more pass, none where sigma is the number 0.

    Args:
        reconstructor: f.
        batch: measurements and their operator.
        x_hat: f(y, A), drawn with a generator in the state that `again` has.
        sigma: a number, or one for each item (B,), which may be 0 (that item is then measurement consistency).
        tau: step; None is 0.1 sigma.
        weighting: W.
        generator: source of b.
        again: source of what f draws in the second pass.

    Returns:
        Each item's estimate; "consistency", and "divergence" with its factor 2 sigma^2.
    """
    y, physics = batch.y, batch.physics
    prediction = physics.A(x_hat)
    consistency = mean_square(prediction - y, physics.mask, weighting)
    if is_zero(sigma):
        return LossValue(consistency, {"consistency": consistency})
    b = recorruption(physics, y, 1.0, generator)
    trace = 1.0 if weighting is None else mean_square(b, physics.mask, weighting)  # E = tr V / m
    variance = sigma.to(y).square() if isinstance(sigma, Tensor) else sigma**2
    slope = divergence(reconstructor, batch, prediction, b, finite_step(sigma, tau), weighting, again)
    penalty = 2 * variance * slope
    return LossValue(consistency + penalty - variance * trace, {"consistency": consistency, "divergence": penalty})


def divergence(
    reconstructor: Reconstructor,
    batch: Batch,
    prediction: Measurement,
    b: Measurement,
    tau: float | Tensor,
    weighting: Weighting | None,
    again: Generator,
) -> PerItem:
    """(W M b)^T W M (h(y + tau b) - h(y)) / (m tau), whose mean is tr(M W^T W M dh/dy) / m; prediction is h(y) = A f(y, A)."""
    physics, step = batch.physics, per_item(tau, batch.y)
    probed = physics.A(reconstructor(batch.y + step * b, physics, again))  # h(y + tau b)
    return mean_product(b, (probed - prediction) / step, physics.mask, weighting)


def finite_step(sigma: float | Tensor, tau: float | None) -> float | Tensor:
    """Return tau, 0.1 sigma unless given; 1 for items of sigma = 0, whose divergence has weight 0 but must be finite."""
    if tau is not None:
        return tau
    if not isinstance(sigma, Tensor):
        return RELATIVE_STEP * sigma
    return torch.where(sigma > 0, RELATIVE_STEP * sigma, 1.0)


def replayed(generator: Generator | None, device: torch.device | str) -> tuple[Generator, Generator]:
    """Return a generator and one that will draw the same numbers: f(y) and f(y + tau b) are then the same function.

    Neither the states, which the CPU keeps, nor the seed that is drawn in place of None make a GPU wait.
    """
    if generator is None:
        generator = torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
    if isinstance(generator, Sequence):
        return generator, [_copy(own) for own in generator]
    if isinstance(generator, PartGenerator):
        return generator, replace(generator, generator=_copy(generator.generator))
    return generator, _copy(generator)


def _copy(generator: torch.Generator) -> torch.Generator:
    return torch.Generator(generator.device).set_state(generator.get_state())


def is_zero(sigma: float | Tensor) -> bool:
    """Return whether sigma is the number 0; a tensor is not read, as a GPU would have to wait."""
    return not isinstance(sigma, Tensor) and sigma == 0


def check_step(tau: float | None, default: str = "sigma") -> None:
    """Raise ValueError for a step that is not positive; `default` says what None is a tenth of."""
    if tau is not None and not tau > 0:
        raise ValueError(f"tau must be > 0, or None for {RELATIVE_STEP:g} {default}; got {tau}")
