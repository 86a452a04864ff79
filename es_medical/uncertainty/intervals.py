"""Reconstructions with an interval for every pixel and for the whole image."""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from es_medical.inferers import Inferer
from es_medical.physics.base import Operator, noise_level
from es_medical.splits import Split
from es_medical.types import Image, Measurement, PerItem
from es_medical.uncertainty.bootstrap import Estimator, Resampler
from es_medical.uncertainty.coverage import check_level
from es_medical.uncertainty.distances import Batch, Distances
from es_medical.uncertainty.scale import Scale, heldout_scale, scaled


class Intervals(NamedTuple):
    """A `Reconstruction` with intervals."""

    image: Image
    """As of the inferer alone."""
    spread: Image
    """As of the inferer alone."""
    heldout: PerItem
    """As of the inferer alone."""
    halfwidth: Float[Tensor, "b 1 h w"]
    """Of each pixel: |x_hat - x| is to be below it, see `pixel_error`."""
    bound: PerItem
    """Of the root-mean-square error of each image."""


@dataclass(frozen=True)
class SelfCalibration:
    """Finds the `Scale` of items from their held-out measurements.

    Attributes:
        resampler: draws images around the reconstructions from what is left.
        n_folds: parts that are held out one after another.
        seed: of the folds.
    """

    resampler: Resampler
    n_folds: int = 5
    seed: int = 0

    def __call__(self, f: Estimator, batch: Batch, split: Split) -> Scale:
        """Return the scale of each item."""
        return heldout_scale(f, self.resampler, batch, split, self.n_folds, self.seed)[1]


class IntervalInferer:
    """An inferer that also resamples each reconstruction; it stands in for the inferer in an `Evaluator`.

    The half-width of a pixel is the `level` quantile of the N resampled errors at that pixel (N numbers per pixel are kept
    until then), times what widens the interval of the image's root-mean-square error to the calibrated one. That one is what
    calibration is about: single pixels are covered on average over an image at best, neighbours not independently.

    Args:
        inferer: makes the reconstructions, also those of resampled measurements.
        resampler: draws images around a reconstruction.
        level: nominal level of the intervals, for example 0.9.
        factor: of `Calibration.factor(level)`; None for intervals as they are resampled.
        by_itself: calibrates each item by its own held-out measurements, in place of a factor.

    Raises:
        ValueError: level out of range, a factor that is no number, or two calibrations.
    """

    def __init__(
        self,
        inferer: Inferer,
        resampler: Resampler,
        level: float,
        factor: float | None = None,
        by_itself: SelfCalibration | None = None,
    ) -> None:
        check_level(level)
        if factor is not None and not (factor >= 0 and math.isfinite(factor)):
            raise ValueError(f"the factor of intervals is a positive number, got {factor}")
        if factor is not None and by_itself is not None:
            raise ValueError("intervals are calibrated by a factor or by themselves, got both")
        self.inferer, self.resampler, self.level, self.factor = inferer, resampler, level, factor
        self.by_itself = by_itself

    @property
    def settings(self) -> Mapping[str, str | float | bool | None]:
        """Those of the inferer."""
        return self.inferer.settings

    @torch.no_grad()
    def __call__(
        self, reconstructor: nn.Module, y: Measurement, physics: Operator, ids: list[str], sigma: PerItem | None = None
    ) -> Intervals:
        """Reconstruct y (B, ...), as `Inferer.__call__`, with intervals.

        Raises:
            ValueError: neither the inferer nor the call has a sigma.
        """
        found = self.inferer(reconstructor, y, physics, ids, sigma)
        f, batch = estimator(self.inferer, reconstructor), Batch(y, physics, ids, item_sigma(self.inferer, y, sigma))
        errors = [pixel_error(one.error) for one in self.resampler(f, found.image, *batch)]
        each = torch.stack(errors)  # (N, B, 1, H, W)
        resampled = each.square().flatten(2).mean(2).sqrt().T  # (B, N)
        distances = Distances(torch.zeros(len(y), device=y.device), resampled)
        bound, alone = self._bound(distances, f, batch), distances.quantile(self.level)
        widened = torch.where(alone > 0, bound / alone, 0.0)
        return Intervals(*found, widened[:, None, None, None] * each.quantile(self.level, dim=0), bound)

    def _bound(self, distances: Distances, f: Estimator, batch: Batch) -> PerItem:
        if self.by_itself is not None:
            return scaled(distances, self.by_itself(f, batch, self.inferer.split)).quantile(self.level)
        if self.factor is not None:
            return self.factor * distances.root_mean_square
        return distances.quantile(self.level)

    def image(
        self, reconstructor: nn.Module, y: Measurement, physics: Operator, ids: list[str], sigma: PerItem | None = None
    ) -> Image:
        """Return the image alone, without intervals."""
        return self.inferer.image(reconstructor, y, physics, ids, sigma)


def estimator(inferer: Inferer, reconstructor: nn.Module, n_samples: int | None = None) -> Estimator:
    """Return the images of an inferer as a function of measurements and of the level of their noise, see `item_sigma`.

    Args:
        inferer: how images are made.
        reconstructor: the network.
        n_samples: splits that an image is averaged over, None for as many as the inferer's.
    """
    told = copy(inferer)
    told.sigma, told.sigma_factor = None, 1.0  # the level is what it is told, and nothing else
    told.n_samples = n_samples or inferer.n_samples

    def f(y: Measurement, physics: Operator, ids: list[str], sigma: PerItem) -> Image:
        return told.image(reconstructor, y, physics, ids, sigma)

    return f


def item_sigma(inferer: Inferer, y: Measurement, sigma: PerItem | None) -> PerItem:
    """Noise level (B,) of each item that an inferer assumes: its own, or that of the data, times its factor."""
    level = 0.0 if inferer.transmission is not None and sigma is None else noise_level(inferer.sigma, sigma)
    return torch.as_tensor(inferer.sigma_factor * level, dtype=y.dtype, device=y.device).expand(len(y))


def pixel_error(difference: Image) -> Float[Tensor, "b 1 h w"]:
    """Size of a difference at each pixel: |d|, of complex images the modulus, of RGB the root mean square over the channels.

    Magnitudes of complex images differ by no more than the modulus: what holds for one holds for the other.
    """
    scale = math.sqrt(difference.shape[1]) if difference.shape[1] != 2 else 1.0
    return torch.linalg.vector_norm(difference, dim=1, keepdim=True) / scale
