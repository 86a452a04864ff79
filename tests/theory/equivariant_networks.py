"""Nonlinear denoisers that commute with rotations, flips and shifts, one that does not, and the unrolled gradient."""

import torch
from helpers import randn
from torch import nn

from es_medical.networks.reynolds import ReynoldsAveraging


class Isotropic(nn.Module):
    """phi(x) = x + tanh(K x): K mixes each pixel with its neighbours, alike in all directions, beyond the edges as well."""

    def __init__(self, channels, seed=0):
        super().__init__()
        self.weight = nn.Parameter(0.5 * randn(3, channels, channels, seed=seed, dtype=torch.float64))

    def forward(self, x):
        rows = x.roll(1, -2) + x.roll(-1, -2)
        beside = rows + x.roll(1, -1) + x.roll(-1, -1)
        corners = rows.roll(1, -1) + rows.roll(-1, -1)
        return x + torch.tanh(torch.einsum("koc,kbchw->bohw", self.weight, torch.stack((x, beside, corners))))


class Crooked(Isotropic):
    """The same with a direction and a place that it likes best: it commutes with nothing."""

    def forward(self, x):
        place = randn(*x.shape[1:], seed=3, dtype=torch.float64)
        return super().forward(x) + 0.3 * torch.tanh(x.roll((1, 2), (-2, -1)) + place)


class UnrolledGradient(nn.Module):
    """x_0 = 0, x_{k+1} = phi(x_k - gamma A^T (A x_k - y)), the second family of the paper's theorem."""

    def __init__(self, denoiser, n_iterations=3, step=0.7):
        super().__init__()
        self.denoiser, self.n_iterations, self.step = denoiser, n_iterations, step

    def forward(self, y, physics, generator=None):
        x = torch.zeros_like(physics.A_adjoint(y))
        for _ in range(self.n_iterations):
            x = self.denoiser(x - self.step * physics.A_adjoint(physics.A(x) - y))
        return x


def averaged(group, channels):
    """The third family: a reconstructor that is not equivariant, averaged over the group."""
    return ReynoldsAveraging(UnrolledGradient(Crooked(channels), n_iterations=2 if group.order <= 8 else 1), group).eval()
