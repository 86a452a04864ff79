import pytest
import torch
from helpers import coil_maps, line_mri, randn, rng
from operator_table import bits

from es_medical.groups import D4
from es_medical.physics import MRI, MultiCoilMRI, measure
from es_medical.physics.estimates.focal import FLOOR, WEIGHT, WIDTH, focal_least_squares


def disc(n, side=32):
    """Complex textures in a disc, air around it."""
    place = torch.linspace(-1, 1, side)
    inside = (place[:, None] ** 2 + place**2 < 0.2).float()
    return inside * (1 + 0.3 * randn(n, 2, side, side))


def spread(v):
    """s from the definition: the mean of |v|^2 with Gaussian weights around each pixel, relative to the largest."""
    place = torch.arange(v.shape[-1]).double()
    g = torch.exp(-((place[:, None] - place) ** 2) / (2 * WIDTH**2))
    g = g / g.sum(1, keepdim=True)
    energy = g @ v.square().sum(1, keepdim=True) @ g.T
    return ((energy / energy.amax((1, 2, 3), keepdim=True) + FLOOR) / (1 + FLOOR)).sqrt()


def test_estimate_solves_its_normal_equations():
    """A^T (A x - y) + w x / s^2 = 0."""
    A = MRI(bits(8), (8, 8)).double()
    y = A.A(randn(3, 2, 8, 8, dtype=torch.float64))
    x, v = A.estimate(y), A.A_adjoint(y)
    torch.testing.assert_close(A.A_adjoint_A(x) + WEIGHT * x / spread(v) ** 2, v, rtol=0, atol=1e-8)


@pytest.mark.parametrize("sigma", [0.005, 0.1])
@pytest.mark.parametrize("coils", [0, 3])
def test_air_determines_missing_samples(coils, sigma):
    x = disc(4)
    mask = line_mri((32, 32), acceleration=3.0).mask
    A = MultiCoilMRI(mask, coil_maps(1, coils, (32, 32))) if coils else MRI(mask, (32, 32))
    y = measure(A, x, sigma, rng())
    start, estimate = (one - x for one in (A.initial(y), A.estimate(y)))
    assert estimate.square().mean() < 0.6 * start.square().mean()


def test_estimate_turns_with_its_normal_operator():
    """focal(T N T^-1, T v) = T focal(N, v), with N = A^T A of any mask."""
    group, g, A = D4(), D4().elements(), MRI(bits(8, 1, 8, 8), (8, 8)).double()
    v = A.A_adjoint(A.A(randn(8, 2, 8, 8, dtype=torch.float64)))
    found = focal_least_squares(lambda x: group.apply(A.A_adjoint_A(group.inverse(x, g)), g), group.apply(v, g), torch.ones(1))
    expected = group.apply(focal_least_squares(A.A_adjoint_A, v, torch.ones(1)), g)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_result_does_not_depend_on_the_scale_of_the_maps():
    maps, mask = coil_maps(2, 3, (8, 8), torch.float64), bits(8)
    A, B = MultiCoilMRI(mask, maps), MultiCoilMRI(mask, 5 * maps)
    x = randn(2, 2, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(A.estimate(A.A(x)), B.estimate(B.A(x)), rtol=0, atol=1e-8)


def test_item_of_which_nothing_is_measured_is_zero_with_a_finite_derivative():
    v = randn(2, 2, 8, 8) * torch.tensor([1.0, 0.0]).view(-1, 1, 1, 1)
    v.requires_grad_()
    found = focal_least_squares(lambda x: x * torch.tensor([1.0, 0.0]).view(-1, 1, 1, 1), v, torch.ones(1))
    found.square().sum().backward()
    assert (found[1] == 0).all()
    assert (found[0] != 0).any()
    assert v.grad.isfinite().all()
