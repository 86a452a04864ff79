import pytest
import torch
from helpers import dot, randn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from es_medical.groups import FineRotations

SIZES = [(9, 9), (8, 8), (6, 11), (1, 5)]


def smooth(size, n=1):
    """Low-pass images inside the disc that no rotation cuts."""
    rows, columns = (torch.linspace(-1, 1, side, dtype=torch.float64) for side in size)
    radius = torch.hypot(rows[:, None], columns)
    image = torch.exp(-8 * ((rows[:, None] - 0.2).square() + (columns + 0.1).square())) * (radius < 0.9)
    return image.expand(n, 1, *size)


@pytest.mark.parametrize("size", SIZES)
def test_rotation_is_that_of_torchvision_item_by_item(size):
    """Direction, centre, interpolation and the zeros outside, all at once."""
    elements = torch.tensor([0, 1, 30, 37, 90, 135, 180, 271, 359])
    x = randn(len(elements), 2, *size)
    found = FineRotations().apply(x, elements)
    for image, k, turned in zip(x, elements, found, strict=True):
        expected = rotate(image[None], float(k), InterpolationMode.BILINEAR)[0]
        torch.testing.assert_close(turned, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("size", SIZES)
def test_adjoint_is_the_transpose_of_the_interpolation(size):
    elements = torch.tensor([0, 1, 37, 90, 222, 359])
    x, z = randn(6, 2, *size, dtype=torch.float64), randn(6, 2, *size, seed=1, dtype=torch.float64)
    rotations = FineRotations()
    gap = dot(rotations.apply(x, elements), z) - dot(x, rotations.adjoint(z, elements))
    assert (gap.abs() <= 1e-12 * x.norm() * z.norm()).all()


def test_rotation_back_is_not_the_transpose():
    """The same test notices the usual shortcut, T_-k in place of T_k^T."""
    x, z = randn(20, 1, 16, 16, dtype=torch.float64), randn(20, 1, 16, 16, seed=1, dtype=torch.float64)
    rotations, k = FineRotations(), torch.tensor([37]).expand(20)
    true, back = rotations.adjoint(z, k), rotations.apply(z, -k)
    assert (true - back).norm() > 0.05 * true.norm()
    gap = (dot(rotations.apply(x, k), z) - dot(x, back)).abs()
    assert (gap > 1e-9 * x.norm() * z.norm()).all()


def test_derivatives_of_rotation_and_adjoint_are_each_other():
    rotations, k = FineRotations(15), torch.tensor([2, 11])
    x = randn(2, 1, 5, 6, dtype=torch.float64).requires_grad_()
    v = randn(2, 1, 5, 6, seed=1, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: rotations.apply(z, k), x)
    assert torch.autograd.gradcheck(lambda z: rotations.adjoint(z, k), x)
    torch.testing.assert_close(torch.autograd.grad(rotations.apply(x, k), x, v)[0], rotations.adjoint(v, k))
    torch.testing.assert_close(torch.autograd.grad(rotations.adjoint(x, k), x, v)[0], rotations.apply(v, k))


def test_quarter_turns_are_those_of_the_pixel_grid():
    x = randn(4, 2, 8, 8, dtype=torch.float64)
    turned = FineRotations(90).apply(x, torch.arange(4))
    expected = torch.stack([x[k].rot90(k, (-2, -1)) for k in range(4)])
    torch.testing.assert_close(turned, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(FineRotations(90).adjoint(turned, torch.arange(4)), x, rtol=1e-10, atol=1e-10)


def test_identity_and_whole_turns_change_nothing():
    x = randn(3, 1, 6, 7, dtype=torch.float64)
    torch.testing.assert_close(FineRotations().apply(x, torch.tensor([0, 360, -360])), x, rtol=1e-10, atol=1e-10)


def test_smooth_image_is_turned_and_turned_back():
    x, k = smooth((65, 65), 3), torch.tensor([10, 37, 200])
    rotations = FineRotations()
    there = rotations.apply(x, k)
    assert ((there - x).flatten(1).norm(dim=1) > 0.05 * x[0].norm()).all()
    assert (rotations.apply(there, -k) - x).norm() < 0.05 * x.norm()
    assert (there.sum((1, 2, 3)) / x.sum((1, 2, 3)) - 1).abs().max() < 1e-2


def test_batch_is_its_items():
    x, k = randn(4, 2, 7, 9), torch.tensor([3, 45, 190, 300])
    alone = torch.cat([FineRotations().apply(x[i : i + 1], k[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(FineRotations().apply(x, k), alone)


@pytest.mark.parametrize("degrees", [0.0, -1.0, 7.0, 361.0, float("nan")])
def test_angle_that_makes_no_full_turn_is_refused(degrees):
    with pytest.raises(ValueError, match=f"got {degrees}"):
        FineRotations(degrees)


@pytest.mark.parametrize("degrees", [0.1, 0.3, 1 / 7, 1, 360])
def test_angles_that_divide_a_turn_are_accepted(degrees):
    assert FineRotations(degrees).order == round(360 / degrees)
