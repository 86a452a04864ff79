"""Theorem 2 of the paper: five families of reconstructors with f(y, A T_g) = T_g^-1 f(y, A), for every operator and group.

Two of them are closed forms in the matrix of A T_g, which is found from A T_g itself, column by column; they share nothing
with the adjoint, the pseudo-inverse and the proximal step of `VirtualPhysics`. Each is also tried with one assumption of the
theorem broken (a denoiser, a mean or a distribution of images that is not invariant), and then has to fail.
Fine rotations of a scanner (`Rotations`) act on the operator alone, so the property can't be asked of them; a scanner
that they turned is one of the operators. Masks of each item are in tests/networks.
"""

import math
from functools import lru_cache

import pytest
import torch
from equivariant_networks import Crooked, Isotropic, UnrolledGradient, averaged
from helpers import coil_maps, line_mri, randn, rng
from theory_cases import eye, invariant_covariance

from es_medical.groups import D4, Flips, Shifts
from es_medical.networks import ArtifactRemoval, MoDL
from es_medical.physics import MRI, CompressedSensing, Decimation, Inpainting, MultiCoilMRI, VirtualPhysics, gaussian_matrix
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import FanBeam, ParallelBeam
from es_medical.splits import Split

SIGMA = 0.3
TOLERANCE, BROKEN = 1e-9, 1e-3
pytestmark = pytest.mark.usefixtures("unchecked")  # half of the time would be spent on checks of shapes


def points(*shape, seed=1):
    return (torch.rand(shape, generator=rng(seed)) < 0.5).float()


def scanner(size, turn=0.0):
    """Fewer rays than pixels, none of which grazes a corner: the pseudo-inverse is well conditioned."""
    return CT(ParallelBeam(size, n_views=5, n_detectors=7, pitch=1.3)).with_turns([0.0, turn]).turned(1).double()


def fan_scanner(size):
    return CT(FanBeam(size, n_views=5, n_detectors=7, pitch=1.9, source_distance=30, detector_distance=15)).double()


OPERATORS = {
    "MRI, lines": (lambda size: line_mri(size, 1.4), "lines"),
    "MRI, points": (lambda size: MRI(points(*size), size), "samples"),
    "multi-coil MRI": (lambda size: MultiCoilMRI(points(size[1]), coil_maps(1, 3, size, torch.float64)), "lines"),
    "CT, parallel": (scanner, "views"),
    "CT, fan": (fan_scanner, "views"),
    "CT, turned": (lambda size: scanner(size, 7.0), "views"),
    "inpainting": (lambda size: Inpainting(points(2, *size), size, 2), "values"),
    "decimation": (lambda size: Decimation(size, 2, 2), "pixels"),
    "compressed sensing": (lambda size: CompressedSensing(gaussian_matrix(20, size[0] * size[1], 0), size), "rows"),
}
GROUPS = {
    "D4": (D4(), (8, 8), D4().elements()),
    "flips": (Flips(), (8, 10), Flips().elements()),
    "shifts": (Shifts((8, 8)), (8, 8), torch.tensor([[0, 0], [1, 0], [3, 6]])),
}
operators = pytest.mark.parametrize("operator", OPERATORS)
groups = pytest.mark.parametrize("group", GROUPS)


@lru_cache(maxsize=4)
def matrices(physics):
    """A, or A T_g of every item, as matrices (items, numbers of y, numbers of x), from what they make of unit images."""
    units, n = eye(physics.img_size), 1
    if isinstance(physics, VirtualPhysics):
        n, group = len(physics.g), physics.group
        physics = VirtualPhysics(physics.physics, group, physics.g.repeat_interleave(len(units), 0))
    return physics.A(units.repeat(n, 1, 1, 1)).reshape(n, len(units), -1).mT


def map_estimator(covariance):
    """argmax p(x | y): least |A x - y|^2 / sigma^2 + x^T C^-1 x, from its normal equations."""

    def f(y, physics):
        a = matrices(physics)
        system = a.mT @ a / SIGMA**2 + torch.linalg.inv(covariance)
        return torch.linalg.solve(system, a.mT @ y.flatten(1)[..., None] / SIGMA**2).view(-1, *physics.img_size)

    return f


def map_of_templates(templates):
    """argmax p(x | y) where x is any of a few images, all as likely: the one whose measurements are the nearest."""

    def f(y, physics):
        shown = torch.stack([physics.A(one.expand(len(y), *one.shape)) for one in templates], 1)
        return templates[(shown - y[:, None]).flatten(2).norm(dim=2).argmin(1)]

    return f


