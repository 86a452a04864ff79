import math

import deepinv
import numpy as np
import pytest
import torch
from helpers import (
    assert_adjoint,
    assert_gradients,
    assert_prox_equals_cg,
    assert_pseudo_inverse,
    assert_scaling,
    assert_unchanged,
    randn,
    rng,
    snapshot,
    virtual_batch,
    within,
)

from es_medical.groups import D4, Flips, Shifts
from es_medical.metrics import equivariance
from es_medical.physics import Decimation, Inpainting, VirtualPhysics, bernoulli_mask, measure
from es_medical.physics.pixels import pixel_mask

SHAPES = [(3, 6, 6), (1, 7, 5), (2, 5, 8)]
DTYPES = [torch.float32, torch.float64]
GAMMAS = [1e-3, 0.7, 50.0, torch.tensor(2.5), torch.tensor([0.1, 3.0, 20.0])]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < 0.5).float()


def masks(grid, seed=0):
    """Columns, pixels and values, of the whole batch or of each of three items."""
    _, height, width = grid
    shared = [random_mask(*one, seed=seed) for one in ((width,), (height, width), grid)]
    return shared + [random_mask(3, *one, seed=seed + 1) for one in ((1, 1, width), (1, height, width), grid)]


def plain(shape):
    """Inpainting by every mask, decimation by 2 and 3; a batch of three."""
    channels, *size = shape
    return [
        *(Inpainting(mask, tuple(size), channels) for mask in masks(shape)),
        Decimation(tuple(size), 2, channels),
        Decimation(tuple(size), 3, channels),
    ]


def operators(shape):
    """Plain operators, and what a mask of each kind leaves of them."""
    return plain(shape) + [A.masked(m) for A in plain(shape) for m in masks(A.grid, seed=5)]


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


@pytest.mark.parametrize("dtype", DTYPES)
@shapes
def test_adjoint(shape, dtype):
    for physics in operators(shape):
        assert_adjoint(physics, randn(3, *shape, dtype=dtype))
        assert physics.A(randn(3, *shape, dtype=dtype)).dtype == dtype


@shapes
def test_pseudo_inverse(shape):
    for physics in operators(shape):
        assert_pseudo_inverse(physics, randn(3, *shape, dtype=torch.float64))


@pytest.mark.parametrize("gamma", GAMMAS, ids=str)
@shapes
def test_prox_of_masked_operator_equals_cg(shape, gamma):
    for physics in operators(shape):
        assert_prox_equals_cg(physics, randn(3, *shape, dtype=torch.float64), gamma)


@pytest.mark.parametrize("group", [D4(), Flips(), Shifts((6, 6))], ids=["D4", "flips", "shifts"])
def test_virtual_operator_and_its_parts(group):
    n, shape = group.order, (3, 6, 6)
    x = randn(n, *shape, dtype=torch.float64)
    for A in (Inpainting(bernoulli_mask(shape, 0.3, 0), (6, 6), 3), Decimation((6, 6), 2, 3)):
        for physics in (virtual_batch(A, group), virtual_batch(A, group).masked(random_mask(n, *A.grid))):
            assert_adjoint(physics, x)
            assert_pseudo_inverse(physics, x)
            assert_prox_equals_cg(physics, x, 0.7)


def test_step_of_each_item_is_not_taken_for_one_of_each_column():
    gamma, z = torch.tensor([0.1, 1.0, 5.0, 20.0]), randn(4, 4, 4, 4)  # as many items as channels, rows and columns
    for physics in (Inpainting(random_mask(4, 4, 4), (4, 4), 4), Decimation((4, 4), 2, 4)):
        y = physics.A(randn(4, 4, 4, 4, seed=1))
        alone = torch.cat([physics.prox_l2(z[i : i + 1], y[i : i + 1], float(gamma[i])) for i in range(4)])
        torch.testing.assert_close(physics.prox_l2(z, y, gamma), alone)


def test_gradients():
    for physics in operators((2, 3, 4)):
        assert_gradients(physics, randn(3, 2, 3, 4))


@pytest.mark.parametrize("gamma", [0.7, torch.tensor([0.1, 3.0, 20.0])], ids=str)
def test_scaling(gamma):
    for physics in operators((2, 5, 4)):
        assert_scaling(physics, randn(3, 2, 5, 4), gamma, 1e-5)


@shapes
def test_two_parts_make_the_whole(shape):
    x = randn(3, *shape)
    for A in plain(shape):
        for m in masks(A.grid, seed=5):
            A1, A2 = A.masked(A.mask * pixel_mask(m, A.grid)), A.masked(A.mask - A.mask * pixel_mask(m, A.grid))
            assert torch.equal(A1.A(x) + A2.A(x), A.A(x))
            assert (A1.A(x) * A2.A(x) == 0).all()


def test_noise_falls_on_measured_values_only():
    for A in (Inpainting(random_mask(3, 2, 8, 8), (8, 8), 2), Decimation((8, 8), 2, 2, mask=random_mask(3, 2, 4, 4))):
        noise = torch.stack([measure(A, torch.zeros(3, 2, 8, 8), 0.5, rng(i)) for i in range(400)])
        measured = A.mask == 1
        assert (noise[:, ~measured] == 0).all()
        assert within(noise[:, measured].square().mean(1), 0.25)
        assert within(noise[:, measured].mean(1), 0.0)


