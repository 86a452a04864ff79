"""Compressed sensing with a dense matrix; every proximal step is exact, also for a subset of the rows."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from es_medical.physics.base import Operator, per_item
from es_medical.physics.estimates import smooth
from es_medical.physics.estimates.smooth import smooth_least_squares
from es_medical.physics.gram import Gram, Solve, each, restricted_inverse
from es_medical.physics.masks import GivenMask, read_mask
from es_medical.types import Image, Mask

Rows = Float[Tensor, "b m"]
"""Products of images with the rows of a matrix, zero where a row is left out."""


class CompressedSensing(Operator):
    """Compressed sensing, y = M A x for a dense matrix A (m, n) and the n = H W values of an image.

    Images are (B, 1, H, W), measurements (B, m), zero where a row is left out. Restrictions M1 A share the matrix and the
    eigenvectors of A A^T, which the first proximal step or pseudo-inverse computes (0.1 s for m = 392).
    Products are computed in the higher precision of matrix and image, at least float32.

    Args:
        matrix: A, (m, n).
        size: (H, W) of the images.
        mask: measured rows (m,), or one for each item of a batch, (B, m); 0 or 1. None for all.

    Raises:
        ValueError: the matrix doesn't fit `size` or isn't finite, the mask doesn't fit, or holds values other than 0 and 1.
    """

    baseline = "pseudo-inverse"
    estimated = smooth.NAME
    units: tuple[str, ...] = ("rows",)
    measured = "products with a matrix"

    matrix: Tensor
    """A, (m, n)."""

    def __init__(self, matrix: Tensor | np.ndarray, size: tuple[int, int], mask: GivenMask | None = None) -> None:
        matrix = _dense(matrix, size)
        rows = row_mask(torch.ones(len(matrix), device=matrix.device) if mask is None else mask, len(matrix))
        self._setup(matrix, size, rows.to(matrix.device), Gram(matrix), 0 if mask is None else _most_removed(rows))

    def _setup(self, matrix: Tensor, size: tuple[int, int], mask: Mask, gram: Gram, n_removed: int) -> None:
        super().__init__(img_size=(1, *size))
        self._gram, self._n_removed = gram, min(n_removed, _most_removed(mask))
        for name, buffer in (("mask", mask), ("matrix", matrix)):  # a checkpoint need not hold them
            self.register_buffer(name, buffer, persistent=False)

    @property
    def grid(self) -> tuple[int, ...]:
        """(m,), the number of rows."""
        return (len(self.matrix),)

    def A(self, x: Image) -> Rows:
        """M A x: image (B, 1, H, W) to measurements (B, m). Raises ValueError for images of another size."""
        self._check(x, (1, *self.image_size))
        return self.mask * _product(x.flatten(1), self.matrix.mT)

    def A_adjoint(self, y: Rows) -> Image:
        """A^T M y: measurements (B, m) to image (B, 1, H, W). Raises ValueError for another number of measurements."""
        self._check(y, self.grid)
        return _product(self.mask * y, self.matrix).view(-1, 1, *self.image_size)

    def A_dagger(self, y: Rows) -> Image:
        """A^dagger y, the image of least norm among the minimisers of |A x - y|^2; differentiable.

        (M A)^T K^-1 y with K = A A^T on the measured rows, in float64. A matrix with (nearly) linearly
        dependent rows needs a singular value decomposition, which is slow; singular values within rounding error count as zero.
        """
        self._check(y, self.grid)
        if not self._gram.invertible:
            rounding = torch.finfo(self.matrix.dtype).eps * max(self.matrix.shape)
            inverse = torch.linalg.pinv(self.mask[..., None] * self.matrix.double(), rtol=rounding)  # (B or 1, n, m)
            return each(y.double(), inverse.mT).to(_precision(y, self.matrix)).view(-1, 1, *self.image_size)
        solve = restricted_inverse(self._gram.inverse, self.mask, self._n_removed)
        return self.A_adjoint(solve(self.mask * y.double())).to(_precision(y, self.matrix))

    def initial(self, y: Rows) -> Image:
        """Return the pseudo-inverse reconstruction, where networks start."""
        return self.A_dagger(y)

    def estimate(self, y: Rows) -> Image:
        """Return the smooth least-squares image (see `smooth_least_squares`): the pseudo-inverse knows no neighbours."""
        diagonal = self.matrix.square().sum() / self.matrix.shape[1]  # mean of A^T A, with all rows
        return smooth_least_squares(self.A_adjoint_A, self.A_adjoint(y), diagonal)

    def prox_l2(self, z: Image, y: Rows, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2, gamma a number or (B,); differentiable in z, y and gamma.

        z + gamma A^T e with (I + gamma A A^T) e = y - A z on the measured rows (Woodbury's identity). With more rows than half
        the pixels, the rows are nearly dependent and A^T e is a small difference of large numbers: it is computed in float64.
        """
        self._check(z, (1, *self.image_size))
        self._check(y, self.grid)
        precision = _precision(z, y, self.matrix)
        start = z.flatten(1).to(torch.float64 if 2 * len(self.matrix) > self.matrix.shape[1] else precision)
        step = gamma if isinstance(gamma, Tensor) else torch.full((), gamma, dtype=start.dtype, device=z.device)
        step = torch.as_tensor(per_item(step, start)).reshape(-1, 1)  # (B or 1, 1)
        return _ProximalStep.apply(self, start, y.to(start), step).to(precision).view(-1, 1, *self.image_size)

    def masked(self, m: Mask) -> "CompressedSensing":
        """Return M1 A for a mask m of any shape that the constructor takes; the matrix is shared.

        The proximal step takes longer the more rows are left out. With an operator on a GPU, a mask on the CPU is
        faster: counting the rows that a mask on the GPU leaves out would need a synchronisation, so all are assumed to be.
        """
        other = CompressedSensing.__new__(CompressedSensing)
        rows = row_mask(m, len(self.matrix))
        mask = self.mask * rows.to(self.mask.device, non_blocking=True)
        other._setup(self.matrix, self.image_size, mask, self._gram, self._n_removed + _most_removed(rows))
        return other

    def row_solver(self, gamma: Tensor) -> Solve:
        """Return b -> (I + gamma A A^T)^-1 b on the measured rows, for b that is zero on the others; gamma is (B or 1, 1)."""
        return restricted_inverse(self._gram.shifted_inverse(gamma), self.mask, self._n_removed)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "CompressedSensing":
        """Move or convert (torch's hook); the eigenvectors are recomputed from the new matrix."""
        before = self._buffers.get("matrix")
        super()._apply(fn, recurse)
        if self._buffers.get("matrix") is not before:
            self._gram = Gram(self.matrix)
        return self


