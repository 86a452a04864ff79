"""Stochastic Lanczos quadrature: the spectrum of a matrix from its products with vectors."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""x -> H x for a symmetric H, both (B, n)."""

MEMORY = 2**27
"""Bytes that the bases of vectors which go together may take: five vectors of 100 steps for CT at 256 x 256."""
CONVERGED = 0.1
"""A Ritz value is a single eigenvalue if its residual is below this share of the distance to its neighbours."""
NEGLIGIBLE = 1e-10
"""Weight below which a node is a copy, due to rounding, of one that has converged."""
ROUNDING = 1e-6
"""Distance, as a share of the largest node, up to which nodes count as equal: single precision does not separate them."""
STEP_WIDTH = 1e-6
"""Width of a step of the cumulative weight, as a share of the square root of the largest node."""


class Measures(NamedTuple):
    """The spectral measure of H seen from each of B vectors v: weights |<v, u_i>|^2 / |v|^2 at the eigenvalues of u_i."""

    nodes: Float[Tensor, "b k"]
    """Ritz values, ascending."""
    weights: Float[Tensor, "b k"]
    """They sum to 1."""
    residuals: Float[Tensor, "b k"]
    """Bound on the distance from a node to an eigenvalue of H."""

    def below(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weight at eigenvalues of at most each of the levels (L,): (B, L)."""
        parts = (self.nodes.cpu().numpy(), self.weights.cpu().numpy(), self.residuals.cpu().numpy())
        return np.stack([_below(*item, levels) for item in zip(*parts, strict=True)])


class Tridiagonal(NamedTuple):
    """T = V^T H V of each vector's Krylov space: its diagonal, and its off-diagonal with the last remainder."""

    alpha: Float[Tensor, "b k"]
    beta: Float[Tensor, "b k"]

    def measures(self, steps: int | None = None) -> Measures:
        """Return nodes and weights of the Gauss quadrature, of the first `steps` steps only, if given."""
        k = self.alpha.shape[1] if steps is None else steps
        off = torch.diag_embed(self.beta[:, : k - 1], 1)
        values, vectors = torch.linalg.eigh(torch.diag_embed(self.alpha[:, :k]) + off + off.mT)
        return Measures(values, vectors[:, 0].square(), (self.beta[:, k - 1 : k] * vectors[:, -1]).abs())


def lanczos(product: Product, start: Float[Tensor, "b n"], steps: int) -> Tridiagonal:
    """Run Lanczos' recurrence from each of the vectors `start`, with full reorthogonalisation.

    As many go together in one product as have their bases in `MEMORY`, at least one. Vectors keep the precision of `start`, T
    is float64. Once a Krylov space is exhausted, further nodes have no weight.

    Args:
        product: x -> H x, (B, n).
        start: the vectors, not zero.
        steps: k, at most n.
    """
    together = max(1, MEMORY // (steps * start[0].nbytes))
    alpha, beta = zip(*(_recurrence(product, some, steps) for some in start.split(together)), strict=True)
    return Tridiagonal(torch.cat(alpha), torch.cat(beta))


def _recurrence(product: Product, start: Float[Tensor, "b n"], steps: int) -> Tridiagonal:
    size, n = start.shape
    basis = start.new_zeros(size, steps, n)
    alpha, beta = start.new_zeros(2, size, steps, dtype=torch.float64)
    v, scale = start / start.norm(dim=1, keepdim=True), torch.zeros(size, dtype=torch.float64, device=start.device)
    for k in range(steps):
        basis[:, k] = v
        w = product(v)
        alpha[:, k] = (w.double() * v.double()).sum(1)
        known = basis[:, : k + 1]
        for _ in range(2):  # twice is enough (Kahan, Parlett)
            w = w - torch.bmm(torch.bmm(known, w[..., None]).mT, known)[:, 0]
        beta[:, k] = w.double().norm(dim=1)
        scale = torch.maximum(scale, alpha[:, k].abs() + beta[:, k])
        going = beta[:, k] > 10 * torch.finfo(v.dtype).eps * scale
        beta[:, k] *= going
        v = torch.where(going[:, None], w / beta[:, k].clamp(min=1e-300).to(w)[:, None], 0)
    return Tridiagonal(alpha, beta)


def _below(
    nodes: NDArray[np.float64], weights: NDArray[np.float64], residuals: NDArray[np.float64], levels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate the cumulative weight between the nodes, monotone and smooth in the square root of the eigenvalue.

    Near 0 the nodes are evenly spaced in the square root, in which densities that grow like 1/sqrt (Gaussian rows) are flat.
    At a node the true cumulative weight lies between the sum of the weights before it and that with its own (Chebyshev,
    Markov, Stieltjes): the middle is taken. A node that has converged to a single eigenvalue holds its weight in one step.
    """
    nodes, weights, residuals = _distinct(nodes, weights, residuals)
    levels, roots = (np.sqrt(part.clip(0)) for part in (levels, nodes))
    gaps = np.diff(nodes, prepend=-np.inf, append=np.inf)
    gap = np.minimum(gaps[:-1], gaps[1:])
    step = residuals <= CONVERGED * gap
    after = np.cumsum(weights)
    before = after - weights
    foot = roots - STEP_WIDTH * (roots[-1] or 1.0)
    x = np.stack((foot, roots), 1).flatten()
    y = np.stack((before, np.where(step, after, (before + after) / 2)), 1).flatten()
    kept = np.stack((step, np.ones_like(step)), 1).flatten()
    inside = PchipInterpolator(x[kept], y[kept])(levels.clip(x[kept][0], roots[-1])) if kept.sum() > 1 else 0.0
    return np.where(levels < roots[0], 0.0, np.where(levels >= roots[-1], after[-1], inside))


def _distinct(
    nodes: NDArray[np.float64], weights: NDArray[np.float64], residuals: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Join nodes that differ only by rounding, as in a null space: weighted mean, sum of weights, weighted residual."""
    nodes = nodes.clip(0)
    first = np.flatnonzero(np.diff(nodes, prepend=-np.inf) > ROUNDING * max(nodes[-1], 1e-300))
    total = np.add.reduceat(weights, first)
    heavy = total > NEGLIGIBLE
    nodes, residuals = (np.add.reduceat(weights * part, first)[heavy] / total[heavy] for part in (nodes, residuals))
    return nodes, total[heavy], residuals
