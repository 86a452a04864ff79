from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import randn, rng

from es_medical.physics.ct import CT
from es_medical.physics.ct_matrix import FanBeam, ParallelBeam
from es_medical.physics.fbp import fill_gaps, ramp

N = 65


def phantom(n=N, fine=4):
    """Shepp-Logan phantom with area-averaged pixels, (1, 1, n, n); larger structures lie off the axes of symmetry."""
    ellipses = [
        (1, 0.69, 0.92, 0, 0, 0),
        (-0.8, 0.6624, 0.874, 0, -0.0184, 0),
        (-0.2, 0.11, 0.31, 0.22, 0, -18),
        (-0.2, 0.16, 0.41, -0.22, 0, 18),
        (0.1, 0.21, 0.25, 0, 0.35, 0),
        (0.3, 0.15, 0.1, 0.25, -0.45, 30),
    ]
    c = (torch.arange(n * fine) + 0.5) / (n * fine) * 2 - 1
    x, y = c, -c[:, None]
    image = torch.zeros(n * fine, n * fine)
    for value, a, b, x0, y0, degrees in ellipses:
        t = np.deg2rad(degrees)
        u, v = (x - x0) * np.cos(t) + (y - y0) * np.sin(t), (y - y0) * np.cos(t) - (x - x0) * np.sin(t)
        image += value * ((u / a) ** 2 + (v / b) ** 2 <= 1)
    return image.view(n, fine, n, fine).mean((1, 3))[None, None]


