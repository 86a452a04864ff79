"""Masks of 0 and 1: read and check those of all operators, and draw those of lines of k-space and of pixels."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from es_medical.types import Mask

GivenMask = Tensor | np.ndarray | Sequence[float]
"""A mask as a caller gives it: bool, integer or float."""


def read_mask(mask: GivenMask, sizes: Sequence[tuple[int, ...]], ranks: Sequence[int], wanted: str) -> Mask:
    """Copy a mask of 0 and 1 to a float32 tensor (B or 1, ...), and refuse one that does not fit.

    Args:
        mask: bool, integer or float.
        sizes: the sizes that each axis after the batch may have.
        ranks: the numbers of axes that the mask may have; missing ones are added in front.
        wanted: what the mask has to fit, and the shapes that fit, for the error message.

    Raises:
        ValueError: the mask does not fit, or holds values other than 0 and 1 (not checked on a GPU, which would have to wait).

    >>> read_mask([0, 1, 1], [(3,)], (1, 2), "3 rows")
    tensor([[0., 1., 1.]])
    """
    given = torch.as_tensor(mask)
    shaped = given.view(*[1] * (len(sizes) + 1 - given.ndim), *given.shape)
    if given.ndim not in ranks or any(n not in fitting for n, fitting in zip(shaped.shape[1:], sizes, strict=True)):
        raise ValueError(f"mask of shape {tuple(given.shape)} does not fit {wanted}")
    shaped = shaped.to(torch.float32, copy=True)  # a copy: the operator owns its mask; float32: y keeps the precision of x
    if shaped.device.type == "cpu" and not bool(((shaped == 0) | (shaped == 1)).all()):
        raise ValueError(f"mask values must be 0 or 1, got values from {shaped.min():g} to {shaped.max():g}")
    return shaped


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


def center_block(mask: Bool[Tensor, "h w"]) -> tuple[int, int]:
    """Rows and columns of the largest rectangle of measured samples around zero frequency, index n//2 of both axes.

    Args:
        mask: measured samples of k-space.

    Returns:
        (rows, columns) as `center_lines` counts them; (0, 0) if zero frequency is not measured.

    >>> center_block(torch.tensor([[0, 1, 0, 1], [1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 0, 0]]).bool())
    (2, 2)
    """
    best, columns = (0, 0), mask.shape[1]
    measured, shared = mask.cpu(), torch.ones(mask.shape[1], dtype=torch.bool)
    for rows in range(1, mask.shape[0] + 1):
        middle = mask.shape[0] // 2
        shared &= measured[middle - rows // 2 if rows % 2 == 0 else middle + rows // 2]  # the row that this height adds
        while columns and not bool(shared[center_lines(len(shared), columns)].all()):
            columns -= 1
        best = max(best, (rows, columns), key=lambda sides: (sides[0] * sides[1], min(sides)))
    return best if best[0] * best[1] else (0, 0)


def bernoulli_mask(shape: tuple[int, ...], keep: float, seed: int) -> Bool[Tensor, "..."]:
    """Keep each entry with probability `keep`, independently of the others.

    Args:
        shape: (C, H, W) draws every value of every channel (the paper's inpainting, keep = 0.3), (1, H, W) whole pixels.
        keep: probability, greater than 0; 1 keeps everything.
        seed: the same seed gives the same mask.

    Returns:
        Bool of `shape`, True where the image is measured.

    Raises:
        ValueError: keep lies outside (0, 1], or the mask keeps nothing, or everything although keep < 1 (few entries).

    >>> bernoulli_mask((1, 2, 4), 0.5, seed=0).int().tolist()
    [[[1, 0, 1, 1], [1, 0, 1, 0]]]
    """
    _check_share(keep)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < keep
    _check_count(int(mask.sum()), mask.numel(), "values", f"keep={keep:g} and seed={seed}", keep)
    return mask


def random_columns(width: int, keep: float, seed: int) -> Bool[Tensor, " w"]:
    """Keep exactly round(keep width) columns, drawn without replacement: a push-broom scanner with dead detectors.

    Args:
        width: number of columns.
        keep: share of the columns that are measured, greater than 0; 1 keeps all.
        seed: the same seed gives the same mask.

    Returns:
        (W,) bool, True where a column is measured.

    Raises:
        ValueError: keep lies outside (0, 1], or rounds to no column, or to all although keep < 1.

    >>> int(random_columns(128, 0.5, seed=0).sum())
    64
    """
    _check_share(keep)
    n = round(keep * width)
    _check_count(n, width, "columns", f"keep={keep:g}", keep)
    mask = torch.zeros(width, dtype=torch.bool)
    mask[torch.randperm(width, generator=torch.Generator().manual_seed(seed))[:n]] = True
    return mask


def even_columns(width: int, step: int = 2) -> Bool[Tensor, " w"]:
    """Keep columns 0, step, 2 step, ...: the paper's evenly spaced push-broom mask has step 2.

    Raises:
        ValueError: the step is not from 1 (all columns) to the width.

    >>> even_columns(5).int().tolist()
    [1, 0, 1, 0, 1]
    """
    if not 1 <= step <= width:
        raise ValueError(f"the step between columns must be from 1 to the width, {width}; got {step}")
    return torch.arange(width) % step == 0


def _check_share(keep: float) -> None:
    if not 0 < keep <= 1:
        raise ValueError(f"keep is a share and must be greater than 0 and at most 1, got {keep}")


def _check_count(kept: int, n: int, things: str, drawn: str, keep: float) -> None:
    if kept == 0:
        raise ValueError(f"{drawn} keep none of {n} {things}: nothing would be measured")
    if kept == n and keep < 1:
        raise ValueError(f"{drawn} keep all of {n} {things}: nothing would be missing; keep=1 asks for that")