def mmse_estimator(*covariances):
    """E[x | y] where x is from one of several Gaussian distributions, all as likely: linear for one, else not.

    Each gives C A^T K^-1 y with K = A C A^T + sigma^2, and counts as much as exp(-y^T K^-1 y / 2) / sqrt(det K).
    """

    def f(y, physics):
        a, v = matrices(physics), y.flatten(1)[..., None]
        noise = SIGMA**2 * torch.eye(a.shape[1], dtype=a.dtype)
        means, scores = [], []
        for covariance in covariances:
            k = a @ covariance @ a.mT + noise
            u = torch.linalg.solve(k, v)
            means.append((covariance @ a.mT @ u).view(-1, *physics.img_size))
            scores.append(-0.5 * (v * u).sum((1, 2)) - 0.5 * torch.linalg.slogdet(k).logabsdet)
        weights = torch.stack(scores).softmax(0)
        return sum(weight[:, None, None, None] * mean for weight, mean in zip(weights, means, strict=True))

    return f


def orbit(group, shape):
    """All T_g x of an image x."""
    elements = group.elements()
    return group.apply(2 * randn(1, *shape, seed=4, dtype=torch.float64).expand(len(elements), *shape), elements)


def families(group, shape, invariant=True):
    """Every family, with what the theorem assumes or without."""
    phi = Isotropic(shape[0]) if invariant else Crooked(shape[0])
    covariance = invariant_covariance(group if invariant else Identity(), shape)
    templates = orbit(group, shape)[:: 1 if invariant else group.order]
    return {
        "artifact removal, adjoint": ArtifactRemoval(phi),
        "artifact removal, pseudo-inverse": ArtifactRemoval(phi, "pseudo_inverse"),
        "unrolled gradient": UnrolledGradient(phi),
        "unrolled proximal steps": MoDL(phi, n_iterations=2, step=0.7).double(),
        "Reynolds averaging": averaged(group, shape[0]) if invariant else averaged(group, shape[0]).reconstructor,
        "MAP, Gaussian": map_estimator(covariance),
        "MAP, templates": map_of_templates(templates),
        "MMSE, Gaussian": mmse_estimator(covariance),
        "MMSE, mixture": mmse_estimator(covariance, 0.2 * covariance @ covariance),
    }


class Identity(Flips):
    """The group of one element."""

    def elements(self):
        return torch.zeros(1, dtype=torch.long)


def case(operator, group):
    """M1 A T_g of several g, and noisy measurements of one image."""
    (make, unit), (group, size, elements) = OPERATORS[operator], GROUPS[group]
    physics = make(size)
    split = physics.masked(Split(unit, 0.6)(physics, 1, rng(2)))
    y = physics.A(randn(1, *physics.img_size, seed=4, dtype=torch.float64))
    noisy = y + SIGMA * physics.mask * randn(*y.shape, seed=5, dtype=torch.float64)
    return VirtualPhysics(split, group, elements), split.mask * noisy


def gap(f, virtual, y):
    """Largest |f(y, A T_g) - T_g^-1 f(y, A)| over g, of which the first is the identity, relative to the largest of f(y, A)."""
    n = len(virtual.g)
    with torch.no_grad():
        found = f(y.expand(n, *y.shape[1:]), virtual)
    plain = found[:1].expand_as(found).contiguous()
    return float((found - virtual.group.inverse(plain, virtual.g)).abs().max() / plain.abs().max())


@groups
@operators
def test_families_of_the_theorem_are_equivariant_and_fail_without_its_assumptions(operator, group):
    virtual, y = case(operator, group)
    good, bad = (families(virtual.group, virtual.img_size, invariant) for invariant in (True, False))
    for name in good:
        assert gap(good[name], virtual, y) < TOLERANCE, name
        assert gap(bad[name], virtual, y) > BROKEN, name


def test_map_and_mmse_of_gaussian_images_agree_and_those_of_a_mixture_are_not_linear():
    physics, shape = line_mri((4, 4)), (2, 4, 4)
    covariance = invariant_covariance(D4(), shape)
    y = physics.A(randn(2, *shape, dtype=torch.float64))
    mmse, mixture = mmse_estimator(covariance), mmse_estimator(covariance, 0.2 * covariance @ covariance)
    torch.testing.assert_close(map_estimator(covariance)(y, physics), mmse(y, physics))
    torch.testing.assert_close(mmse(3 * y, physics), 3 * mmse(y, physics))
    assert (mixture(3 * y, physics) - 3 * mixture(y, physics)).norm() > 0.01 * mixture(y, physics).norm()
    assert math.isclose(float(mixture(y, physics).norm()), float(mmse(y, physics).norm()), rel_tol=0.9)
