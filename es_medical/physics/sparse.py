"""A sparse matrix and its transpose in torch, on any device, as a differentiable product."""

import warnings
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.autograd import Function

with warnings.catch_warnings():  # torch warns once that CSR is in beta state
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=False)


class Csr(NamedTuple):
    """A matrix (m, n) in compressed sparse rows. The parts are plain tensors, which modules can hold, move and share."""

    rows: Tensor
    """Where each row starts, (m + 1,), int32 where possible: MKL's and cuSPARSE's fast products take it."""
    columns: Tensor
    values: Tensor
    shape: tuple[int, int]

    def to(self, values: Tensor) -> "Csr":
        """Return the matrix on the device of `values` and in their precision."""
        rows, columns = self.rows.to(values.device), self.columns.to(values.device)
        return Csr(rows, columns, self.values.to(values), self.shape)

    def matmul(self, x: Tensor) -> Tensor:
        """Multiply columns x (n, B), not differentiable; the product is in the higher precision of the two."""
        dtype = torch.promote_types(self.values.dtype, x.dtype)
        values = self.values.to(dtype)
        on = torch.is_autocast_enabled(x.device.type)  # to enter it costs as much as a small product
        with torch.autocast(x.device.type, enabled=False) if on else nullcontext():
            matrix = torch.sparse_csr_tensor(self.rows, self.columns, values, self.shape, check_invariants=False)
            x = x.to(dtype)
            return (matrix @ x[:, 0].contiguous())[:, None] if x.shape[1] == 1 else matrix @ x


def csr_pair(matrix: csr_array) -> tuple[Csr, Csr]:
    """Return a matrix and its transpose."""
    return _from_scipy(matrix), _from_scipy(matrix.T.tocsr())


def _from_scipy(matrix: csr_array) -> Csr:
    rows, columns, values = (torch.from_numpy(part) for part in (matrix.indptr, matrix.indices, matrix.data))
    return Csr(rows, columns, values, (int(matrix.shape[0]), int(matrix.shape[1])))


class _Product(Function):
    """M x for each item; its derivative is the product with M^T, to any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Csr, transpose: Csr) -> Tensor:  # noqa: ANN401 - torch's context
        ctx.matrix, ctx.transpose, ctx.dtype = matrix, transpose, x.dtype
        return matrix.matmul(x.t()).t().contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        return _Product.apply(grads[0], ctx.transpose, ctx.matrix).to(ctx.dtype), None, None


def product(matrix: Csr, transpose: Csr, x: Tensor) -> Tensor:
    """Multiply each item of x (B, n) by a matrix (m, n), all in one sparse product: (B, m), differentiable.

    >>> matrix, transpose = csr_pair(csr_array([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]))
    >>> product(matrix, transpose, torch.ones(1, 3))
    tensor([[3., 3.]], dtype=torch.float64)
    """
    return _Product.apply(x, matrix, transpose)


def largest_singular_value(matrix: Csr, transpose: Csr, tolerance: float = 1e-6, max_iter: int = 1000) -> Tensor:
    """Return |M|, float64 and 0-dimensional, of a matrix without negative entries, by power iterations from ones.

    The leading singular vectors of such a matrix have no negative entries (Perron, Frobenius), so the start is never
    orthogonal to them. Stops when |M| changes by less than `tolerance` of its value.
    """
    v, norm = torch.ones(matrix.shape[1], 1, dtype=matrix.values.dtype, device=matrix.values.device), 0.0
    for _ in range(max_iter):
        u = matrix.matmul(v / v.norm())
        previous, norm = norm, float(u.double().norm())
        if abs(norm - previous) <= tolerance * norm:
            break
        v = transpose.matmul(u)
    return torch.tensor(norm, dtype=torch.float64, device=v.device)
