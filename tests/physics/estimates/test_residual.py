"""The noise level from residuals: that of white noise, larger where the operator is not the scanner's, from rays that count."""

import pytest
import torch
from helpers import rng

from es_medical.physics.base import measure
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.physics.estimates.residual import residual_level

pytest.importorskip("astra")
N = 24


def scanner(mask=None, **changes):
    return CT(ParallelBeam((N, N), n_views=20, pitch=0.5, **changes), mask)


def blob():
    place = torch.arange(N) - (N - 1) / 2
    return torch.exp(-((place - 3) ** 2 + (place[:, None] + 2) ** 2) / 20)[None, None]


@pytest.mark.parametrize("sigma", [0.002, 0.02])
def test_level_of_white_noise_is_found(sigma):
    physics = scanner()
    y = measure(physics, blob().expand(3, -1, -1, -1), sigma, rng())
    assert residual_level(physics, y, physics._diagonal, rng(1)).tolist() == pytest.approx([sigma] * 3, rel=0.1)


def test_masked_rays_do_not_count():
    mask = (torch.rand(20, scanner().geometry.n_detectors, generator=rng(2)) < 0.7).float()
    physics = scanner(mask)
    y = measure(physics, blob(), 0.01, rng())
    assert float(residual_level(physics, y, physics._diagonal, rng(1))) == pytest.approx(0.01, rel=0.15)


def test_a_wrong_centre_of_rotation_counts_as_noise():
    right, wrong = scanner(n_detectors=80, shift=1.0), scanner(n_detectors=80)
    y = measure(right, blob(), 0.002, rng())
    assert float(residual_level(right, y, right._diagonal, rng(1))) == pytest.approx(0.002, rel=0.1)
    missed = (wrong.A(blob()) - y).square().mean().sqrt()
    assert 0.3 * missed < float(residual_level(wrong, y, wrong._diagonal, rng(1))) < 1.2 * missed
