"""The exact mean of the ES loss as a quadratic function of a linear reconstructor's weights, and where it is least."""

from unittest.mock import patch

import torch
from helpers import dot
from theory_cases import Listed, eye, listed, root

from es_medical.losses import EquivariantSplitting, splitting
from es_medical.physics import Batch


def expected_loss(f, draws, y_covariance, sigma=0.0, alpha=0.5, weight=1.0, explicit=True):
    """Exact mean of `EquivariantSplitting` of a linear f over g, M1, measurements of covariance C_y + sigma^2 I, and omega.

    The loss is a quadratic form of (y, omega), which are independent: its mean is its sum over the columns of their roots.

    Args:
        explicit: hand the group to the loss; else it is the plain splitting loss of A, for equivariant reconstructors.
    """
    shape, n = draws.physics.A(eye(draws.physics.img_size)[:1]).shape[1:], len(y_covariance)
    measured = torch.diag((draws.physics.mask.double().expand(1, *shape)).flatten())
    y, omega = root(y_covariance + sigma**2 * measured), sigma * measured[measured.diagonal() > 0]
    if not sigma:
        omega = omega[:0]
    y, omega = torch.cat((y, omega.new_zeros(len(omega), n))), torch.cat((omega.new_zeros(len(y), n), omega))
    pairs, columns = len(draws.g) if explicit else len(draws.m1) // draws.group.order, len(y)
    y, omega = (part.repeat(pairs, 1).view(-1, *shape) for part in (y, omega))
    m1, g = (part[:pairs].repeat_interleave(columns, 0) for part in (draws.m1, draws.g))
    group = listed(draws.group, g) if explicit else None
    loss = EquivariantSplitting(Listed(m1), sigma, alpha, weight, group)
    with patch.object(splitting, "recorruption", lambda physics, *_: physics.mask * omega):
        return loss(f, Batch(y, draws.physics)).total.sum() / pairs


def minimise(f, value, blocks=True):
    """Solve the normal equations H w = b of a quadratic function of f's weights: the solution of least norm.

    By conjugate gradients from zero, for which H p is the change of the slope, and so within the range of H.

    Args:
        value: () -> the function, of the weights that f has.
        blocks: the weights of different sets don't meet in the function, so each set is a system of its own.
    """
    slope = slope_of(f, value)
    w = torch.zeros(f.weight.flatten(1).shape if blocks else (1, f.weight.numel()), dtype=torch.float64)
    start = slope(w)
    r = p = -start
    rr = first = dot(r, r)
    for _ in range(300):
        active = rr > 1e-22 * first
        if not active.any():
            break
        moved = slope(p) - start
        step = torch.where(active, rr / dot(p, moved).clamp(min=1e-300), 0.0)[:, None]
        w, r = w + step * p, r - step * moved
        new = dot(r, r)
        p, rr = r + torch.where(active, new / rr, 0.0)[:, None] * p, torch.where(active, new, rr)
    assert not (rr > 1e-18 * first).any(), "the normal equations are not solved"
    slope(w)


def slope_of(f, value):
    """Return w -> the gradient of `value` at f's weights w, which stay there."""

    def slope(w):
        with torch.no_grad():
            f.weight.copy_(w.view_as(f.weight))
        return torch.autograd.grad(value(), f.weight)[0].view_as(w)

    return slope


def hessian(f, value):
    """H of a quadratic function of f's weights, a block for every set of sites: (sets, k, k)."""
    slope, shape = slope_of(f, value), f.weight.flatten(1).shape
    start = slope(torch.zeros(shape, dtype=torch.float64))
    return torch.stack([slope(one.expand(shape)) - start for one in torch.eye(shape[1], dtype=torch.float64)], 2)
