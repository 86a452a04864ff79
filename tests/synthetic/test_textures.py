"""Textures and smooth fields: spectra and smoothness."""

import math

import pytest
import torch

from es_medical.synthetic import draw
from es_medical.synthetic.fields import bias_field, blurred, smooth_field
from es_medical.synthetic.grid import pixel_grid
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.textures import band_noise, grain, power_noise, small_leaves, stripes


def sampler(batch, seed=0):
    return Sampler(torch.Generator().manual_seed(seed), batch)


def rings(images):
    """Mean power of each ring of frequencies 1, 2, ... cycles per image."""
    n = images.shape[-1]
    power = torch.fft.fft2(images).abs().pow(2).mean(0)
    f = torch.fft.fftfreq(n) * n
    radius = torch.hypot(f[:, None], f[None]).round().long()
    return torch.stack([power[radius == r].mean() for r in range(1, n // 2)])


@pytest.mark.parametrize("slope", [0.0, 1.0, 2.0])
def test_power_noise_has_the_stated_slope(slope):
    """The slope of the power spectrum of 64 images, fitted from 4 cycles per image on, lies within 0.1 of -2 slope."""
    power = rings(power_noise(sampler(64), (64, 64), torch.full((64,), slope)))[3:]
    f = torch.arange(4, 32).log()
    fitted = ((f - f.mean()) * (power.log() - power.log().mean())).sum() / ((f - f.mean()) ** 2).sum()
    assert float(fitted) == pytest.approx(-2 * slope, abs=0.1)


def test_band_noise_peaks_at_its_period():
    power = rings(band_noise(sampler(64), (64, 64), torch.full((64,), 8.0)))
    assert abs(int(power.argmax()) + 1 - 64 / 8) <= 2


def test_noise_has_zero_mean_and_unit_variance():
    noise = power_noise(sampler(8), (32, 32), torch.ones(8))
    torch.testing.assert_close(noise.mean((1, 2)), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(noise.std((1, 2)), torch.ones(8))


def test_smooth_fields_hardly_change_between_neighbours():
    field = smooth_field(sampler(64), 1, (64, 64), 4)[:, 0]
    steps = torch.cat([field.diff(dim=1).flatten(), field.diff(dim=2).flatten()])
    assert steps.std() < 0.15 * field.std()
    assert 0.4 < field.std() < 1.2
    assert bias_field(sampler(64), (32, 32), 0.3).min() > 0


def test_the_phase_is_smooth_where_there_is_signal():
    image = draw("mr_phase", 32, 64, seed=0)
    z = torch.complex(image[:, 0], image[:, 1])
    both = (z[:, 1:].abs() > 0.1) & (z[:, :-1].abs() > 0.1)
    step = (z[:, 1:] * z[:, :-1].conj()).angle()[both]
    assert step.abs().max() < math.pi / 4


def test_streaks_run_along_their_angle():
    """Along their direction neighbours are alike, across it they are not."""
    along, fine = torch.full((64,), 8.0), torch.full((64,), 0.7)
    rows = grain(sampler(64), (64, 64), along, fine, torch.zeros(64))
    assert (rows[:, :, 1:] * rows[:, :, :-1]).mean() > 0.95
    assert (rows[:, 1:] * rows[:, :-1]).mean() < 0.8


def test_stripes_repeat_with_their_period():
    grid, one = pixel_grid(1, (64, 64)), torch.ones(1)
    bars = stripes(grid, 0 * one, 0.5 * one, 0 * one, grid.pixel * one)
    torch.testing.assert_close(bars[..., :-16], bars[..., 16:], rtol=0, atol=1e-4)
    assert float(bars.mean()) == pytest.approx(0.5, abs=0.01)


def test_blur_keeps_the_mean_and_spreads_a_point_by_its_sigma():
    point = torch.zeros(1, 1, 33, 33)
    point[..., 16, 16] = 1
    spread = blurred(point, torch.tensor([1.5]))[0, 0]
    distance = torch.arange(33) - 16.0
    assert float(spread.sum()) == pytest.approx(1, abs=1e-5)
    assert float((spread.sum(0) * distance**2).sum()) == pytest.approx(1.5**2, rel=1e-2)


def test_small_leaves_cover_no_more_than_they_may():
    grid, every = pixel_grid(4, (64, 64)), torch.ones(4)
    half, edge = (grid.x > 0).float(), torch.full((4,), grid.pixel)

    def ones(m):
        return torch.ones(4, m, 1)

    canvas = small_leaves(torch.zeros(4, 1, 64, 64), grid, sampler(4), 0.25, ones, every, edge, where=half)[:, 0]
    assert (canvas[grid.x <= 0] == 0).all()
    assert 0.1 < canvas[grid.x > 0].mean() < 0.5
    empty = small_leaves(torch.zeros(4, 1, 64, 64), grid, sampler(4), 0.25, ones, 0 * every, edge, where=half)
    assert (empty == 0).all()
