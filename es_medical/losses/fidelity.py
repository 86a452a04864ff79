"""Losses that compare a reconstruction with the ground truth, or with the measurements."""

from dataclasses import replace
from typing import NoReturn

import torch

from es_medical.losses.base import LossValue, Reconstructor, Weighting, mean_square
from es_medical.physics.base import noise_level, recorruption
from es_medical.physics.batch import Batch
from es_medical.randomness import uniform
from es_medical.splits import Split
from es_medical.types import Generator


class Supervised:
    """L_SUP(x, y, A, f) = |f(y, A) - x|^2 / n, equation (2) of the paper, with n numbers in x."""

    needs_image = True

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item; `batch.sigma` is not used. Raises ValueError without ground truth."""
        if batch.image is None:
            raise ValueError("supervised training needs ground truth, and the data has no image: choose --method es")
        error = (reconstructor(batch.y, batch.physics, generator) - batch.image).square().flatten(1).mean(1)
        return LossValue(error, {"supervised": error})


class SupervisedOnSplits:
    """Supervised loss of a network that will be given split measurements, and all of y: f(y', A') against x.

    Each item of a batch has y' = y, A' = A with probability 1 / 2; otherwise y' = y_1 + alpha omega, A' = A_1, the input of
    equivariant splitting (see `es_medical.losses.splitting`).

    Args:
        split: draws M1.
        alpha: recorruption strength.

    Raises:
        ValueError: alpha is not positive.
    """

    needs_image = True

    def __init__(self, split: Split, alpha: float = 0.5) -> None:
        if not alpha > 0:
            raise ValueError(f"alpha must be > 0, got {alpha}")
        self.split, self.alpha, self.supervised = split, alpha, Supervised()

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item. Raises ValueError without ground truth or without a noise level."""
        y, physics = batch.y, batch.physics
        part = (uniform((len(y),), generator, y.device) < 0.5).to(y).view(-1, *[1] * (y.ndim - 1))  # 1: the item is split
        m1 = self.split(physics, len(y), generator)
        m = torch.where(part > 0, m1, physics.mask)
        physics1 = physics.masked(m)
        omega = recorruption(physics1, y, noise_level(None, batch.sigma), generator)
        seen = replace(batch, y=m * y + part * self.alpha * omega, physics=physics1)
        return self.supervised(reconstructor, seen, generator)


class MeasurementConsistency:
    """L_MC(y, A, f) = |W (A f(y, A) - y)|^2 / m over the m measured numbers; blind to the null space of A.

    Args:
        weighting: W, None for the identity (see `es_medical.losses.weighting`).
    """

    needs_image = False

    def __init__(self, weighting: Weighting | None = None) -> None:
        self.weighting = weighting

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item; the image and noise level are not used."""
        y, physics = batch.y, batch.physics
        error = mean_square(physics.A(reconstructor(y, physics, generator)) - y, physics.mask, self.weighting)
        return LossValue(error, {"consistency": error})


class Untrained:
    """Placeholder for a loss in the configuration of a learning-free method."""

    needs_image = False

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> NoReturn:
        """Raise TypeError."""
        raise TypeError("this method learns nothing: it has no loss")
