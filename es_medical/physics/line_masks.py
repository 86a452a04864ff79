"""Sampling masks of accelerated MRI: random k-space columns with a Gaussian density and a fully sampled centre."""

import torch
from jaxtyping import Bool
from torch import Tensor


def gaussian_line_mask(
    width: int, acceleration: float, center_fraction: float, seed: int, encoded: tuple[int, int] | None = None
) -> Bool[Tensor, " w"]:
    """Draw the phase-encoding lines (k-space columns) of a Cartesian acquisition.

    The central block is always measured; further lines are drawn without replacement with a Gaussian density centred
    at zero frequency (standard deviation width / 6), as the paper's "random Gaussian mask".

    Args:
        width: number of k-space columns.
        acceleration: encoded columns / measured lines; exactly round(encoded columns / acceleration) lines are measured.
        center_fraction: share of the encoded columns in the central block (at least the zero frequency), e.g. 0.03 at 8x.
        seed: the same seed gives the same mask.
        encoded: first and one past the last column that the scan encoded (zero-padded ones lie outside); None for all.

    Returns:
        (W,) bool, True where a line is measured; width // 2 always is.

    Raises:
        ValueError: the centre alone has more lines than the acceleration allows, or does not lie within `encoded`.

    >>> int(gaussian_line_mask(320, 8, 0.03, seed=0).sum())
    40
    """
    start, stop = (0, width) if encoded is None else encoded
    n_lines, n_center = line_counts(stop - start, acceleration, center_fraction)
    position = torch.arange(width) - width // 2
    density = torch.exp(-0.5 * (position / (width / 6)).double() ** 2)
    density[:start], density[stop:] = 0, 0
    center = center_lines(width, n_center)
    if not 0 <= start < stop <= width or bool(center[:start].any()) or bool(center[stop:].any()):
        raise ValueError(f"the central {n_center} of {width} columns do not lie within the encoded ones, {start} to {stop - 1}")
    if n_lines == n_center:
        return center
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(torch.where(center, 0.0, density), n_lines - n_center, generator=generator)
    mask = center.clone()
    mask[drawn] = True
    return mask


def line_counts(width: int, acceleration: float, center_fraction: float) -> tuple[int, int]:
    """Return (measured lines, lines of the central block) or raise ValueError when the block has more."""
    if not acceleration >= 1 or not 0 <= center_fraction <= 1:
        raise ValueError(f"acceleration must be >= 1 and center_fraction in [0, 1], got {acceleration} and {center_fraction}")
    n_lines, n_center = max(round(width / acceleration), 1), max(round(width * center_fraction), 1)
    if n_center > n_lines:
        raise ValueError(
            f"a centre of {n_center} lines ({center_fraction:g} of {width}) exceeds the {n_lines} lines "
            f"that acceleration {acceleration:g} leaves"
        )
    return n_lines, n_center


def center_lines(width: int, n: int, device: torch.device | str = "cpu") -> Bool[Tensor, " w"]:
    """Mark the n central columns around zero frequency, index width // 2; for even n the extra one is on the left."""
    position = torch.arange(width, device=device) - width // 2
    return (position >= -(n // 2)) & (position < n - n // 2)