class _ProximalStep(Function):
    """x = z + gamma A^T e with (I + gamma A A^T) e = y - A z; then e = y - A x.

    With H = (I + gamma A^T A)^-1, which is symmetric, and q = A H grad x = (I + gamma A A^T)^-1 A grad x:
    grad z = H grad x = grad x - gamma A^T q, grad y = gamma q, and grad gamma = <q, e>. The factorisation is reused.
    """

    @staticmethod
    def forward(ctx: Any, physics: CompressedSensing, z: Tensor, y: Tensor, gamma: Tensor) -> Tensor:  # noqa: ANN401 - torch's
        solve = physics.row_solver(gamma)
        e = solve(physics.mask * (y - _product(z, physics.matrix.mT)))
        ctx.physics, ctx.solve = physics, solve
        ctx.save_for_backward(e, gamma)
        return z + gamma * _product(e, physics.matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        e, gamma = ctx.saved_tensors
        q = ctx.solve(ctx.physics.mask * _product(grad, ctx.physics.matrix.mT))
        slope = (q * e).sum(1, keepdim=True).sum_to_size(gamma.shape)
        return None, grad - gamma * _product(q, ctx.physics.matrix), gamma * q, slope


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """Return x M for (B, k) and (k, l), in the higher precision of the two."""
    dtype = _precision(x, matrix)
    return each(x.to(dtype), matrix.to(dtype)[None])


def _precision(*tensors: Tensor) -> torch.dtype:
    """Return the highest precision of the tensors, at least float32."""
    return reduce(torch.promote_types, (x.dtype for x in tensors), torch.float32)


def _most_removed(mask: Mask) -> int:
    """Bound the number of rows left out of an item; counting them on a GPU would need a synchronisation."""
    return int((mask == 0).sum(-1).amax()) if mask.device.type == "cpu" else mask.shape[-1]


def _dense(matrix: Tensor | np.ndarray, size: tuple[int, int]) -> Tensor:
    given = torch.as_tensor(matrix)
    height, width = size
    if given.ndim != 2 or len(given) == 0 or given.shape[1] != height * width:
        raise ValueError(
            f"a matrix of shape {tuple(given.shape)} does not fit images of {height} x {width}: expected (m, {height * width})"
        )
    if not bool(torch.isfinite(given).all()):
        raise ValueError("the matrix has entries that are not finite")
    return given.detach().to(given.dtype if given.dtype == torch.float64 else torch.float32, copy=True).contiguous()


def row_mask(mask: GivenMask, m: int) -> Mask:
    """Bring a mask of rows (m,) or (B, m) to float (B or 1, m) and refuse one that does not fit.

    >>> row_mask([0, 1, 1], 3)
    tensor([[0., 1., 1.]])
    """
    return read_mask(mask, [(m,)], (1, 2), f"{m} rows: give ({m},) or (B, {m})")


def gaussian_matrix(m: int, n: int, seed: int) -> Float[Tensor, "m n"]:
    """Draw A (m, n) float32 with independent entries N(0, 1/m) (the paper's section "Compressive sensing").

    Raises:
        ValueError: m or n is less than 1.

    >>> gaussian_matrix(235, 784, seed=0).shape
    torch.Size([235, 784])
    """
    if min(m, n) < 1:
        raise ValueError(f"a matrix has at least one row and one column, got {m} x {n}")
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed)) / m**0.5
