import deepinv
import numpy as np
import pytest
import torch
from helpers import (
    assert_adjoint,
    assert_gradients,
    assert_prox_equals_cg,
    assert_pseudo_inverse,
    assert_unchanged,
    line_mri,
    randn,
    snapshot,
)

from es_medical.physics import MRI
from es_medical.physics.fourier import fft2c
from es_medical.physics.mri import sampling_mask

SIZES = [(8, 8), (7, 7), (6, 9), (9, 4)]
DTYPES = [torch.float32, torch.float64]
GAMMAS = [1e-3, 0.7, 1.0, 50.0, torch.tensor(2.5), torch.tensor([0.1, 3.0, 20.0])]


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5).float()


def operators(size):
    """A with each shape of mask, and M A for each of these; a batch of three."""
    height, width = size
    masks = [random_mask(width), random_mask(*size), random_mask(3, 1, 1, width), random_mask(3, 1, *size)]
    plain = [MRI(mask, size) for mask in masks]
    second = [random_mask(3, 1, 1, width, seed=1), random_mask(3, 1, *size, seed=1), random_mask(width, seed=1)]
    return plain + [A.masked(m) for A in plain for m in second]


@pytest.mark.parametrize("size", SIZES)
def test_measurements_are_the_masked_centred_spectrum(size):
    x = randn(2, 2, *size)
    for physics in operators(size)[:2]:
        assert torch.equal(physics.A(x), physics.mask * fft2c(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_adjoint(size, dtype):
    for physics in operators(size):
        assert_adjoint(physics, randn(3, 2, *size, dtype=dtype))


@pytest.mark.parametrize("size", SIZES)
def test_pseudo_inverse(size):
    for physics in operators(size):
        assert_pseudo_inverse(physics, randn(3, 2, *size, dtype=torch.float64))


@pytest.mark.parametrize("size", SIZES)
def test_normal_operator_is_a_then_its_adjoint(size):
    x = randn(3, 2, *size, dtype=torch.float64)
    for physics in operators(size):
        torch.testing.assert_close(physics.A_adjoint_A(x), physics.A_adjoint(physics.A(x)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("size", SIZES)
def test_prox_of_masked_operator_equals_cg(size, gamma):
    for physics in operators(size):
        assert_prox_equals_cg(physics, randn(3, 2, *size, dtype=torch.float64), gamma)


def test_step_of_each_item_is_not_taken_for_one_of_each_column():
    physics, gamma = line_mri((4, 4)), torch.tensor([0.1, 1.0, 5.0, 20.0])  # as many items as columns
    z, y = randn(4, 2, 4, 4), randn(4, 2, 4, 4, seed=1)
    alone = torch.cat([physics.prox_l2(z[i : i + 1], y[i : i + 1], float(gamma[i])) for i in range(4)])
    torch.testing.assert_close(physics.prox_l2(z, y, gamma), alone)


def test_gradients():
    for physics in operators((3, 4)):
        assert_gradients(physics, randn(3, 2, 3, 4, dtype=torch.float64))


def test_mask_shapes_and_types_give_the_same_operator():
    size, lines = (6, 8), np.array([0, 1, 0, 1, 1, 1, 0, 0])
    full = np.broadcast_to(lines, size).copy()
    given = [lines.tolist(), lines, lines.astype(bool), lines.astype(np.float64), lines.astype(np.uint8)]
    given += [full, full[None, None], full[None, None].astype(np.int64), np.repeat(full[None, None], 3, 0)]
    given += [torch.as_tensor(one) for one in given[1:]] + [torch.as_tensor(lines).half()]
    x = randn(3, 2, *size)
    expected = MRI(lines, size).A(x)
    assert expected.dtype == torch.float32
    for mask in given:
        measured = MRI(mask, size).A(x)
        assert measured.dtype == torch.float32
        assert torch.equal(measured, expected)
        assert torch.equal(MRI(np.ones(8), size).masked(torch.as_tensor(mask, dtype=torch.float32)).A(x), expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(28,), (16, 28), (1, 1, 16, 28), (32, 16), (3, 16, 32), (1, 2, 16, 32), (1, 1, 15, 32), ()])
def test_mask_that_does_not_fit_names_both_sizes(shape):
    with pytest.raises(ValueError, match=r"16 x 32") as refusal:
        MRI(torch.ones(shape), (16, 32))
    assert str(shape) in str(refusal.value)
    with pytest.raises(ValueError, match=r"16 x 32"):
        MRI(torch.ones(32), (16, 32)).masked(torch.ones(shape))


@pytest.mark.parametrize("bad", [2.0, -1.0, 0.5, float("nan")])
def test_mask_values_other_than_0_and_1_are_refused(bad):
    with pytest.raises(ValueError, match="mask values must be 0 or 1"):
        sampling_mask([0.0, 1.0, bad, 1.0], (4, 4))


def test_masked_keeps_what_both_masks_keep_and_leaves_the_parent_alone():
    physics = line_mri((8, 8))
    before, m = snapshot(physics), random_mask(3, 1, 1, 8)
    child = physics.masked(m)
    assert torch.equal(child.mask, physics.mask * m)
    assert torch.equal(child.masked(m).mask, child.mask)
    child.mask.zero_()  # even a child that is tampered with shares nothing that can be written
    assert_unchanged(physics, before)


@pytest.mark.parametrize("make", [lambda: np.ones(8, dtype=np.float32), lambda: torch.ones(8), lambda: torch.ones(1, 1, 8, 8)])
def test_operator_keeps_its_own_mask(make):
    given = make()
    physics = MRI(given, (8, 8))
    given[...] = 0
    assert (physics.mask == 1).all()


# deepinv's own tools take our operators


def test_deepinv_adjointness_and_norm():
    physics = line_mri((8, 8))
    assert physics.adjointness_test(randn(2, 2, 8, 8)) < 1e-5
    assert abs(float(physics.compute_sqnorm(randn(1, 2, 8, 8), verbose=False)) - 1) < 1e-3


def test_deepinv_data_fidelity():
    physics, fidelity = line_mri((8, 8)), deepinv.optim.L2()
    x, y = randn(2, 2, 8, 8), physics.A(randn(2, 2, 8, 8, seed=1))
    expected = physics.A_adjoint(physics.A(x) - y)
    torch.testing.assert_close(fidelity.grad(x, y, physics), expected)
    torch.testing.assert_close(fidelity.prox(x, y, physics, gamma=0.7), physics.prox_l2(x, y, 0.7))


def test_deepinv_optimiser_solves_with_our_operator():
    physics = line_mri((8, 8))
    x = randn(2, 2, 8, 8)
    y = physics(x)
    solver = deepinv.optim.HQS(
        data_fidelity=deepinv.optim.L2(), prior=deepinv.optim.Tikhonov(), stepsize=1.0, lambda_reg=1.0, max_iter=60
    )
    with torch.no_grad():
        found = solver(y, physics)
    expected = physics.A_adjoint(y)  # every minimiser lies in the range of A^T, a shrunken zero-filled image
    scale = (found * expected).sum() / expected.square().sum()
    assert 0.1 < scale < 1
    torch.testing.assert_close(found, scale * expected, rtol=1e-3, atol=1e-3)


def test_deepinv_losses_and_models():
    physics = line_mri((8, 8))
    x = randn(2, 2, 8, 8)
    y = physics(x)
    assert float(deepinv.loss.MCLoss()(y=y, x_net=x, physics=physics)) < 1e-12
    model = deepinv.models.ArtifactRemoval(deepinv.models.DnCNN(2, 2, depth=2, nf=4, pretrained=None), mode="adjoint")
    assert model(y, physics).shape == x.shape


def test_equals_deepinvs_mri():
    size, mask = (8, 6), random_mask(1, 1, 8, 6)
    theirs, ours = deepinv.physics.MRI(mask=mask, img_size=(2, *size)), MRI(mask, size)
    x = randn(2, 2, *size)
    torch.testing.assert_close(ours.A(x), theirs.A(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.A_adjoint(theirs.A(x)), theirs.A_adjoint(theirs.A(x)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 2, 8, 1), (1, 2, 6, 8), (2, 2, 9, 6)])
def test_images_and_kspace_of_another_size_are_refused(shape, unchecked):
    physics = MRI([0, 1, 1, 1, 0, 1], (8, 6))
    for apply in (physics.A, physics.A_adjoint, physics.A_adjoint_A):
        with pytest.raises(ValueError, match=r"takes \(B, 2, 8, 6\), got"):
            apply(torch.zeros(shape))
