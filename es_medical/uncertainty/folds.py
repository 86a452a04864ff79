"""Which measurements are held out, and how many of the never measured ones each of them represents."""

from collections.abc import Iterator

import torch
from torch import Tensor

from es_medical.physics.base import Operator
from es_medical.physics.line_masks import center_lines
from es_medical.splits import KSPACE_UNITS, Split
from es_medical.types import Generator, Mask

LEAST = 1e-6
"""A split ratio that leaves M1 no more than it keeps."""

SMOOTH = 16
"""Parts of the width of k-space over one of which errors are taken to be alike."""

FARTHEST = 1e-12
"""Nearness of what is far from everything."""


def folds(split: Split, physics: Operator, n_items: int, generator: Generator | None, n_folds: int) -> Iterator[Mask]:
    """Yield disjoint masks M2 of held-out measurements, (B, ...), about `n_folds` of equal size.

    Together they hold every unit that a split may hold out (lines of k-space other than the central ones, views, pixels; of
    these all but one), so that each measurement is predicted once from nearly all others.

    Args:
        split: what is drawn, and what always stays.
        physics: the operator A.
        n_items: B.
        generator: source of the draws, one for each item so that a batch doesn't matter.
        n_folds: number of masks; fewer where there are fewer units.
    """
    one_unit = Split(split.unit, LEAST, max(split.n_center, 1))
    kept = _entries(one_unit(physics, n_items, generator))
    remaining = physics.mask.expand(n_items, *physics.mask.shape[1:])
    for fold in range(n_folds):
        left = _entries(remaining)
        if left <= kept:
            return
        share = (left - kept) / (n_folds - fold) / left  # of what is left, for this fold
        narrower = Split(split.unit, max(1 - share, LEAST), max(split.n_center, 1))
        first = narrower(physics.masked(remaining), n_items, generator)
        yield remaining - first
        remaining = first


def representation(physics: Operator, split: Split) -> Tensor:
    """Weights of held-out entries, broadcastable to y: how many entries of y, never measured, each represents.

    k-space is sampled more densely at its centre, and errors are other there: every line or entry that was not measured is
    shared among the measured ones that may be held out, by a Gaussian of the difference of their distances from the centre,
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
    held = measured & ~center_lines(width, split.n_center, mask.device)
    weights = _shared(distance.round().long(), held, ~measured, width / SMOOTH)
    return weights.view(*[1] * (physics.mask.ndim - 2), *distance.shape)


def _shared(distance: Tensor, held: Tensor, missing: Tensor, width: float) -> Tensor:
    """Share the missing entries among the held ones, by their whole distances; all alike where nothing is missing."""
    if not bool(missing.any()) or not bool(held.any()):
        return torch.ones(distance.shape, device=distance.device)
    n = int(distance.max()) + 1
    n_held, n_missing = (torch.bincount(distance[kind], minlength=n).double() for kind in (held, missing))
    places = torch.arange(n, device=distance.device, dtype=torch.float64)
    nearness = torch.exp(-0.5 * ((places[:, None] - places) / width).square()) + FARTHEST
    shares = n_missing @ (nearness / (nearness @ n_held)[:, None])  # of each held entry at a distance
    return torch.where(held, shares[distance], 0.0).float()


def _entries(mask: Mask) -> int:
    """Number of entries of an item, which is that of all; of several the smallest."""
    return int(mask.flatten(1).sum(1).min())
