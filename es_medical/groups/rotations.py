"""Rotations by fractions of the view spacing, with D4, which add to what a CT scanner sees."""

from typing import NamedTuple, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from es_medical.groups.base import Group
from es_medical.groups.dihedral import D4
from es_medical.randomness import uniform_on_cpu, whole_numbers
from es_medical.types import Elements, Generator


class Turnable(Protocol):
    """A scanner that can turn its views by a small fixed set of angles."""

    def turned(self, k: int) -> "Turnable":
        """Return A T_phi for the k-th angle phi; `turned(0)` is A itself."""


class TurnedElements(NamedTuple):
    """Elements g = (k, h), one for each item of a batch: T_g = T_phi T_h with the k-th angle phi."""

    turn: Int[Tensor, " n"]
    """k, always on the CPU: it selects a system matrix."""
    base: Elements
    """h, elements of the base group."""


class Rotations:
    r"""Rotations by the angles phi_k = k / n_sub of the view spacing, k = 0 ... n_sub - 1, each followed by D4.

    T_phi acts on the operator alone: A T_phi is the same scanner with its views turned by -phi and its own system matrix
    (`physics.turned(k)`), so no image is interpolated. In y = A x = (A T_g)(T_g^-1 x) the measurement y of x is that of a
    turned image by a turned scanner, and the loss needs only A T_g:

        L = E_g |A_g r(y_1, A_1 T_g) - y|^2,   A_g = A T_g.

    Why: to see more than A does, (A T_g)^T must have a range other than that of A^T (the paper's necessary condition: the
    mean of T_g^T A^T A T_g has to have full rank). V views spread evenly over 180 degrees are mapped onto themselves by
    every flip, and by 90 degrees when V is even: for 50 views D4 adds nothing. For 51 views a turn by 90 degrees puts
    each view midway between two others, which doubles the angles. Rotations by fractions of the view spacing multiply them by
    n_sub for every V; those by whole spacings only permute the views.

    This is not a `Group`: T_phi has no exact action on pixels and the n_sub angles are not closed under composition.
    A reconstructor is averaged (`ReynoldsAveraging`) over `base`, which is exact; the loss draws the angles.

    Args:
        n_sub: number of angles.
        base: group of pixel permutations; `Flips` where images are not square.

    Raises:
        ValueError: n_sub < 1.

    >>> Rotations(4).angles(180 / 50)
    [0.0, 0.9, 1.8, 2.7]
    """

    def __init__(self, n_sub: int = 4, base: Group | None = None) -> None:
        if n_sub < 1 or n_sub != int(n_sub):
            raise ValueError(f"n_sub must be a whole number, at least 1, got {n_sub}")
        self.n_sub, self.base = n_sub, D4() if base is None else base

    @property
    def order(self) -> int:
        """Number of pairs (k, h)."""
        return self.n_sub * self.base.order

    def angles(self, spacing: float) -> list[float]:
        """Return phi_k in the unit of `spacing`, the angle from one view to the next."""
        return [spacing * k / self.n_sub for k in range(self.n_sub)]

    def elements(self) -> TurnedElements:
        """Return all pairs (k, h), those of k = 0 first, the identity first of all."""
        turn = torch.arange(self.n_sub).repeat_interleave(self.base.order)
        base = self.base.elements()
        return TurnedElements(turn, base.repeat(self.n_sub, *[1] * (base.ndim - 1)))

    def sample(self, n: int, generator: Generator | None, device: torch.device | str = "cpu") -> TurnedElements:
        """Draw n pairs, k and h uniform; h lies on `device`.

        Given one generator for the batch, all items share one k: one sparse product for the batch in place of n_sub
        smaller ones. The mean of the loss is the same, as each item's k is uniform; only its variance is larger.
        Given one generator for each item, k is each item's own.
        """
        drawn = uniform_on_cpu(n, generator).expand(n)
        return TurnedElements(whole_numbers(drawn, self.n_sub), self.base.sample(n, generator, device))

    def check(self, size: tuple[int, int]) -> None:
        """Raise ValueError when the base group does not act on images of `size` (H, W)."""
        self.base.check(size)
