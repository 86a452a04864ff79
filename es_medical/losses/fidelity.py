"""Losses that compare a reconstruction with the ground truth, or with the measurements."""

from typing import NoReturn

from es_medical.losses.base import LossValue, Reconstructor, Weighting, mean_square
from es_medical.physics.batch import Batch
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
