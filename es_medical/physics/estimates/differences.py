"""Differences of neighbouring pixels."""

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.types import Image

Differences = Float[Tensor, "2 b c h w"]
"""Vertical and horizontal differences of images."""


def differences(x: Image) -> Differences:
    """Return D x: x[i + 1, j] - x[i, j] and x[i, j + 1] - x[i, j], zero at the last row or column.

    >>> differences(torch.tensor([[[[1.0, 4.0]]]])).flatten().tolist()
    [0.0, 0.0, 3.0, 0.0]
    """
    d = x.new_zeros(2, *x.shape)
    torch.sub(x[..., 1:, :], x[..., :-1, :], out=d[0, ..., :-1, :])
    torch.sub(x[..., 1:], x[..., :-1], out=d[1, ..., :-1])
    return d


def differences_adjoint(d: Differences) -> Image:
    """Return D^T d, minus the divergence."""
    rows, columns = d[0, ..., :-1, :], d[1, ..., :-1]
    x = torch.zeros_like(d[0])
    x[..., 1:, :] += rows
    x[..., :-1, :] -= rows
    x[..., 1:] += columns
    x[..., :-1] -= columns
    return x
