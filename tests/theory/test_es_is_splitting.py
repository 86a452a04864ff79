"""Theorem 3 of the paper, L_ES = L_SPLIT for equivariant reconstructors, as expectations over all g and all splits.

tests/losses/test_splitting.py has it for random splits of MRI. Here every g meets every split, with R2R noise and without, for
each kind of measurement, and the slopes are compared too: what training does, not only what the log says. One draw of g
in `ReynoldsAveraging` is one draw of g in the loss, so training in that mode descends on L_ES of the plain reconstructor.
"""

from unittest.mock import patch

import pytest
import torch
from equivariant_networks import Crooked, Isotropic, UnrolledGradient, averaged
from helpers import line_mri, randn
from theory_cases import DIFFERENCE_SETS, Listed, every_split, indicator, listed

from es_medical.groups import D4, Flips, Shifts
from es_medical.losses import EquivariantSplitting, splitting
from es_medical.networks import MoDL
from es_medical.physics import Batch, CompressedSensing, Inpainting, gaussian_matrix
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam

SIGMA = 0.3
CASES = {
    "MRI lines, D4": (lambda: line_mri((8, 8)), D4(), 2),
    "CT views, D4": (lambda: CT(ParallelBeam((8, 8), n_views=5), torch.ones(5)).double(), D4(), 3),
    "pixels, shifts": (lambda: Inpainting(indicator(13, DIFFERENCE_SETS[13]), (1, 13)), Shifts((1, 13)), 2),
    "pixels of a square, D4": (lambda: Inpainting(indicator(16, (1, 2, 7, 11, 12)).view(4, 4), (4, 4)), D4(), 3),
    "rows, flips": (lambda: CompressedSensing(0.4 * gaussian_matrix(5, 24, 0), (4, 6)), Flips(), 3),
}
cases = pytest.mark.parametrize("name", CASES)
sigmas = pytest.mark.parametrize("sigma", [0.0, SIGMA])


def case(name):
    """An operator, its group, every split, and noisy measurements of one image."""
    make, group, n1 = CASES[name]
    physics = make()
    y = physics.A(randn(1, *physics.img_size, seed=1, dtype=torch.float64))
    return physics, group, every_split(physics.mask, n1), y + 0.1 * physics.mask * randn(*y.shape, seed=2, dtype=torch.float64)


def losses(f, physics, group, splits, y, sigma, elements=None):
    """The loss of every g and split, (g, splits), with the same omega for each split; without g when there are no elements."""
    n = 1 if elements is None else len(elements)
    omega = sigma * randn(len(splits), *y.shape[1:], seed=3, dtype=torch.float64).repeat(n, *[1] * (y.ndim - 1))
    m1 = splits.repeat(n, *[1] * (splits.ndim - 1))
    explicit = None if elements is None else listed(group, elements.repeat_interleave(len(splits), 0))
    loss = EquivariantSplitting(Listed(m1), sigma, consistency_weight=0.6, group=explicit)
    with patch.object(splitting, "recorruption", lambda physics1, *_: physics1.mask * omega):
        return loss(f, Batch(y.expand(len(m1), *y.shape[1:]), physics)).total.view(n, -1)


def equivariant(physics, group):
    """One of each kind: by its parts, with the proximal step, and by the average over the group."""
    channels = physics.img_size[0]
    phi = Isotropic(channels)
    return [UnrolledGradient(phi), MoDL(phi, n_iterations=2).double(), averaged(group, channels)]


@sigmas
@cases
def test_es_is_splitting_for_equivariant_reconstructors(name, sigma):
    physics, group, splits, y = case(name)
    for f in equivariant(physics, group):
        es = losses(f, physics, group, splits, y, sigma, group.elements())
        plain = losses(f, physics, group, splits, y, sigma)
        torch.testing.assert_close(es, plain.expand_as(es), rtol=1e-9, atol=0)
        parameters = list(f.parameters())
        slopes, expected = (torch.autograd.grad(value.mean(), parameters) for value in (es, plain))
        for slope, other in zip(slopes, expected, strict=True):
            assert (slope - other).norm() < 1e-9 * other.norm()


@sigmas
@cases
def test_es_is_not_splitting_for_other_reconstructors(name, sigma):
    physics, group, splits, y = case(name)
    f = UnrolledGradient(Crooked(physics.img_size[0]))
    with torch.no_grad():
        es = losses(f, physics, group, splits, y, sigma, group.elements())
        plain = losses(f, physics, group, splits, y, sigma)
    torch.testing.assert_close(es[:1], plain)  # the identity
    assert ((es[1:] - plain).norm(dim=1) > 0.01 * plain.norm()).all()
    assert (es.mean(0) - plain).norm() > 0.01 * plain.norm()  # nor is the mean over g, of the same splits


@cases
def test_a_random_term_of_the_average_in_the_splitting_loss_is_es_of_the_plain_reconstructor(name):
    """L_SPLIT of T_g r(y, A T_g) is the term of g in L_ES of r; the average of all terms has no greater loss (Jensen)."""
    physics, group, splits, y = case(name)
    network = averaged(group, physics.img_size[0])

    def term(g):
        return lambda y, physics, generator: network(y, physics, g=g.expand(len(y), *g.shape))

    with torch.no_grad():
        es = losses(network.reconstructor, physics, group, splits, y, 0.0, group.elements())
        terms = torch.cat([losses(term(g), physics, group, splits, y, 0.0) for g in group.elements()])
        full = losses(network, physics, group, splits, y, 0.0)
    torch.testing.assert_close(terms, es, rtol=1e-9, atol=0)
    assert (full[0] <= es.mean(0)).all()
    assert full.mean() < 0.99 * es.mean()
