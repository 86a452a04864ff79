"""The mean Gram matrix of an operator and a set of transformations, and what its rank means."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.types import Image, PerItem

RANK_THRESHOLD = 1e-3
"""An eigenvalue counts for the rank above this share of the largest one."""

Support = Float[Tensor, "h w"]
"""1 at pixels that can differ from zero, else 0."""


class Eigenvalues(NamedTuple):
    """The eigenvalues of a symmetric matrix and how many of each there are."""

    values: Tensor
    """(k,), float64."""
    counts: Tensor
    """(k,), float64."""


class MeanGram(ABC):
    """H = mean_g (A T_g)^T A T_g on images (C, H, W), restricted to a support.

    Section "Method" of the paper: splitting gives the MMSE estimator when E[(A T_g)^T A T_g | A_1] has full rank, for which
    full rank of H is necessary. Images in the null space of H change no measurement of any A T_g: no network can learn them
    from measurements.

    Args:
        shape: (C, H, W) of the images.
        support: the pixels that can differ from zero; None for all.
    """

    def __init__(self, shape: tuple[int, int, int], support: Support | None = None) -> None:
        self.shape, self.support = shape, support
        channels, height, width = shape
        self.n = channels * (height * width if support is None else int(support.sum()))

    def apply(self, x: Image) -> Image:
        """Return P H P x for images (B, C, H, W), in their precision; P keeps the support."""
        if self.support is None:
            return self._apply(x)
        support = self.support.to(x)
        return support * self._apply(support * x)

    def product(self, v: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Return P H P v for images as vectors, (B, C H W)."""
        return self.apply(v.view(-1, *self.shape)).flatten(1)

    @abstractmethod
    def _apply(self, x: Image) -> Image:
        """Return H x."""


class ExactGram(MeanGram):
    """A mean Gram matrix whose eigenvalues and eigenvectors are known."""

    @abstractmethod
    def eigenvalues(self) -> Eigenvalues:
        """Return all n eigenvalues."""

    @abstractmethod
    def share_below(self, x: Image, level: float) -> PerItem:
        """Return the share of each image's energy in eigenspaces of eigenvalues of at most `level`."""


def share(part: Tensor, whole: Tensor) -> PerItem:
    """Return |part|^2 / |whole|^2 of each item, 0 for an image of zeros.

    >>> share(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([0.5000])
    """
    energy = whole.abs().square().flatten(1).sum(1)
    return part.abs().square().flatten(1).sum(1) / energy.clamp(min=torch.finfo(energy.dtype).tiny)
