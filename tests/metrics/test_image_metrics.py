import math

import pytest
import torch
from helpers import randn

from es_medical.engine.evaluator import image_scores
from es_medical.metrics import MAX_DB, magnitude, psnr, ssim, volume_psnr


def image(*shape, seed=0):
    return randn(*shape, seed=seed).abs() + 0.1


def test_magnitude_of_complex_and_real_images():
    x = torch.tensor([3.0, 4.0]).view(1, 2, 1, 1)
    assert magnitude(x).item() == 5
    assert torch.equal(magnitude(x[:, :1]), x[:, :1])


def test_psnr_is_its_formula():
    x, x_hat = randn(3, 2, 8, 8), randn(3, 2, 8, 8, seed=1)
    error = (x_hat.norm(dim=1) - x.norm(dim=1)).square().mean(dim=(1, 2))
    expected = [10 * math.log10(2.5**2 / float(one)) for one in error]
    torch.testing.assert_close(psnr(x_hat, x, 2.5), torch.tensor(expected), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_psnr_of_real_and_rgb_images_takes_the_mean_over_all_values(channels):
    x, x_hat = randn(2, channels, 6, 7), randn(2, channels, 6, 7, seed=1)
    expected = -10 * (x_hat - x).square().mean(dim=(1, 2, 3)).log10()
    torch.testing.assert_close(psnr(x_hat, x, 1.0), expected)
    assert volume_psnr(x_hat, x) == pytest.approx(10 * math.log10(x.max() ** 2 / (x_hat - x).square().mean()), abs=1e-4)


def test_error_of_one_colour_is_spread_over_three():
    x = torch.full((1, 3, 8, 8), 0.5)
    x_hat = x.clone()
    x_hat[:, 2] += 0.1
    assert psnr(x_hat, x, 1.0).item() == pytest.approx(20 + 10 * math.log10(3), abs=1e-3)


def test_ssim_of_rgb_images_is_the_mean_of_those_of_their_channels():
    x, x_hat = image(2, 3, 16, 15), image(2, 3, 16, 15, seed=1)
    x_hat[:, 1] = x[:, 1]  # a perfect channel among three
    of_channels = torch.stack([ssim(x_hat[:, i : i + 1], x[:, i : i + 1], 2.0) for i in range(3)])
    torch.testing.assert_close(of_channels[1], torch.ones(2))
    torch.testing.assert_close(ssim(x_hat, x, 2.0), of_channels.mean(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_complex_psnr_is_of_complex_images(channels):
    x = image(1, channels, 8, 8)
    with pytest.raises(ValueError, match=rf"complex images have 2 channels.*got \(1, {channels}, 8, 8\)"):
        psnr(x, x, 1.0, complex_valued=True)


@pytest.mark.parametrize(
    ("channels", "names"), [(1, {"psnr", "ssim"}), (2, {"psnr", "psnr_complex", "ssim"}), (3, {"psnr", "ssim"})]
)
def test_scores_of_an_image_are_those_of_its_kind(channels, names):
    x, unknown = image(2, channels, 16, 16), torch.full((2,), torch.nan)
    assert set(image_scores(x, x, torch.ones(2), unknown)) == names
    assert set(image_scores(x, x, torch.ones(2), torch.ones(2))) == names | {"psnr_volume"}


def test_psnr_of_the_volume_and_of_the_slice_are_two_numbers():
    """The same error in slices whose maxima are 1 and 0.1: the stated formulae, 20 dB apart for the second slice."""
    x = torch.zeros(2, 1, 4, 4)
    x[0, 0, 0, 0], x[1, 0, 0, 0] = 1.0, 0.1
    x_hat = x + 0.01
    slices = psnr(x_hat, x, magnitude(x).flatten(1).max(1).values)
    torch.testing.assert_close(slices, torch.tensor([40.0, 20.0]), rtol=1e-4, atol=0)
    torch.testing.assert_close(psnr(x_hat, x, 1.0), torch.tensor([40.0, 40.0]), rtol=1e-4, atol=0)
    assert volume_psnr(x_hat, x) == pytest.approx(40.0, rel=1e-4)
    x_hat = x + torch.tensor([0.01, 0.03]).view(2, 1, 1, 1)  # one mean over all slices, not a mean of decibels
    assert volume_psnr(x_hat, x) == pytest.approx(-10 * math.log10((0.01**2 + 0.03**2) / 2), rel=1e-4)


def test_data_range_of_each_item():
    x, x_hat = image(3, 2, 16, 16), image(3, 2, 16, 16, seed=1)
    ranges = torch.tensor([1.0, 2.0, 0.5])
    for metric in (psnr, ssim):
        alone = torch.cat([metric(x_hat[i : i + 1], x[i : i + 1], float(ranges[i])) for i in range(3)])
        torch.testing.assert_close(metric(x_hat, x, ranges), alone)


def test_data_range_must_be_stated():
    x = image(1, 2, 16, 16)
    for metric in (psnr, ssim):
        with pytest.raises(TypeError, match="data_range"):
            metric(x, x)


def test_magnitude_metrics_do_not_see_the_phase_and_the_complex_one_does():
    x = image(1, 2, 16, 16) / 4
    c, s = math.cos(0.5), math.sin(0.5)
    turned = torch.stack((c * x[:, 0] - s * x[:, 1], s * x[:, 0] + c * x[:, 1]), 1)
    assert psnr(turned, x, 1.0) == MAX_DB
    torch.testing.assert_close(ssim(turned, x, 1.0), torch.ones(1))
    expected = -10 * math.log10((2 * math.sin(0.25)) ** 2 * float(x.square().mean()))  # |e^0.5i - 1| = 2 sin 0.25
    assert psnr(turned, x, 1.0, complex_valued=True).item() == pytest.approx(expected, rel=1e-4)


def test_identical_images_have_the_capped_value():
    x = image(2, 2, 16, 16)
    assert (psnr(x, x, 1.0) == MAX_DB).all()
    assert volume_psnr(x, x) == MAX_DB
    torch.testing.assert_close(ssim(x, x, 1.0), torch.ones(2))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), torch.tensor([1.0, 0.0])])
