"""The spectrum of a mean Gram matrix: how many directions of image space the measurements of A T_g distinguish."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from es_medical.diagnostics.base import RANK_THRESHOLD, Eigenvalues, ExactGram, MeanGram
from es_medical.diagnostics.lanczos import Measures, lanczos
from es_medical.diagnostics.mean_gram import mean_gram
from es_medical.physics import Operator
from es_medical.randomness import item_generator

DENSE = 2500
"""Number of pixels up to which all eigenvalues are computed."""
STEPS = 100
"""Steps of Lanczos' recurrence."""
BINS = 200
"""Bins for each factor of ten in a spectrum from Lanczos' recurrence."""
DECADES = 8
"""Factors of ten below the largest eigenvalue that are resolved."""
PROBED = 200_000
"""Image values of all random vectors together: four vectors for CT at 256 x 256. Larger images need fewer vectors."""
COLUMNS = 256
"""Columns of a matrix that are computed at once."""


class Spectrum(NamedTuple):
    """Eigenvalues of a mean Gram matrix, largest first, and how many of each there are."""

    eigenvalues: Tensor
    """(k,) float64, in the units of A^T A."""
    counts: Tensor
    """(k,) float64: how many eigenvalues have this value; their sum is n."""
    n: int
    """Number of image values."""
    method: str
    """"exact" (closed form), "dense" (all eigenvalues of the matrix) or "Lanczos" (estimated)."""
    error: float
    """Standard error of the rank, 0 unless estimated."""

    def rank(self, threshold: float = RANK_THRESHOLD) -> float:
        """Number of eigenvalues above `threshold` times the largest; 0 for a matrix of zeros."""
        above = self.eigenvalues > threshold * self.eigenvalues.max()
        return float(self.counts[above].sum())

    def effective_rank(self) -> float:
        """exp(entropy) of the eigenvalues divided by their sum (Roy and Vetterli 2007): n when all are equal."""
        p = self.eigenvalues / (self.counts * self.eigenvalues).sum().clamp(min=1e-300)
        return float((-(self.counts * torch.xlogy(p, p)).sum()).exp())


def spectrum(physics: Operator, action: str, support: Tensor | None = None, seed: int = 0) -> Spectrum:
    """Return the spectrum of H = mean_g (A T_g)^T A T_g; see `mean_gram` for the arguments.

    In closed form where there is one; all eigenvalues for up to `DENSE` pixels; else by stochastic Lanczos quadrature.

    Raises:
        ValueError: as `mean_gram`.
    """
    return spectrum_of(mean_gram(physics, action, support), seed)


def spectrum_of(gram: MeanGram, seed: int = 0) -> Spectrum:
    """Return the spectrum of a mean Gram matrix."""
    if isinstance(gram, ExactGram):
        return Spectrum(*gram.eigenvalues(), gram.n, "exact", 0.0)
    if gram.n <= DENSE:
        return Spectrum(*_dense(gram), gram.n, "dense", 0.0)
    return estimated(gram, seed)


def estimated(gram: MeanGram, seed: int = 0, n_probes: int | None = None, steps: int = STEPS) -> Spectrum:
    """Estimate a spectrum by stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017).

    For v uniform on the sphere, n E[share of v at eigenvalues <= t] is the number of eigenvalues <= t. The variance of the
    share r / n is that of a Beta distribution, 2 r (n - r) / (n^2 (n + 2)), for each probe. The error adds to it the change
    of the rank over the last quarter of the steps.
    """
    probes = _probes(gram, seed, max(2, math.ceil(PROBED / gram.n)) if n_probes is None else n_probes)
    found = lanczos(gram.product, probes, min(steps, gram.n))
    result = _binned(found.measures(), gram.n)
    rank = result.rank()
    shorter = _binned(found.measures(max(1, 3 * found.alpha.shape[1] // 4)), gram.n).rank()
    sampled = 2 * rank * max(gram.n - rank, 0) / ((gram.n + 2) * len(probes))
    return result._replace(error=math.hypot(math.sqrt(sampled), rank - shorter))


def _binned(measures: Measures, n: int) -> Spectrum:
    """Describe the mean of the measures by `BINS` values a decade below the largest node; each bin counts its eigenvalues."""
    largest = float(measures.nodes.max())
    if largest <= 0:
        return Spectrum(torch.zeros(1, dtype=torch.float64), torch.full((1,), float(n), dtype=torch.float64), n, "Lanczos", 0.0)
    edges = largest * 10.0 ** (-np.arange(DECADES * BINS + 1) / BINS)
    edges[0] = np.inf
    below = measures.below(edges).mean(0)
    counts = n * np.append(-np.diff(below), below[-1])
    values = np.append(largest * 10.0 ** (-(np.arange(DECADES * BINS) + 0.5) / BINS), 0.0)
    values[0] = largest
    kept = counts > 0
    kept[0] = True
    return Spectrum(torch.from_numpy(values[kept]), torch.from_numpy(counts[kept]), n, "Lanczos", 0.0)


def _probes(gram: MeanGram, seed: int, n_probes: int) -> Tensor:
    """Draw vectors that are uniform on the sphere once they are normalised, zero outside the support: (P, C H W) float32.

    They have their own random stream: a random matrix that was drawn with the same seed is independent of them.
    """
    drawn = torch.randn(n_probes, *gram.shape, generator=item_generator(seed, "probes", "diagnostics"))
    return (drawn if gram.support is None else drawn.to(gram.support.device) * gram.support.float()).flatten(1)


def dense_matrix(gram: MeanGram) -> Tensor:
    """Return H (n, n) float64, by its product with every unit image of the support."""
    channels, height, width = gram.shape
    keep = torch.ones(height, width) if gram.support is None else gram.support
    chosen = keep.expand(channels, -1, -1).flatten().nonzero()[:, 0]
    columns = []
    for some in chosen.split(COLUMNS):
        units = torch.zeros(len(some), channels * height * width, dtype=torch.float64, device=keep.device)
        columns.append(gram.product(units.scatter_(1, some[:, None], 1.0))[:, chosen])
    matrix = torch.cat(columns)
    return (matrix + matrix.mT) / 2


def _dense(gram: MeanGram) -> Eigenvalues:
    values = torch.linalg.eigvalsh(dense_matrix(gram)).flip(0).clamp(min=0)
    return Eigenvalues(values, torch.ones_like(values))
