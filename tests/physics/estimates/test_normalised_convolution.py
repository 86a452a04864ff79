import pytest
import torch
from helpers import randn
from operator_table import bits

from es_medical.groups import D4
from es_medical.physics import Inpainting
from es_medical.physics.estimates.normalised_convolution import HALF, WIDTHS, normalised_convolution


def smooth(n, channels, side, seed=0):
    """Low-pass images with values around 1."""
    spectrum = torch.fft.fft2(randn(n, channels, side, side, seed=seed, dtype=torch.float64))
    k = torch.fft.fftfreq(side, 1 / side)
    spectrum *= (k[:, None].square() + k.square() <= 9).double()
    x = torch.fft.ifft2(spectrum).real
    return 1 + x / x.abs().amax((1, 2, 3), keepdim=True)


def weights(size, width):
    """g between any two pixels, (H W, H W)."""
    height, length = size
    rows, columns = torch.arange(height * length) // length, torch.arange(height * length) % length
    squares = (rows[:, None] - rows) ** 2 + (columns[:, None] - columns) ** 2
    return torch.exp(-squares.double() / (2 * width**2))


@pytest.mark.parametrize("size", [(5, 4), (3, 40)])
def test_formula(size):
    """x <- x + (g * m (y - x)) / (g * m + HALF), first with m (y - x) and m added up over the channels."""
    y, mask = randn(2, 3, *size, dtype=torch.float64), bits(2, 3, *size).double()
    x = torch.zeros_like(y).flatten(2)
    m, measured = mask.flatten(2), (mask * y).flatten(2)
    for width in WIDTHS:
        g = weights(size, width)
        x = x + (measured - m * x).sum(1, keepdim=True) @ g / (m.sum(1, keepdim=True) @ g + HALF)
        x = x + (measured - m * x) @ g / (m @ g + HALF)
    torch.testing.assert_close(normalised_convolution(y, mask).flatten(2), x, rtol=0, atol=1e-12)


def test_estimate_turns_with_the_values_and_their_mask():
    group, g = D4(), D4().elements()
    y, mask = randn(8, 2, 6, 6, dtype=torch.float64), bits(8, 2, 6, 6).double()
    found = normalised_convolution(group.apply(y, g), group.apply(mask, g))
    torch.testing.assert_close(found, group.apply(normalised_convolution(y, mask), g), rtol=0, atol=1e-13)
    still = normalised_convolution(group.apply(y, g), mask)
    assert (found - still).abs().max() > 0.1  # a mask left in place gives another estimate


def test_estimate_moves_with_measured_values_that_stay_in_the_image():
    y, mask = randn(1, 2, 12, 12, dtype=torch.float64), bits(1, 2, 12, 12).double()
    mask[..., :3, :], mask[..., -3:, :], mask[..., :3], mask[..., -3:] = 0, 0, 0, 0
    found, still = (
        normalised_convolution(y.roll((3, -2), (-2, -1)), mask.roll((3, -2), (-2, -1))),
        normalised_convolution(y, mask),
    )
    torch.testing.assert_close(found[..., 3:, :-2], still[..., :-3, 2:], rtol=0, atol=1e-13)


def test_opposite_edges_do_not_see_each_other():
    mask = torch.ones(1, 1, 8, 30)
    mask[..., :2] = 0  # to be filled in
    y = torch.cat((torch.zeros(8, 15), torch.ones(8, 15)), 1)[None, None]
    assert normalised_convolution(y, mask)[..., :2].abs().max() < 0.02


@pytest.mark.parametrize("level", [1.0, -40.0])
def test_constant_image_is_found(level):
    mask = bits(1, 1, 16, 16, keep=0.3)
    found = normalised_convolution(torch.full((1, 1, 16, 16), level), mask)
    torch.testing.assert_close(found, torch.full_like(found, level), rtol=5e-3, atol=0)


@pytest.mark.parametrize("kind", ["values", "pixels", "columns"])
def test_estimate_of_smooth_images_is_far_better_than_the_incomplete_image(kind):
    x = smooth(4, 3, 32)
    mask = {"values": bits(1, 3, 32, 32, keep=0.4), "pixels": bits(1, 1, 32, 32, keep=0.4), "columns": bits(32)}[kind]
    A = Inpainting(mask, (32, 32), 3)
    y = A.A(x)
    assert (A.estimate(y) - x).square().mean() < 0.02 * (A.initial(y) - x).square().mean()


def test_channels_fill_in_for_each_other():
    """Grey images of which the first channel was not measured: the mean over the channels stands in."""
    x = smooth(2, 1, 16).expand(-1, 3, -1, -1)
    mask = torch.tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1)
    error = (normalised_convolution(mask * x, mask) - x).square().mean((0, 2, 3))
    alone = (normalised_convolution(mask[:, :1] * x[:, :1], mask[:, :1]) - x[:, :1]).square().mean()
    assert error.max() < 0.05 * alone


def test_item_without_any_value_is_zero_with_a_finite_derivative_and_leaves_the_others_alone():
    y, mask = randn(2, 1, 8, 8), bits(2, 1, 8, 8)
    mask[1] = 0
    y.requires_grad_()
    found = normalised_convolution(y, mask)
    found.square().sum().backward()
    assert (found[1] == 0).all()
    assert (y.grad[1] == 0).all()
    assert (y.grad[0] != 0).any()
    torch.testing.assert_close(found[:1], normalised_convolution(y[:1], mask[:1]))


def test_single_value_fills_the_whole_image():
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., 2, 5] = 1
    found = normalised_convolution(3 * mask, mask)
    assert (found - 3).abs().max() < 0.3
    assert found.argmax() == 2 * 8 + 5
