import torch
from helpers import randn

from es_medical.physics import CompressedSensing, gaussian_matrix
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.physics.estimates.differences import differences
from es_medical.physics.estimates.smooth import RIDGE, WEIGHT, smooth_least_squares


def dense(apply, n):
    """The matrix of a linear map of images of n pixels, flattened."""
    side = round(n**0.5)
    return torch.stack([apply(one.view(1, 1, side, side)).flatten() for one in torch.eye(n).double()], 1)


def test_estimate_solves_the_normal_equations():
    A = CompressedSensing(gaussian_matrix(6, 16, 0).double(), (4, 4))
    y = randn(1, 6, dtype=torch.float64)
    matrix, D = dense(A.A, 16), dense(differences, 16)
    w = WEIGHT * float(matrix.square().sum()) / 16  # of the mean diagonal of A^T A
    expected = torch.linalg.solve(matrix.T @ matrix + w * (D.T @ D + RIDGE * torch.eye(16)), matrix.T @ y[0])
    torch.testing.assert_close(A.estimate(y).flatten(), expected, rtol=0, atol=1e-9)


def test_result_does_not_depend_on_the_units_of_the_operator():
    x = randn(2, 1, 8, 8, dtype=torch.float64)
    estimates = []
    for unit_norm in (True, False):
        A = CT(ParallelBeam((8, 8), n_views=6), unit_norm=unit_norm).double()
        estimates.append(A.estimate(A.A(x)))
    torch.testing.assert_close(estimates[0], estimates[1], rtol=0, atol=1e-8)


def test_item_of_which_nothing_is_measured_is_zero_with_a_finite_derivative():
    v = torch.zeros(1, 1, 8, 8, requires_grad=True)
    found = smooth_least_squares(lambda x: 0 * x, v, 1.0)
    found.sum().backward()
    assert (found == 0).all()
    assert v.grad.isfinite().all()


def test_smooth_image_is_found_from_few_views_better_than_by_back_projection():
    place = torch.linspace(-1, 1, 32)
    x = torch.exp(-4 * (place[:, None] ** 2 + (place - 0.2) ** 2))[None, None]
    A = CT(ParallelBeam((32, 32), n_views=6))
    y = A.A(x)
    assert (A.estimate(y) - x).square().mean() < 0.2 * (A.initial(y) - x).square().mean()
