import deepinv
import torch
from helpers import line_mri, randn

from es_medical.physics import MRI


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5).float()


# deepinv's own tools take our operators


def test_deepinv_adjointness_and_norm():
    physics = line_mri((8, 8))
    assert physics.adjointness_test(randn(2, 2, 8, 8)) < 1e-5
    assert abs(float(physics.compute_sqnorm(randn(1, 2, 8, 8), verbose=False)) - 1) < 1e-3


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


def test_equals_deepinvs_mri():
    size, mask = (8, 6), random_mask(1, 1, 8, 6)
    theirs, ours = deepinv.physics.MRI(mask=mask, img_size=(2, *size)), MRI(mask, size)
    x = randn(2, 2, *size)
    torch.testing.assert_close(ours.A(x), theirs.A(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.A_adjoint(theirs.A(x)), theirs.A_adjoint(theirs.A(x)), rtol=0, atol=1e-5)
