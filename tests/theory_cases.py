"""Gaussian images, linear reconstructors and every draw of the ES loss: small cases where the theory can be computed exactly.

A split A_1 = M1 A T_g is known to a reconstructor by A_1^T y_1 and A_1^T A_1, as the artifact removal network and MoDL know
it: by the set of pixels (k-space points in MRI) that it shows, not by the detector that read each. The matrices A T_g with
numbered rows would contain more: a row that shows pixel p of an inpainting reveals g, and no Q_{A_1} would have full rank.
"""

import copy
from itertools import combinations
from typing import NamedTuple

import torch
from helpers import randn
from torch import nn

from es_medical.physics import MRI, VirtualPhysics
from es_medical.physics.fourier import fft2c, ifft2c
from es_medical.splits import Split

DIFFERENCE_SETS = {
    7: (0, 1, 3),
    13: (0, 1, 3, 9),
    21: (3, 6, 7, 12, 14),
    31: (1, 5, 11, 24, 25, 27),
    57: (0, 1, 3, 13, 32, 36, 43, 52),
}
"""Perfect difference sets: every whole number 1 ... n - 1 is the difference of one pair, modulo n."""
SQUARES_19 = (1, 4, 5, 6, 7, 9, 11, 16, 17)
"""The squares modulo 19: every difference occurs four times."""


def indicator(n, places):
    return torch.zeros(n).index_fill(0, torch.tensor(places), 1.0)


def eye(shape):
    """All unit images, (n, C, H, W) float64."""
    n = shape[0] * shape[1] * shape[2]
    return torch.eye(n, dtype=torch.float64).view(n, *shape)


def dense(physics):
    """A as a matrix (numbers of y, n), of an operator of any batch."""
    return physics.A(eye(physics.img_size)).flatten(1).T


def invariant_covariance(group, shape, elements=None, seed=0):
    """C_x (n, n), positive definite, with T_g C_x T_g^T = C_x: that of Gaussian images whose distribution is invariant."""
    n = shape[0] * shape[1] * shape[2]
    i, b = torch.arange(n), randn(n, n, seed=seed, dtype=torch.float64)
    one = torch.exp(-(i[:, None] - i).abs() / 3.0) + 0.2 * b @ b.T / n
    elements = group.elements() if elements is None else elements
    return torch.stack([_moved(_moved(one, group, g, shape).T, group, g, shape) for g in elements]).mean(0)


def _moved(matrix, group, g, shape):
    """T_g applied to every column."""
    images = matrix.T.reshape(-1, *shape)
    return group.apply(images, g.expand(len(images), *g.shape)).flatten(1).T


class Listed(Split):
    """Given masks M1, one for each item, in place of random ones."""

    def __init__(self, masks):
        super().__init__("pixels", 0.5)
        self.masks = masks

    def __call__(self, physics, batch, generator):
        assert batch == len(self.masks)
        return self.masks


def listed(group, elements):
    """The group with given elements, one for each item, in place of random ones."""
    other = copy.copy(group)
    other.sample = lambda n, generator, device="cpu": elements
    return other


def every_split(mask, n1):
    """All M1 of n1 units of those that a mask (1, ...) measures: (K, ...)."""
    places = mask.flatten().nonzero()[:, 0].tolist()
    return torch.stack([indicator(mask.numel(), chosen).view(mask.shape[1:]) for chosen in combinations(places, n1)])


class Draws(NamedTuple):
    """All pairs (g, M1), each as likely as the others, and the sites that each shows."""

    physics: object
    group: object
    g: torch.Tensor
    m1: torch.Tensor
    sites: torch.Tensor
    """Sorted numbers of the pixels or k-space points that A_1 shows, (pairs, sites)."""

    @property
    def virtual(self):
        """A T_g of every pair."""
        return VirtualPhysics(self.physics, self.group, self.g)


def every_draw(physics, group, n1):
    masks, elements = every_split(physics.mask, n1), group.elements()
    g = elements.repeat_interleave(len(masks), 0)
    m1 = masks.repeat(len(elements), *[1] * (masks.ndim - 1))
    return Draws(physics, group, g, m1, shown(VirtualPhysics(physics, group, g).masked(m1), len(g)))


