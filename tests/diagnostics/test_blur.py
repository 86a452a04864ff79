import pytest
import torch
from helpers import assert_adjoint, assert_prox_equals_cg, assert_pseudo_inverse, randn

from es_medical.diagnostics.blur import IsotropicBlur
from es_medical.groups import D4, FineRotations, Flips, Shifts

SIZES = [(8, 8), (7, 7), (6, 9)]


@pytest.fixture(params=SIZES, ids=str)
def size(request):
    return request.param


@pytest.fixture(params=[0.0, 0.8], ids=["ideal", "gaussian"])
def blur(request, size):
    return IsotropicBlur(size, cutoff=0.3, sigma=request.param, channels=2)


def images(size, n=2):
    return randn(n, 2, *size, dtype=torch.float64)


def test_adjoint_pseudo_inverse_and_prox_are_exact(blur, size):
    assert_adjoint(blur, images(size))
    assert_pseudo_inverse(blur, images(size))
    for gamma in (0.5, torch.tensor([0.1, 3.0], dtype=torch.float64)):
        assert_prox_equals_cg(blur, images(size), gamma)


def test_the_blur_keeps_the_dtype_of_images_and_their_mean(blur, size):
    x = randn(1, 2, *size)
    assert blur.A(x).dtype == torch.float32
    torch.testing.assert_close(blur.A(x).mean((-2, -1)), x.mean((-2, -1)))


def test_frequencies_beyond_the_cutoff_are_lost(size):
    blur = IsotropicBlur(size, cutoff=0.3)
    matrix = blur.A(torch.eye(size[0] * size[1], dtype=torch.float64).view(-1, 1, *size)).flatten(1)
    lost = int((torch.linalg.eigvalsh(matrix).abs() < 1e-12).sum())
    assert lost == int((blur.transfer == 0).sum()) > 0.3 * len(matrix)


@pytest.mark.parametrize("side", [7, 8])
def test_the_blur_commutes_with_shifts_and_quarter_turns(side):
    blur, x = IsotropicBlur((side, side), cutoff=0.3, sigma=0.8, channels=2), images((side, side), 1)
    for group in (Shifts((side, side)), D4()):
        g = group.elements()
        moved = group.apply(x.expand(len(g), -1, -1, -1), g)
        torch.testing.assert_close(blur.A(moved), group.apply(blur.A(x).expand_as(moved), g), rtol=0, atol=1e-12)


def test_the_blur_of_a_rectangle_commutes_with_flips():
    blur, x, g = IsotropicBlur((6, 9), cutoff=0.3, channels=2), images((6, 9), 1).expand(4, -1, -1, -1), Flips().elements()
    torch.testing.assert_close(blur.A(Flips().apply(x, g)), Flips().apply(blur.A(x), g), rtol=0, atol=1e-12)


def test_the_blur_hardly_changes_under_other_rotations():
    side = 33
    blur, x = IsotropicBlur((side, side), cutoff=0.15, sigma=2.0), torch.zeros(1, 1, side, side, dtype=torch.float64)
    x[..., 10:20, 14:22] = 1
    g, turn = torch.tensor([30]), FineRotations(1)
    gap = blur.A(turn.apply(x, g)) - turn.apply(blur.A(x), g)
    assert gap.norm() < 0.02 * blur.A(x).norm()


def test_senseless_arguments_are_refused(unchecked):
    with pytest.raises(ValueError, match=r"greater than 0 .* got 0 and 1"):
        IsotropicBlur((8, 8), cutoff=0, sigma=1)
    with pytest.raises(ValueError, match=r"takes \(B, 1, 8, 8\), got \(1, 1, 8, 7\)"):
        IsotropicBlur((8, 8)).A(torch.zeros(1, 1, 8, 7))
