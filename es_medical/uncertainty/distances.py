"""Distance of a reconstruction from the truth: predicted by resampling, and estimated from measurements or ground truth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.physics.base import Operator, noise_level, per_item
from es_medical.physics.batch import Batch
from es_medical.splits import Split
from es_medical.types import Measurement, PerItem
from es_medical.uncertainty.bootstrap import Estimator, Resampler
from es_medical.uncertainty.folds import folds, representation


@dataclass(frozen=True)
class Distances:
    """Root-mean-square distances of n items: errors, and what resampling predicts for them.

    Attributes:
        error: of x_hat from the truth, (n,): over pixels where there is ground truth, over held-out measurements without it.
        resampled: of x_1, ..., x_N from x_hat over the same entries, (n, N).

    Raises:
        ValueError: the numbers of items differ.
    """

    error: Float[Tensor, " n"]
    resampled: Float[Tensor, "n samples"]

    def __post_init__(self) -> None:
        if self.error.ndim != 1 or self.resampled.shape[:1] != self.error.shape or self.resampled.ndim != 2:
            raise ValueError(f"errors {tuple(self.error.shape)} and resampled {tuple(self.resampled.shape)}: expected n, n x N")

    def quantile(self, level: float) -> Float[Tensor, " n"]:
        """Return the distance of each item below which a share `level` of its N images lies."""
        return self.resampled.quantile(level, dim=1)

    @property
    def root_mean_square(self) -> Float[Tensor, " n"]:
        """Root mean square of the resampled distances of each item."""
        return self.resampled.square().mean(1).sqrt()

    def times(self, factors: Float[Tensor, "n_or_1 m"]) -> "Distances":
        """Replace the resampled distances by multiples of their root mean square."""
        return Distances(self.error, factors * self.root_mean_square[:, None])


def joined(parts: Sequence[Distances]) -> Distances:
    """Join the items of several batches."""
    return Distances(torch.cat([one.error for one in parts]), torch.cat([one.resampled for one in parts]))


@torch.no_grad()
def image_distances(f: Estimator, resampler: Resampler, batch: Batch) -> Distances:
    """Return distances over the pixels, from the ground truth of the batch. Raises ValueError where there is none."""
    x, x_hat = batch.image, f(batch)
    if x is None:
        raise ValueError("distances over pixels need ground truth, and the batch has no image")
    resampled = torch.stack([_energy(one.error) for one in resampler(f, x_hat, batch)], 1)
    return Distances(root_mean(_energy(x_hat - x), x[0].numel()), root_mean(resampled, x[0].numel()))


@torch.no_grad()
def heldout_distances(
    f: Estimator, resampler: Resampler, batch: Batch, split: Split, n_folds: int = 5, seed: int = 0
) -> Distances:
    """Return distances over measurements that the reconstruction has not seen; no ground truth is needed.

    Each fold of the measurements is held out in turn: y = y_1 + y_2, x_hat = f(y_1, A_1). |A_2 x_hat - y_2|^2 minus the
    energy of the noise in y_2 estimates |A_2 (x_hat - x)|^2 without bias. It is compared with the error of the bootstrap on
    what A_1 withheld from it, |A_2 (f(A_1 T_g x_hat + epsilon) - T_g x_hat)|^2. All folds give one number for an item; each
    entry is weighted by how many it represents (see `representation`).

    Args:
        f: the estimator.
        resampler: draws images around x_hat.
        batch: measurements of items with ids and noise levels.
        split: the unit that is held out, and the units that never are.
        n_folds: number of folds: the more, the closer f(y_1) is to f(y), and the longer it takes.
        seed: of the folds, which are drawn for each item from its id.
    """
    error, resampled, entries = (part.sum(0) for part in folded_energies(f, resampler, batch, split, n_folds, seed))
    return Distances(root_mean(error, entries), root_mean(resampled, entries[:, None]))


def folded_energies(
    f: Estimator, resampler: Resampler, batch: Batch, split: Split, n_folds: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return energies over the held-out entries of each fold: of errors (K, B), resampled (K, B, N); and the entries (K, B)."""
    y, physics, weight = batch.y, batch.physics, representation(batch.physics, split)
    parts = []
    for k, m2 in enumerate(folds(split, physics, len(y), batch.generators(seed, "folds"), n_folds)):
        m1 = physics.mask - m2
        seen = replace(batch, y=m1 * y, physics=physics.masked(m1), ids=[f"{name}/fold{k}" for name in batch.ids])
        parts.append(_one_fold(f, resampler, seen, y, _HeldOut(physics.masked(m2), weight)))
    error, resampled, entries = (torch.stack(part) for part in zip(*parts, strict=True))
    return error, resampled, entries


class _HeldOut(NamedTuple):
    """A_2, and the weights of its entries."""

    physics: Operator
    weight: Tensor

    def energy(self, y: Measurement) -> PerItem:
        """Weighted energy of held-out entries, (B,)."""
        return (self.physics.mask * self.weight * y.square()).flatten(1).sum(1)


def _one_fold(f: Estimator, resampler: Resampler, seen: Batch, y: Measurement, held: _HeldOut) -> tuple[Tensor, Tensor, Tensor]:
    """Return squared distances over the held-out entries: errors (B,), resampled (B, N), and the number of entries (B,)."""
    x_hat = f(seen)
    noise = per_item(noise_level(None, seen.sigma), y) * torch.ones_like(y)
    error = held.energy(held.physics.A(x_hat) - y) - held.energy(noise)  # may be negative by chance
    resampled = torch.stack([held.energy(held.physics.A(one.measured)) for one in resampler(f, x_hat, seen)], 1)
    return error, resampled, held.energy(torch.ones_like(y))


def _energy(x: Tensor) -> PerItem:
    return x.square().flatten(1).sum(1)


def root_mean(energy: Tensor, entries: int | Tensor) -> Tensor:
    """Return the root mean square of entries from their energy; 0 where subtracting the noise made the energy negative."""
    return (energy / entries).clamp(min=0).sqrt()