def coordinates(physics):
    """The orthonormal transform in which A^T A is diagonal, and its inverse: none for pixels, F for MRI."""
    while isinstance(physics, VirtualPhysics):
        physics = physics.physics
    return (fft2c, ifft2c) if isinstance(physics, MRI) else (lambda x: x, lambda x: x)


def shown(physics, n):
    """Numbers of the sites that each of n items of a (masked, virtual) operator measures, (n, sites)."""
    transform, inverse = coordinates(physics)
    probe = inverse(torch.ones(n, *physics.img_size, dtype=torch.float64))
    seen = transform(physics.A_adjoint(physics.A(probe))).abs().sum(1).flatten(1) > 1e-9
    return seen.nonzero()[:, 1].view(n, -1)


def rows_of(sites, physics):
    """R (channels * sites, n): the values of an image at sites."""
    transform, _ = coordinates(physics)
    values = transform(eye(physics.img_size)).flatten(2)[:, :, list(sites)]
    return values.flatten(1).T


def conditional_grams(draws):
    """Q_{A_1} = E[(A T_g)^T A T_g | A_1] for every set of sites, by going through all pairs: {sites: (n, n)}."""
    n, grams, found = len(eye(draws.physics.img_size)), {}, {}
    for g, sites in zip(draws.g, draws.sites.tolist(), strict=True):
        name = tuple(g.flatten().tolist())
        if name not in grams:
            a = dense(VirtualPhysics(draws.physics, draws.group, g.expand(n, *g.shape)))
            grams[name] = a.T @ a
        found.setdefault(tuple(sites), []).append(grams[name])
    return {sites: torch.stack(terms).mean(0) for sites, terms in found.items()}


class Table(nn.Module):
    """f(y_1, A_1) = B_S R_S A_1^T y_1: a separate matrix B_S for every set S of sites. It uses measurements alone."""

    def __init__(self, draws):
        super().__init__()
        self.sets = sorted(set(map(tuple, draws.sites.tolist())))
        channels, height, width = draws.physics.img_size
        self.base = height * width
        self.register_buffer("keys", self._key(torch.tensor(self.sets)))
        shape = len(self.sets), channels * len(self.sets[0]), channels * height * width
        self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))

    def forward(self, y, physics, generator=None):
        transform, _ = coordinates(physics)
        image = physics.A_adjoint(y)
        sites = shown(physics, len(y))
        values = transform(image).flatten(2).gather(2, sites[:, None].expand(-1, image.shape[1], -1)).flatten(1)
        matrices = self.weight[torch.searchsorted(self.keys, self._key(sites))]
        return torch.einsum("bk,bkn->bn", values, matrices).view_as(image)

    def _key(self, sites):
        """One whole number for each set, in the order of the sorted sets."""
        return sum(sites[:, i] * self.base ** (sites.shape[1] - 1 - i) for i in range(sites.shape[1]))

    def estimators(self):
        """{S: B_S (n, channels * sites)}."""
        return {sites: matrix.T for sites, matrix in zip(self.sets, self.weight.detach(), strict=True)}


def wiener(covariance, rows, noise=0.0):
    """B = C R^T (R C R^T + s^2 I)^-1, for which B z = E[x | z] with z = R x + s n."""
    return torch.linalg.solve(inputs(covariance, rows, noise), rows @ covariance).T


def inputs(covariance, rows, noise=0.0):
    """Covariance of z = R x + s n."""
    return rows @ covariance @ rows.T + noise**2 * torch.eye(len(rows), dtype=rows.dtype)


def energy(matrix, covariance):
    """E |B z|^2 = tr(B C_z B^T)."""
    return float((matrix @ covariance * matrix).sum())


def distance(found, best, covariance):
    """Root mean square of (B - B*) z relative to that of B* z."""
    return (energy(found - best, covariance) / energy(best, covariance)) ** 0.5


def root(covariance):
    """Columns c_k with sum_k c_k c_k^T = C, for the mean of a quadratic form: E q(y) = sum_k q(c_k). Rows of the result."""
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * values.clamp(min=0).sqrt())[:, values > 1e-12 * values[-1]].T


def measured_covariance(physics, covariance):
    """C_y = A C_x A^T of the noiseless measurements: all the information in infinitely many of them."""
    a = dense(physics)
    return a @ covariance @ a.T
