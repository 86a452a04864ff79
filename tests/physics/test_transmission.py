"""Photon counts: back and forth between counts and logarithm, no photon at all, and the noise of a logarithm."""

import math

import pytest
import torch
from helpers import randn, rng, within

from es_medical.physics.noise import target_share
from es_medical.physics.transmission import Transmission
from es_medical.randomness import item_generator

SCAN = Transmission(1e4, 7.0)


def sinogram(n=2_000):
    """A noiseless one: from air to what one photon in 400 comes through."""
    return torch.linspace(0, 6 / 7, 12).view(1, 1, 3, 4).expand(n, -1, -1, -1)


@pytest.mark.parametrize("photons", [1.0, 50.0, 1e4, 1e6, 1e7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_come_back_exactly_from_the_logarithm(photons, dtype):
    """Up to 20 % more than were sent, as happens in air."""
    scan = Transmission(photons, 7.3)
    few = torch.arange(0, min(200, math.ceil(1.2 * photons)))
    counts = torch.cat((few, torch.logspace(0, math.log10(1.2 * photons), 5_000).round())).to(dtype)[None]
    assert torch.equal(scan.counts(scan.post_log(counts)), counts)


def test_a_ray_without_photon_is_logged_as_half_a_photon():
    y = SCAN.post_log(torch.tensor([[0.0, 1.0, 1e4]]))
    torch.testing.assert_close(y, torch.tensor([[math.log(2e4), math.log(1e4), 0.0]]) / 7)
    assert y.isfinite().all()


def test_a_thinned_ray_without_photon_is_logged_as_half_a_thinned_photon():
    alpha, counts = 0.5, torch.tensor([[0.0, 1.0, 5.0]]).repeat(500, 1)
    y1, kept = SCAN.recorrupt(SCAN.post_log(counts), alpha, rng())
    seen = counts - target_share(alpha) * kept  # photons
    expected = seen.clamp(min=0.5) / (1 - target_share(alpha)) / 1e4
    torch.testing.assert_close(torch.exp(-7 * y1), expected, rtol=1e-4, atol=0)
    assert set(seen[:, 1].round().tolist()) == {0, 1}
    assert (y1[:, 0] == y1[0, 0]).all()


def test_counts_have_the_mean_that_comes_through():
    counts, clean = SCAN.sample(sinogram(), rng()), sinogram(1)
    expected = 1e4 * torch.exp(-7 * clean)
    for k in range(12):
        assert within(counts.flatten(1)[:, k], float(expected.flatten()[k]))


def test_noise_of_the_logarithm_has_the_variance_of_theory():
    """1 / (c^2 N): within 5 % above 100 counts, within 10 % above 20."""
    counts = SCAN.sample(sinogram(20_000), rng())
    noise = SCAN.post_log(counts) - sinogram(1)
    mean = 1e4 * torch.exp(-7 * sinogram(1))
    ratio = noise.var(0) / SCAN.variance(mean)[0]
    assert float(mean.min()) == pytest.approx(24.8, rel=0.01)
    assert ((ratio - 1).abs() < torch.where(mean[0] > 100, 0.05, 0.1)).all()
    level = SCAN.noise_level(counts)
    assert float(level.mean()) == pytest.approx(float(noise.square().mean().sqrt()), rel=0.05)
    assert level.shape == (20_000,)


def test_divided_photons_are_independent_and_unbiased():
    y = SCAN.post_log(SCAN.sample(sinogram(), rng(1)))
    y1, kept = SCAN.recorrupt(y, 0.5, rng(2))
    clean = 1e4 * torch.exp(-7 * sinogram(1))
    seen = 1e4 * torch.exp(-7 * y1)
    for k in range(12):
        a, b, mean = seen.flatten(1)[:, k], kept.flatten(1)[:, k], float(clean.flatten()[k])
        assert within(a, mean)
        assert within(b, mean)
        assert within((a - mean) * (b - mean), 0.0)


def test_an_items_photons_do_not_depend_on_its_batch():
    keys, s = "abc", sinogram(3)
    y = SCAN.post_log(SCAN.sample(s, [item_generator(0, key) for key in keys]))
    assert torch.equal(y[1:2], SCAN.post_log(SCAN.sample(s[1:2], [item_generator(0, "b")])))
    together = SCAN.recorrupt(y, 0.5, [item_generator(1, key) for key in keys])
    for a, b in zip(together, SCAN.recorrupt(y[1:2], 0.5, [item_generator(1, "b")]), strict=True):
        assert torch.equal(a[1:2], b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_of_the_sinogram_is_kept(dtype):
    s = sinogram(2).to(dtype)
    counts = SCAN.sample(s, rng())
    y = SCAN.post_log(counts)
    parts = (counts, y, SCAN.counts(y), SCAN.transmitted(s), SCAN.variance(counts), *SCAN.recorrupt(y, 0.5, rng()))
    assert {one.dtype for one in parts} == {dtype}


def test_gradient_of_what_comes_through():
    s = randn(1, 1, 2, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(SCAN.transmitted, s)


def test_water_attenuates_as_water_whatever_the_size_of_the_pixels():
    """20 cm of water, 0.5 in the image, on a field of 40 cm."""
    for size, norm in ((64, 31.0), (256, 111.0)):
        scan = Transmission.of_field(1e4, norm, size)
        y = 0.5 * (size / 2) / norm  # 20 cm are half as many pixels as the side
        assert float(scan.transmitted(torch.tensor([[y]]))) == pytest.approx(math.exp(-200 * 0.0193), rel=1e-5)


def test_numbers_of_a_file_come_back():
    assert Transmission.from_dict(SCAN.to_dict()) == SCAN


@pytest.mark.parametrize(("photons", "attenuation"), [(0.5, 1.0), (2e7, 1.0), (math.nan, 1.0), (1e4, 0.0), (1e4, math.inf)])
def test_impossible_numbers_are_refused(photons, attenuation):
    with pytest.raises(ValueError, match="must"):
        Transmission(photons, attenuation)
