"""Calibrate a scan by its own held-out measurements: how many times larger errors are than resampling predicts."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.physics.batch import Batch
from es_medical.splits import Split
from es_medical.uncertainty.bootstrap import Estimator, Resampler
from es_medical.uncertainty.distances import Distances, folded_energies, root_mean

PARTS = 199
"""Points that represent a log-normal distribution."""

SMALLEST, WIDEST = 1e-3, 1.0
"""Scale that replaces 0 in a logarithm, and the largest uncertainty of log scale: a factor of e either way."""

TRANSFER = 0.065
"""Standard deviation of log(error) that remains even if held-out measurements give the exact scale, as errors elsewhere differ.

Measured with ground truth on training slices of the demos, whose images were not used in training: the root mean square of
log(error / prediction) was 0.065 on 20 photographs where the jackknife had 0.019, and 0.136 on 16 MR slices where it had 0.117.
"""


class Scale(NamedTuple):
    """How many times larger errors are than resampling predicts, by each item's own held-out measurements."""

    factor: Float[Tensor, " n"]
    """Error over predicted error, root mean squares over all held-out entries."""
    uncertainty: Float[Tensor, " n"]
    """Standard deviation of its logarithm, by the jackknife over the folds."""


def scaled(distances: Distances, scale: Scale) -> Distances:
    """Replace the resampled distances by the distribution of a self-calibrated error.

    log error is normal, about the logarithm of the scale times the root mean square of the resampled distances, with the
    variance uncertainty^2 + TRANSFER^2. `PARTS` values represent it, the medians of as many parts of equal probability. The
    spread of the N distances shows the effect of T_g, not how far x_hat is from x: it is not used.
    """
    middles = (torch.arange(PARTS, dtype=torch.float64) + 0.5) / PARTS
    normal = torch.special.ndtri(middles).to(distances.resampled)
    deviation = torch.hypot(scale.uncertainty, torch.full_like(scale.uncertainty, TRANSFER))
    return distances.times(scale.factor[:, None] * torch.exp(deviation[:, None] * normal))


@torch.no_grad()
def heldout_scale(
    f: Estimator, resampler: Resampler, batch: Batch, split: Split, n_folds: int = 5, seed: int = 0
) -> tuple[Distances, Scale]:
    """Return `heldout_distances`, and by what factor errors are larger than predicted, item by item.

    The scale of an item is s = sqrt(sum_k e_k / sum_k r_k) over the folds k, with the energies e_k of errors and the mean
    resampled energies r_k; the variance of log s is (K - 1) / K sum_k (log s_-k - mean)^2, where s_-k leaves out fold k. That
    is how far the scale may differ on other measurements of the same item: a scan is calibrated by itself, and need not be
    like others.
    """
    error, resampled, entries = folded_energies(f, resampler, batch, split, n_folds, seed)
    found = Distances(root_mean(error.sum(0), entries.sum(0)), root_mean(resampled.sum(0), entries.sum(0)[:, None]))
    predicted = resampled.mean(2)  # (K, B)
    factor = _ratio(error.sum(0), predicted.sum(0))
    without = _ratio(error.sum(0) - error, predicted.sum(0) - predicted).clamp(min=SMALLEST).log()  # (K, B)
    n = len(error)
    variance = (n - 1) / n * (without - without.mean(0)).square().sum(0)
    return found, Scale(factor, variance.sqrt().clamp(max=WIDEST))


def _ratio(found: Tensor, predicted: Tensor) -> Tensor:
    """Return the ratio of root mean squares; 0 where the error is not positive, whatever was predicted."""
    return torch.where(found > 0, found / predicted, 0.0).clamp(min=0).sqrt()
