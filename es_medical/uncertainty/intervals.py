"""Reconstructions with an interval for every pixel and for the whole image."""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from es_medical.inferers import Inferer
from es_medical.physics.base import noise_level
from es_medical.physics.batch import Batch
from es_medical.splits import Split
from es_medical.types import Image, PerItem
from es_medical.uncertainty.bootstrap import Estimator, Resampler
from es_medical.uncertainty.coverage import check_level
from es_medical.uncertainty.distances import Distances
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
    """Half-width at each pixel, which |x_hat - x| should not exceed, see `pixel_error`."""
    bound: PerItem
    """Bound on the root-mean-square error of each image."""


@dataclass(frozen=True)
class SelfCalibration:
    """Estimate the `Scale` of items from their held-out measurements.

    Attributes:
        resampler: draws images around the reconstructions from the remaining measurements.
        n_folds: number of parts that are held out in turn.
        seed: of the folds.
    """

    resampler: Resampler
    n_folds: int = 5
    seed: int = 0

    def __call__(self, f: Estimator, batch: Batch, split: Split) -> Scale:
        """Return the scale of each item."""
        return heldout_scale(f, self.resampler, batch, split, self.n_folds, self.seed)[1]


class IntervalInferer:
    """An inferer that also resamples each reconstruction; an `Evaluator` takes it in place of the plain inferer.

    The half-width of a pixel is the `level` quantile of the N resampled errors at that pixel (N numbers per pixel are kept
    until then), times the factor from the resampled to the calibrated bound on the image's root-mean-square error. Only that
    bound is calibrated: pixels are covered on average over an image at best, and neighbours not independently.

    Args:
        inferer: makes the reconstructions, also those of resampled measurements.
        resampler: draws images around a reconstruction.
        level: nominal level of the intervals, for example 0.9.
        factor: `Calibration.factor(level)`; None for uncalibrated intervals.
        by_itself: calibrates each item by its own held-out measurements, in place of a factor.

    Raises:
        ValueError: level out of range, an invalid factor, or two calibrations.
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
        """Settings of the inferer."""
        return self.inferer.settings

    @torch.no_grad()
    def __call__(self, reconstructor: nn.Module, batch: Batch) -> Intervals:
        """Reconstruct a batch, as `Inferer.__call__`, with intervals.

        Raises:
            ValueError: neither the inferer nor the batch has a noise level, or the items lack ids.
        """
        found, f = self.inferer(reconstructor, batch), estimator(self.inferer, reconstructor)
        batch = with_level(self.inferer, batch)
        errors = [pixel_error(replica.error) for replica in self.resampler(f, found.image, batch)]
        each = torch.stack(errors)  # (N, B, 1, H, W)
        resampled = each.square().flatten(2).mean(2).sqrt().T  # (B, N)
        distances = Distances(torch.zeros(len(batch), device=batch.y.device), resampled)
        bound, alone = self._bound(distances, f, batch), distances.quantile(self.level)
        widened = torch.where(alone > 0, bound / alone, 0.0)
        return Intervals(*found, widened[:, None, None, None] * each.quantile(self.level, dim=0), bound)

    def _bound(self, distances: Distances, f: Estimator, batch: Batch) -> PerItem:
        if self.by_itself is not None:
            return scaled(distances, self.by_itself(f, batch, self.inferer.split)).quantile(self.level)
        if self.factor is not None:
            return self.factor * distances.root_mean_square
        return distances.quantile(self.level)

    def image(self, reconstructor: nn.Module, batch: Batch) -> Image:
        """Return only the image, without intervals."""
        return self.inferer.image(reconstructor, batch)


def estimator(inferer: Inferer, reconstructor: nn.Module, n_samples: int | None = None) -> Estimator:
    """Return the images of an inferer as a function of a batch and the noise levels in it, see `with_level`.

    Args:
        inferer: makes the images.
        reconstructor: the network.
        n_samples: number of splits that an image is averaged over, None for the inferer's.
    """
    by_batch = copy(inferer)
    by_batch.sigma, by_batch.sigma_factor = None, 1.0  # the noise level is that of the batch
    by_batch.n_samples = n_samples or inferer.n_samples
    return partial(by_batch.image, reconstructor)


def with_level(inferer: Inferer, batch: Batch) -> Batch:
    """Return the batch with the noise level (B,) that an inferer assumes: its own, or that of the data, times its factor."""
    y, of_photons = batch.y, inferer.transmission is not None and batch.sigma is None
    level = inferer.sigma_factor * (0.0 if of_photons else noise_level(inferer.sigma, batch.sigma))
    return replace(batch, sigma=torch.as_tensor(level, dtype=y.dtype, device=y.device).expand(len(batch)))


def pixel_error(difference: Image) -> Float[Tensor, "b 1 h w"]:
    """Return the size of a difference at each pixel: |d|; the modulus of complex images, the RMS over channels of RGB.

    The difference of two magnitudes is at most the modulus of the difference, so a bound on the modulus holds for both.
    """
    scale = math.sqrt(difference.shape[1]) if difference.shape[1] != 2 else 1.0
    return torch.linalg.vector_norm(difference, dim=1, keepdim=True) / scale