def mean(x):
    """Mean of the central half."""
    n = x.shape[-1]
    return float(x[..., n // 4 : n - n // 4, n // 4 : n - n // 4].mean())


def error(x, reference):
    return float((x - reference).norm() / reference.norm())


SCANNERS = {
    "parallel": ParallelBeam((N, N), n_views=90),
    "sparse": ParallelBeam((64, 64), n_views=50),
    "bins of two pixels": ParallelBeam((N, N), n_views=90, pitch=2.0),
    "fan": FanBeam((N, N), n_views=180, source_distance=150, detector_distance=75, pitch=1.5),
    "fan, even": FanBeam((64, 64), n_views=100, source_distance=100, detector_distance=0, pitch=1.0),
    "parallel, shifted": ParallelBeam((N, N), n_views=90, shift=4.3),
    "fan, shifted": FanBeam((N, N), n_views=180, source_distance=150, detector_distance=75, pitch=1.5, shift=-6.7),
}


@pytest.mark.parametrize("filter", ["ramp", "hann"])
@pytest.mark.parametrize("unit_norm", [True, False])
@pytest.mark.parametrize("geometry", SCANNERS.values(), ids=SCANNERS.keys())
def test_mean_of_the_central_half_is_right_within_five_percent(geometry, unit_norm, filter):
    x = phantom(geometry.size[0])
    physics = CT(geometry, unit_norm=unit_norm)
    found = physics.fbp(physics.A(x), filter)
    assert mean(found) == pytest.approx(mean(x), rel=0.02)
    assert error(found, x) < {"ramp": 0.45, "hann": 0.55}[filter]
    assert error(found.mT, x) > 0.6


@pytest.mark.parametrize("name", ["parallel, shifted", "fan, shifted"])
def test_a_shift_that_is_ignored_blurs_the_image(name):
    geometry, x = SCANNERS[name], phantom()
    y = CT(geometry, unit_norm=False).A(x)
    ignored = CT(replace(geometry, shift=0.0), unit_norm=False).fbp(y)
    assert error(CT(geometry, unit_norm=False).fbp(y), x) < 0.5 * error(ignored, x)


@pytest.mark.parametrize("filter", ["ramp", "hann"])
def test_parallel_beam_agrees_with_scikit_image(filter):
    """To 0.1 % of the largest value; windows differ by one sample in their width."""
    transform = pytest.importorskip("skimage.transform")
    geometry = ParallelBeam((N, N), n_views=60, n_detectors=N)  # odd: scikit-image's centre is ours
    physics = CT(geometry, unit_norm=False)
    y = physics.A(phantom())
    expected = transform.iradon(y[0, 0].T.double().numpy(), geometry.angles, filter_name=filter, circle=False, output_size=N)
    found = physics.fbp(y, filter)[0, 0].double().numpy()
    assert np.abs(found - expected).max() < {"ramp": 1e-3, "hann": 2e-3}[filter] * np.abs(expected).max()


def test_missing_views_leave_the_mean():
    physics, x = CT(ParallelBeam((64, 64), n_views=60)), phantom(64)
    m = torch.ones(2, 1, 60, 1)
    m[0, :, ::2], m[1, :, 1::3] = 0, 0  # half, and a third
    part = physics.masked(m)
    y = part.A(x.expand(2, -1, -1, -1))
    found = part.fbp(y)
    for one in found:
        assert mean(one) == pytest.approx(mean(x), rel=0.05)


def test_values_that_were_not_measured_do_not_matter():
    physics, x = CT(ParallelBeam((32, 32), n_views=20)), phantom(32)
    m = (torch.rand(1, 1, 20, physics.geometry.n_detectors, generator=rng()) < 0.8).float()
    part = physics.masked(m)
    y = part.A(x)
    torch.testing.assert_close(part.fbp(y + 7 * (1 - m)), part.fbp(y), rtol=0, atol=0)


def test_missing_rays_are_filled_in():
    physics, x = CT(ParallelBeam((64, 64), n_views=60)), phantom(64)
    m = (torch.rand(1, 1, *physics.geometry.shape, generator=rng()) < 0.8).float()
    y = physics.A(x)
    whole, part, zeros = physics.fbp(y), physics.masked(m).fbp(m * y), physics.fbp(m * y)
    assert error(part, whole) < 0.5 * error(zeros, whole)
    assert mean(part) == pytest.approx(mean(x), rel=0.05)


def test_gaps_between_measured_bins_are_linear_and_ends_constant():
    y = torch.tensor([[[[9.0, 1, 9, 9, 4, 9], [9, 9, 9, 9, 9, 9]]]])
    m = torch.tensor([[[[0.0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]]]])
    assert fill_gaps(y, m).tolist() == [[[[1, 1, 2, 3, 4, 4], [0, 0, 0, 0, 0, 0]]]]


def test_uneven_views_count_for_the_arc_around_them():
    """A quarter of the arc is measured three times as densely."""
    angles = tuple(np.arange(0, 45, 1.0)) + tuple(np.arange(45, 180, 3.0))
    physics, x = CT(ParallelBeam((64, 64), angles)), phantom(64)
    even = CT(ParallelBeam((64, 64), n_views=90))
    found = physics.fbp(physics.A(x))
    assert mean(found) == pytest.approx(mean(x), rel=0.03)
    assert error(found, x) < 1.3 * error(even.fbp(even.A(x)), x)
    shuffled = np.random.default_rng(0).permutation(len(angles))
    mixed = CT(ParallelBeam((64, 64), tuple(np.array(angles)[shuffled])))
    torch.testing.assert_close(mixed.fbp(mixed.A(x)), found, rtol=0, atol=1e-4)


def test_scaling_and_derivative():
    physics = CT(ParallelBeam((16, 16), n_views=7), torch.tensor([1, 1, 0, 1, 1, 0, 1])).double()
    y = randn(2, 1, *physics.geometry.shape).double().requires_grad_()
    assert torch.autograd.gradcheck(physics.fbp, (y,), fast_mode=True)
    torch.testing.assert_close(physics.fbp(1e6 * y), 1e6 * physics.fbp(y), rtol=1e-9, atol=0)


def test_hann_falls_to_zero_where_the_ramp_ends():
    flat, smooth = ramp(64), ramp(64, "hann")
    assert smooth[-1] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(flat[1:], np.arange(1, 33) / 64, atol=4e-3)
    np.testing.assert_allclose(smooth[:2], flat[:2], rtol=0.01)


def test_unknown_filter_names_the_valid_ones(unchecked):
    physics = CT(ParallelBeam((8, 8), n_views=3))
    with pytest.raises(ValueError, match="ramp or hann, got 'cosine'"):
        physics.fbp(torch.zeros(1, 1, *physics.geometry.shape), "cosine")


def test_fan_that_does_not_go_all_the_way_round_is_refused():
    geometry = FanBeam((8, 8), n_views=20, arc=200.0, source_distance=30, detector_distance=10)
    physics = CT(geometry)
    with pytest.raises(ValueError, match="gap of 170.0 degrees; use A_dagger"):
        physics.fbp(torch.zeros(1, 1, *geometry.shape))


@pytest.mark.parametrize("times", [3, 4])
def test_views_that_are_measured_several_times_count_once(times):
    angles = tuple(np.repeat(np.arange(0, 180, 3.0), times))
    physics, once, x = CT(ParallelBeam((32, 32), angles)), CT(ParallelBeam((32, 32), n_views=60)), phantom(32)
    torch.testing.assert_close(physics.fbp(physics.A(x)), once.fbp(once.A(x)), rtol=0, atol=1e-4)
