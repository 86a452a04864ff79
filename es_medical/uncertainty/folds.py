"""Choose the measurements that are held out, and how many unmeasured ones each of them represents."""

from collections.abc import Iterator

import torch
from torch import Tensor

from es_medical.physics.base import Operator
from es_medical.splits import KSPACE_UNITS, Split
from es_medical.types import Generator, Mask

LEAST = 1e-6
"""A split ratio so small that M1 has only the kept units."""

SMOOTH = 16
"""Errors are taken to be alike over the width of k-space divided by this."""

FARTHEST = 1e-12
"""Least nearness, so that entries far from all others are shared too."""


def folds(split: Split, physics: Operator, n_items: int, generator: Generator | None, n_folds: int) -> Iterator[Mask]:
    """Yield disjoint masks M2 of held-out measurements, (B, ...), about `n_folds` of equal size.

    Together they hold every unit that a split may hold out (k-space lines other than the central ones; all but one of the
    views or pixels), so that each measurement is predicted once from nearly all others.

    Args:
        split: the unit that is drawn, and the units that always stay.
        physics: the operator A.
        n_items: B.
        generator: source of the draws; one for each item makes them independent of the batch.
        n_folds: number of masks; fewer where there are fewer units.
    """
    one_unit = split.with_ratio(LEAST, "exact")
    kept = _entries(one_unit(physics, n_items, generator))
    remaining = physics.mask.expand(n_items, *physics.mask.shape[1:])
    for fold in range(n_folds):
        left = _entries(remaining)
        if left <= kept:
            return
        share = (left - kept) / (n_folds - fold) / left  # of what is left, for this fold
        narrower = split.with_ratio(max(1 - share, LEAST), "exact")
        first = narrower(physics.masked(remaining), n_items, generator)
        yield remaining - first
        remaining = first


def representation(physics: Operator, split: Split) -> Tensor:
    """Return weights of held-out entries, broadcastable to y: how many unmeasured entries each represents.

    k-space is sampled more densely at its centre, and errors differ there: every unmeasured line or entry is shared
    among the measured ones that may be held out, by a Gaussian of the difference of their distances from the centre,
    with a standard deviation of 1/16 of the width (Horvitz-Thompson weights, smoothed). Entries of other measurements have
    equal weights.

    Args:
        physics: the operator A.
        split: draws what is held out.
    """
    if split.unit not in KSPACE_UNITS:
        return torch.ones_like(physics.mask)
    mask = physics.mask[:1].reshape(1, -1, *physics.mask.shape[-2:])[0, 0]  # (H or 1, W); coils share it
    height, width = physics.image_size
    rows, columns = ((torch.arange(n, device=mask.device) - n // 2).abs().float() for n in (height, width))
    lines = split.unit == "lines"
    distance = columns[None] if lines else torch.hypot(rows[:, None], columns)
    measured = (mask.amax(0, keepdim=True) if lines else mask.expand(height, width)) > 0
    held = measured & ~split.center((height, width), mask.device)
    weights = _shared(distance.round().long(), held, ~measured, width / SMOOTH)
    return weights.view(*[1] * (physics.mask.ndim - 2), *distance.shape)


def _shared(distance: Tensor, held: Tensor, missing: Tensor, width: float) -> Tensor:
    """Share the missing entries among the held ones by their rounded distances; equal weights where nothing is missing."""
    if not bool(missing.any()) or not bool(held.any()):
        return torch.ones(distance.shape, device=distance.device)
    n = int(distance.max()) + 1
    n_held, n_missing = (torch.bincount(distance[kind], minlength=n).double() for kind in (held, missing))
    places = torch.arange(n, device=distance.device, dtype=torch.float64)
    nearness = torch.exp(-0.5 * ((places[:, None] - places) / width).square()) + FARTHEST
    shares = n_missing @ (nearness / (nearness @ n_held)[:, None])  # of each held entry at a distance
    return torch.where(held, shares[distance], 0.0).float()


def _entries(mask: Mask) -> int:
    """Return the number of entries of an item: the smallest over the batch."""
    return int(mask.flatten(1).sum(1).min())
