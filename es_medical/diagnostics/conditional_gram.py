"""The matrix Q of the paper's theorem for masks of pixels, exactly: what a split of an incomplete image can learn.

Why evenly spaced columns fail under shifts. The mean over all shifts of T_g^T A^T A T_g is keep * I for every mask of
pixels, so the necessary condition holds for evenly spaced columns as for random ones. The theorem asks for more: for a
split A_1, Q_{A_1} = E[(A T_g)^T A T_g | A_1] averages only over the shifts that could have shown A_1. When every other
column is measured and A_1 shows even ones, g is even, and the target never lies on an odd column: half of Q_{A_1} is zero,
for every split. Nothing asks the network for odd columns given even ones, so it may put anything there.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.fft import irfft2, rfft2

from es_medical.diagnostics.actions import MOVES, dihedral

Pixels = Float[Tensor, "c h w"] | Bool[Tensor, "c h w"]
"""Indicator of values of an image."""


def conditional_gram(mask: Pixels, seen: Pixels) -> Float[Tensor, "c h w"]:
    r"""Diagonal of Q_{A_1} = E[(A T_g)^T A T_g | A_1] for A x = m x, uniform cyclic shifts g, and a split that shows `seen`.

    A_1 = M_1 A T_g is known by the image values that it shows, as for every reconstructor of A_1^T y and A_1^T A_1.
    Splits of a given size, or with independent draws, are equally likely for all g; so g is uniform over the shifts whose mask
    T_g^-1 m holds every seen value, and Q_{A_1} = mean of T_g^-1 m over them. Both are correlations, computed by FFT.

    Args:
        mask: m, (C, H, W).
        seen: what A_1 shows, (C, H, W); a subset of some shift of m, with at least one value.

    Returns:
        How often each value is measured along with those of A_1, from 0 to 1, float64; 1 on `seen`.

    Raises:
        ValueError: nothing is seen, or no shift of the mask holds all seen values.

    >>> mask = torch.tensor([[[1.0, 0, 1, 0, 1, 0]]])
    >>> conditional_gram(mask, torch.tensor([[[0.0, 0, 1, 0, 0, 0]]])).flatten().tolist()
    [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    """
    mask, seen = mask.double(), seen.double()
    _check(mask, seen)
    held = _correlate(seen, mask).sum(0)  # seen values that each shift's mask holds, (H, W) over g = (dy, dx)
    possible = (held > seen.sum() - 0.5).double()
    if not bool(seen.any()) or not bool(possible.any()):
        raise ValueError(f"no shift of the mask holds the {int(seen.sum())} seen values: they are not a split of it")
    gram = _correlate(possible, mask) / possible.sum()
    return torch.where(gram > 0.5 / possible.sum(), gram, 0.0)  # multiples of 1 / number of shifts: the rest is rounding


def joint_rank(mask: Pixels, action: str) -> float:
    """Bound the mean rank of Q_{A_1} over all splits, in parts of n: the values that are ever measured along with a seen one.

    A split shows at least one value p, and every further value leaves fewer g. So rank Q_{A_1} is at most r(p), the
    number of values q that some g of the set measures together with p, for every p that A_1 shows; r(p) is met by a split
    that shows p alone. Returned is the mean of r(p) over the values that a split shows. Under shifts q and p are measured
    together when q - p is a difference of two measured values: where the autocorrelation of m is not zero.

    Args:
        mask: m, (C, H, W).
        action: "none", "flips", "rotations_90", "d4" or "shifts".

    Raises:
        ValueError: another action, or D4 of an image that is not square.

    >>> even = torch.tensor([[[1.0, 0, 1, 0, 1, 0, 1, 0]]])
    >>> joint_rank(even, "shifts"), joint_rank(torch.tensor([[[1.0, 1, 0, 1, 0, 0, 0, 0]]]), "shifts")
    (0.5, 0.875)
    """
    if action not in MOVES:
        raise ValueError(f"pairs of pixels are counted under {', '.join(MOVES)}; got {action!r}")
    return _joint_rank_of_shifts(mask.double()) if action == "shifts" else _joint_rank_of_set(mask, action)


def rarest_pair(mask: Pixels) -> float:
    """Return the least share, over pairs of values, of the shifts that measure both among those that measure one.

    Pairs that no shift measures together are left out. Evenly spaced columns of which one is moved by a pixel have no such
    pairs (`joint_rank` is 1), but this share is small: the missing half is hardly ever asked for.

    >>> rarest_pair(torch.tensor([[[1.0, 1, 0, 1, 0, 0, 0]]]))
    0.3333333333333333
    """
    together = torch.stack([_correlate(channel, mask.double()) for channel in mask.double()])  # (C of p, C of q, H, W)
    share = together / mask.double().flatten(1).sum(1)[:, None, None, None]
    return float(share[together > 0.5].min())


def _joint_rank_of_shifts(mask: Tensor) -> float:
    """Count the pairs (channel, difference) at which two values are measured, for each channel of the seen one."""
    shares = [(_correlate(channel, mask) > 0.5).double().mean() for channel in mask]
    measured = mask.flatten(1).sum(1)
    return float((torch.stack(shares) * measured).sum() / measured.sum())


def _joint_rank_of_set(mask: Pixels, action: str) -> float:
    """Code the set of g that measure a value as bits of a number; two values are seen together when they share a bit."""
    group, g = dihedral(action)
    moved = group.inverse(mask.double().expand(len(g), *mask.shape).contiguous(), g)  # T_g^-1 m
    pattern = (moved.flatten(1) > 0.5).long().mul(2 ** torch.arange(len(g))[:, None]).sum(0)  # (n,)
    kinds, counts = pattern.unique(return_counts=True)
    share = ((kinds[:, None] & kinds) > 0).double() @ counts.double() / pattern.numel()  # of values seen along with a kind
    shown = torch.stack([(kinds >> bit & 1) for bit in range(len(g))]).sum(0) * counts  # how often a split shows the kind
    return float((share * shown).sum() / shown.sum())


def _correlate(a: Tensor, b: Tensor) -> Float[Tensor, "c h w"]:
    """sum_p a[p] b[p + d] for every cyclic d = (dy, dx), channel by channel."""
    size = (b.shape[-2], b.shape[-1])
    return irfft2(rfft2(a).conj() * rfft2(b), s=size)


def _check(mask: Tensor, seen: Tensor) -> None:
    if mask.shape != seen.shape:
        raise ValueError(f"mask and seen values differ in shape: {tuple(mask.shape)} and {tuple(seen.shape)}")
