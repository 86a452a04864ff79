"""Solve systems with K = A A^T of a dense matrix A, and with the block of K of some rows of A."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from es_medical.types import Mask

Solve = Callable[[Tensor], Tensor]
"""b -> B^-1 b, both (B, m)."""

WORST_CONDITION = 1e10
"""Condition number of K up to which K^-1, in float64, is taken to be accurate: to 1e-6 at least."""


class Gram:
    """K = A A^T (m, m) by its eigenvalues and eigenvectors in float64, computed when they are first used.

    Args:
        matrix: A, (m, n).
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (m,), ascending, and eigenvectors (m, m), one in each column."""
        with torch.inference_mode(False), torch.no_grad():  # computed in an evaluation, they may be used in training
            matrix = self.matrix.double()
            values, vectors = torch.linalg.eigh(matrix @ matrix.mT)
            return values.clamp(min=0), vectors

    @cached_property
    def invertible(self) -> bool:
        """Whether the condition number of K, and so that of any principal submatrix, is at most `WORST_CONDITION`."""
        values, _ = self.eigen
        return bool(values[-1] > 0) and bool(values[-1] <= WORST_CONDITION * values[0])

    @cached_property
    def inverse(self) -> Tensor:
        """K^-1, (1, m, m) float64."""
        with torch.inference_mode(False), torch.no_grad():
            values, vectors = self.eigen
            return ((vectors / values) @ vectors.mT)[None]

    def shifted_inverse(self, gamma: Tensor) -> Tensor:
        """(I + gamma K)^-1, (B or 1, m, m), for gamma (B or 1, 1)."""
        values, vectors = (part.to(gamma) for part in self.eigen)
        with torch.autocast(gamma.device.type, enabled=False):
            return (vectors * (1 / (1 + gamma * values))[:, None]) @ vectors.mT


def restricted_inverse(inverse: Tensor, mask: Mask, n_removed: int) -> Solve:
    """Return b -> (B_SS)^-1 b from P = B^-1, where S are the rows that the mask keeps and R those it removes.

    (B_SS)^-1 = P_SS - P_SR (P_RR)^-1 P_RS (inverse of a block matrix): a small system, as a split removes few rows.

    Args:
        inverse: P (B or 1, m, m), symmetric positive definite.
        mask: 0 or 1, (B or 1, m); b and the solution are zero where the mask is.
        n_removed: upper bound on the number of rows that an item lacks; the cost grows with it.

    >>> B = torch.tensor([[2.0, 1.0], [1.0, 4.0]])
    >>> restricted_inverse(B.inverse()[None], torch.tensor([[0.0, 1.0]]), 1)(torch.tensor([[0.0, 8.0]]))
    tensor([[0., 2.]])
    """
    if n_removed == 0:
        return lambda b: each(b, inverse)
    gone, rows = (1 - mask).to(inverse).topk(n_removed)  # gone is 0 where an item lacks fewer rows than the bound
    item = torch.arange(len(inverse), device=inverse.device)[:, None]
    P_R = inverse[item, rows]  # (B, r, m)
    P_RR = inverse[item[..., None], rows[..., None], rows[:, None]] * gone[..., None] * gone[:, None]
    factor, _ = torch.linalg.cholesky_ex(P_RR + torch.diag_embed(1 - gone))

    def solve(b: Tensor) -> Tensor:
        u = each(b, inverse)
        w = torch.cholesky_solve((u.take_along_dim(rows, 1) * gone)[..., None], factor)
        return mask * (u - each(w[..., 0], P_R))

    return solve


def each(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x_b M_b for each item: (B, k) and (B or 1, k, l) to (B, l), in their precision even under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return x @ matrix[0] if len(matrix) == 1 else (x[:, None] @ matrix)[:, 0]
