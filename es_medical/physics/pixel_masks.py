"""Masks of inpainting: values or pixels kept at random, random and evenly spaced columns (a push-broom scanner)."""

import torch
from jaxtyping import Bool
from torch import Tensor


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