def test_equals_deepinvs_inpainting():
    mask = bernoulli_mask((3, 6, 5), 0.3, 0).float()
    ours, theirs = Inpainting(mask, (6, 5), 3), deepinv.physics.Inpainting((3, 6, 5), mask=mask)
    x, z = randn(2, 3, 6, 5), randn(2, 3, 6, 5, seed=1)
    torch.testing.assert_close(ours.A(x), theirs.A(x))
    torch.testing.assert_close(ours.A_adjoint(x), theirs.A_adjoint(x))
    torch.testing.assert_close(ours.prox_l2(z, ours.A(x), 2.0), theirs.prox_l2(z, theirs.A(x), 2.0))


def test_deepinv_model_and_loss_take_our_operator():
    for A in (Inpainting(random_mask(8, 8), (8, 8)), Decimation((8, 8))):
        x = randn(2, 1, 8, 8)
        y = A(x)
        assert A.adjointness_test(x) < 1e-5
        assert float(deepinv.loss.MCLoss()(y=y, x_net=x, physics=A)) < 1e-12


# masks, sharing and immutability


def test_mask_shapes_and_types_give_the_same_operator():
    columns, x = np.array([0, 1, 0, 1, 1, 0]), randn(3, 2, 4, 6)
    full = np.broadcast_to(columns, (2, 4, 6)).copy()
    given = [
        columns.tolist(),
        columns,
        columns.astype(bool),
        columns.astype(np.float64),
        full[0],
        full,
        full[None],
        full[:1, :1],
    ]
    given += [np.repeat(full[None], 3, 0), np.repeat(full[None, :1], 3, 0)]
    given += [torch.as_tensor(one) for one in given[1:]] + [torch.as_tensor(columns).half()]
    expected = Inpainting(columns, (4, 6), 2).A(x)
    for mask in given:
        assert torch.equal(Inpainting(mask, (4, 6), 2).A(x), expected)
        assert torch.equal(Inpainting(np.ones(6), (4, 6), 2).masked(torch.as_tensor(mask).float()).A(x), expected)
        decimated = Decimation((8, 12), 2, 2, mask)
        assert torch.equal(decimated.A(x.repeat_interleave(2, 2).repeat_interleave(2, 3)), expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(5,), (6, 4), (2, 4, 6), (1, 2, 4, 6), (3, 3, 3, 6), (4, 1), (1, 1, 3, 4, 6), ()])
def test_mask_that_does_not_fit_names_both_sizes(shape):
    for refused in (
        lambda: Inpainting(torch.ones(shape), (4, 6), 3),
        lambda: Inpainting(torch.ones(6), (4, 6), 3).masked(torch.ones(shape)),
        lambda: Decimation((8, 12), 2, 3, torch.ones(shape)),
        lambda: Decimation((8, 12), 2, 3).masked(torch.ones(shape)),
    ):
        with pytest.raises(ValueError, match="does not fit images of 3 x 4 x 6") as refusal:
            refused()
        assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("bad", [2.0, -1.0, 0.5, float("nan")])
def test_mask_values_other_than_0_and_1_are_refused(bad):
    with pytest.raises(ValueError, match="mask values must be 0 or 1"):
        pixel_mask([0.0, 1.0, bad, 1.0], (1, 4, 4))


@pytest.mark.parametrize("factor", [0, -1, 5])
def test_factor_out_of_range_is_refused(factor):
    with pytest.raises(ValueError, match=f"from 1 to 4, the shorter side of 4 x 6; got {factor}"):
        Decimation((4, 6), factor)


def test_images_and_measurements_of_another_size_are_refused(unchecked):
    inpainting, decimation = Inpainting(torch.ones(6), (4, 6), 2), Decimation((8, 12), 2, 2)
    for apply in (inpainting.A, inpainting.A_adjoint, decimation.A_adjoint):
        for shape in ((1, 2, 6, 4), (1, 1, 4, 6), (1, 2, 4, 1), (2, 4, 6)):
            with pytest.raises(ValueError, match=r"takes \(B, 2, 4, 6\), got"):
                apply(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"takes \(B, 2, 8, 12\), got \(1, 2, 8, 11\)"):
        decimation.A(torch.zeros(1, 2, 8, 11))
    with pytest.raises(ValueError, match=r"takes \(3, 2, 4, 6\), got \(2, 2, 4, 6\)"):
        inpainting.masked(torch.ones(3, 1, 1, 6)).A(torch.zeros(2, 2, 4, 6))


def test_masked_keeps_what_both_masks_keep_and_leaves_the_parent_alone():
    for A in (Inpainting(random_mask(2, 4, 6), (4, 6), 2), Decimation((8, 12), 2, 2, random_mask(2, 4, 6))):
        before, m = snapshot(A), random_mask(3, 1, 4, 6, seed=1)
        child = A.masked(m)
        assert type(child) is type(A)
        assert torch.equal(child.mask, A.mask * m)
        assert torch.equal(child.masked(m).mask, child.mask)
        child.mask.zero_()
        assert_unchanged(A, before)


def test_operator_keeps_its_own_mask():
    for make in (np.ones, torch.ones):
        given = make((4, 6))
        physics = [Inpainting(given, (4, 6)), Decimation((8, 12), mask=given)]
        given[...] = 0
        assert all((A.mask == 1).all() for A in physics)


def test_an_image_that_is_measured_is_not_changed():
    x = randn(2, 1, 4, 6)
    kept = x.clone()
    for A in (Inpainting(torch.ones(6), (4, 6)), Decimation((4, 6), 1)):
        y = A.A(x)
        y.zero_()
        A.A_adjoint(A.A(x)).zero_()
        assert torch.equal(x, kept)


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