def test_data_range_that_is_not_positive_is_refused(bad):
    x = image(2, 2, 16, 16)
    for metric in (psnr, ssim):
        with pytest.raises(ValueError, match="data_range must be positive"):
            metric(x, x, bad)


def test_volume_of_zeros_has_no_psnr():
    with pytest.raises(ValueError, match="image of zeros"):
        volume_psnr(image(2, 2, 8, 8), torch.zeros(2, 2, 8, 8))


def test_nan_stays_nan():
    x = image(2, 2, 16, 16)
    broken = x.clone()
    broken[1, 0, 0, 0] = float("nan")
    assert psnr(broken, x, 1.0).isnan().tolist() == [False, True]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(1, 1, 32, 1), (1, 1, 1, 32), (2, 1, 32, 32), (1, 2, 32, 32), (32, 32)])
def test_shapes_that_would_broadcast_are_refused(shape):
    x = torch.ones(1, 1, 32, 32)
    for metric in (lambda a, b: psnr(a, b, 1.0), lambda a, b: ssim(a, b, 1.0), volume_psnr):
        with pytest.raises(ValueError, match="differ in shape") as refusal:
            metric(torch.ones(shape), x)
        assert str(tuple(shape)) in str(refusal.value)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(1, 4, 16, 16), (1, 0, 16, 16), (2, 16, 16), (1, 3, 1, 16, 16)])
def test_images_of_other_kinds_are_refused(shape):
    for metric in (lambda a, b: psnr(a, b, 1.0), lambda a, b: ssim(a, b, 1.0)):
        with pytest.raises(ValueError, match=r"1 \(real\), 2 \(complex\) or 3 \(RGB\) channels, got") as refusal:
            metric(torch.ones(shape), torch.ones(shape))
        assert str(shape) in str(refusal.value)


@pytest.mark.usefixtures("unchecked")
def test_rgb_images_have_no_magnitude():
    with pytest.raises(ValueError, match=r"expected images \(B, 1 or 2, H, W\)"):
        magnitude(torch.ones(1, 3, 4, 4))


@pytest.mark.parametrize("size", [(8, 8), (10, 32), (32, 10)])
def test_ssim_of_small_images_names_both_sizes(size):
    x = image(1, 2, *size)
    with pytest.raises(ValueError, match=rf"at least 11 pixels a side, got {size[0]} x {size[1]}"):
        ssim(x, x, 1.0)


@pytest.mark.parametrize(("a", "b", "data_range"), [(0.2, 0.8, 1.0), (0.9, 1.0, 1.0), (2.0, 3.0, 5.0), (0.0, 1.0, 1.0)])
def test_ssim_of_constant_images_is_the_luminance_term(a, b, data_range):
    """(2 a b + c1) / (a^2 + b^2 + c1) with c1 = (0.01 data_range)^2: the variances vanish."""
    c1 = (0.01 * data_range) ** 2
    found = ssim(torch.full((1, 1, 16, 16), a), torch.full((1, 1, 16, 16), b), data_range)
    assert found.item() == pytest.approx((2 * a * b + c1) / (a**2 + b**2 + c1), abs=2e-3)


def test_ssim_is_the_formula_with_a_gaussian_window():
    x, x_hat, c1, c2 = image(1, 1, 14, 15).double(), image(1, 1, 14, 15, seed=1).double(), 0.02**2, 0.06**2  # range 2
    offsets = torch.arange(-5, 6, dtype=torch.float64)
    line = torch.exp(-(offsets**2) / (2 * 1.5**2))
    window = (line[:, None] * line / line.sum() ** 2)[None, None]

    def mean(one):
        return torch.nn.functional.conv2d(one, window)

    a, b = mean(x), mean(x_hat)
    variances, covariance = mean(x * x) - a * a + mean(x_hat * x_hat) - b * b, mean(x * x_hat) - a * b
    expected = ((2 * a * b + c1) * (2 * covariance + c2) / ((a * a + b * b + c1) * (variances + c2))).mean()
    torch.testing.assert_close(ssim(x_hat.float(), x.float(), 2.0), expected[None].float(), rtol=1e-4, atol=1e-5)


def test_ssim_depends_on_the_stated_range_and_not_on_the_unit():
    x, x_hat = image(2, 2, 16, 16), image(2, 2, 16, 16, seed=1)
    assert (ssim(x_hat, x, 1.0) - ssim(x_hat, x, 2.0)).abs().min() > 1e-3
    for metric in (psnr, ssim):
        torch.testing.assert_close(metric(x_hat, x, 1.0), metric(x_hat * 1e-5, x * 1e-5, 1e-5), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(metric(x_hat, x, 1.0), metric(x_hat * 4000, x * 4000, 4000.0), rtol=1e-3, atol=1e-4)


def test_data_range_is_one_number_or_one_for_each():
    x = torch.ones(3, 1, 4, 4)
    with pytest.raises(ValueError, match="give one number, or one for each"):
        psnr(x, x, torch.ones(3, 1))


def test_psnr_does_not_depend_on_the_unit():
    x, x_hat = torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8)
    for unit in (1e-25, 1e20):
        torch.testing.assert_close(psnr(unit * x_hat, unit * x, unit), psnr(x_hat, x, 1.0), rtol=1e-4, atol=1e-3)
