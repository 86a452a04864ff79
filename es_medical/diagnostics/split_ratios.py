"""What one split shows a network, with and without transformations, against the share of the measurements that it keeps."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from es_medical.diagnostics.diagnosis import Finding, diagnose
from es_medical.diagnostics.verdict import percent
from es_medical.physics.base import Operator
from es_medical.splits import Split
from es_medical.types import Mask


class SplitFinding(NamedTuple):
    """The spectra of one split A_1 = M_1 A.

    Attributes:
        ratio: share of the measured units that M_1 keeps.
        alone: finding for A_1^T A_1: what the network is shown at a time.
        moved: finding for the mean of T_g^T A_1^T A_1 T_g: what all transformed splits of this size show together.
    """

    ratio: float
    alone: Finding
    moved: Finding


def by_split_ratio(
    physics: Operator,
    split: Split,
    action: str,
    ratios: Sequence[float],
    support: Mask | None = None,
    seed: int = 0,
) -> list[SplitFinding]:
    """Diagnose one split of each ratio, drawn from the seed.

    The mean over all splits, E[A_1^T A_1], has the range of A^T for every ratio: a small split shows less at a
    time, and leaves as much to be predicted over the course of a training.

    Args:
        physics: the operator A.
        split: the unit and the lines that always stay; its ratio is not used.
        action: set of transformations.
        ratios: shares of the measured units, between 0 and 1.
        support: pixels (H, W) that can differ from zero; None for all.
        seed: of M_1, and of random vectors where a spectrum is estimated.

    Raises:
        ValueError: a ratio out of range, too few units to divide, or the set does not act on the operator.
    """
    found = []
    for ratio in ratios:
        of_ratio = split.with_ratio(ratio)
        m1 = of_ratio(physics, 1, torch.Generator().manual_seed(seed))
        shown = diagnose(physics.masked(m1), [action], support=support, seed=seed, quick=True)
        if action in shown.refused:
            raise ValueError(shown.refused[action])
        found.append(SplitFinding(ratio, shown.alone, shown.of(action)))
    return found


def split_words(found: Sequence[SplitFinding]) -> str:
    """Describe what splits show, a line for each ratio; "" for none."""
    if not found:
        return ""
    lines = [
        f"- ratio {one.ratio:g}: {percent(one.alone.share)} of n, {percent(one.moved.share)} under {one.moved.label}"
        for one in found
    ]
    return "\n".join(["What one split shows a network at a time, by the share of the measurements that it keeps:", *lines])
