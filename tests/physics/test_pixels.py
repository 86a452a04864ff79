import math

import pytest
import torch
from helpers import randn, rng

from es_medical.groups import D4, Shifts
from es_medical.metrics import equivariance
from es_medical.physics import Decimation, Inpainting, VirtualPhysics, measure

SHAPES = [(3, 6, 6), (1, 7, 5), (2, 5, 8)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < 0.5).float()


# A, A^T, A^dagger and the proximal step


@shapes
def test_inpainting_keeps_values_where_the_mask_is_1(shape):
    x, mask = randn(3, *shape), random_mask(*shape)
    y = Inpainting(mask, shape[1:], shape[0]).A(x)
    assert torch.equal(y[:, mask == 1], x[:, mask == 1])
    assert (y[:, mask == 0] == 0).all()


@pytest.mark.parametrize("factor", [1, 2, 3, 5])
@shapes
def test_decimation_keeps_every_fth_row_and_column(shape, factor):
    channels, height, width = shape
    x, A = randn(2, *shape), Decimation((height, width), factor, channels)
    y = A.A(x)
    assert A.grid == (channels, -(-height // factor), -(-width // factor))
    assert tuple(y.shape[1:]) == A.grid
    back = A.A_adjoint(y)
    for i in range(height):
        for j in range(width):
            kept = i % factor == 0 and j % factor == 0
            assert torch.equal(back[:, :, i, j], x[:, :, i, j] if kept else torch.zeros(2, channels))
            assert not kept or torch.equal(y[:, :, i // factor, j // factor], x[:, :, i, j])


# masks, sharing and immutability


@pytest.mark.parametrize("factor", [0, -1, 5])
def test_factor_out_of_range_is_refused(factor):
    with pytest.raises(ValueError, match=f"from 1 to 4, the shorter side of 4 x 6; got {factor}"):
        Decimation((4, 6), factor)


# the paper's check of MAP reconstructors


def test_map_reconstructor_is_exactly_equivariant():
    """Appendix "Empirical verification of the equivariance of MAP reconstructors": error 0, EQUIV infinite, for each angle.

    x ~ N(0, tau^2 I), A decimates by 2, y = A x + N(0, sigma^2 I): the maximum a posteriori is the proximal step from 0 with
    gamma = tau^2 / sigma^2, and in closed form tau^2 / (tau^2 + sigma^2) T_g^-1 A^T y.
    """
    n, tau, sigma, group = 256, 0.7, 0.2, D4()
    A, x = Decimation((128, 128), 2), tau * randn(n, 1, 128, 128)
    y = measure(A, x, sigma, rng(1))

    def reconstruct(y, physics):
        return physics.prox_l2(torch.zeros(len(y), 1, *physics.image_size), y, tau**2 / sigma**2)

    plain = reconstruct(y, A)
    for quarter, element in enumerate((0, 3, 6, 5)):
        g = torch.full((n,), element)
        assert torch.equal(group.apply(x, g), x.rot90(quarter, (-2, -1)))  # T_g is the rotation by quarter x 90 degrees
        found = reconstruct(y, VirtualPhysics(A, group, g))
        assert torch.equal(found, group.inverse(plain, g))  # |f(y, A T_g) - T_g^-1 f(y, A)|^2 = 0, EQUIV = infinity
        closed = tau**2 / (tau**2 + sigma**2) * A.A_adjoint(y).rot90(-quarter, (-2, -1))
        torch.testing.assert_close(found, closed)
    assert not torch.equal(plain.rot90(1, (-2, -1)), plain)  # not because every image were the same


def test_equiv_of_the_map_reconstructor_is_its_largest_value_for_every_shift():
    A, y = Decimation((8, 8), 2), randn(2, 1, 4, 4)
    found = equivariance(lambda y, physics: physics.prox_l2(torch.zeros(2, 1, 8, 8), y, 3.0), y, A, Shifts((8, 8)))
    assert (found == math.inf).all()
