"""The factor of a calibration: known ones are recovered, and coverage is what split-conformal prediction promises."""

import math

import pytest
import torch
from helpers import rng
from scipy import stats

from es_medical.uncertainty import Calibration, Distances, coverage


def items(n, factor=1.0, samples=100, seed=0):
    """Errors `factor` times as large as resampling says, both norms of 3 Gaussian numbers; each item has its own scale."""
    generator = rng(seed)
    scale = torch.exp(torch.randn(n, 1, generator=generator, dtype=torch.float64))
    norms = torch.randn(n, samples + 1, 3, generator=generator, dtype=torch.float64).norm(dim=2)
    return Distances(factor * scale[:, 0] * norms[:, 0], scale * norms[:, 1:])


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_known_factor_is_recovered(factor, level):
    """2000 items: the order statistic's standard error is sqrt(p (1 - p) / n) / density, here below 2 %; 4 of them.

    Errors over their root mean square follow the chi law of 3 degrees of freedom over sqrt(3), times the factor.
    """
    found = Calibration(items(2000, factor)).factor(level)
    law = stats.chi(3, scale=1 / math.sqrt(3))
    error = math.sqrt(level * (1 - level) / 2000) / (law.pdf(law.ppf(level)) * law.ppf(level))
    assert found == pytest.approx(factor * law.ppf(level), rel=4 * error + 0.005)  # the mean of 100 is a little off, too


@pytest.mark.parametrize(("n", "level"), [(9, 0.9), (10, 0.9), (19, 0.5), (40, 0.95)])
def test_coverage_is_between_the_level_and_one_item_more(n, level):
    """P(e <= factor r) = ceil((n + 1) p) / (n + 1) for any law of the ratios: over 200 calibrations of 50 items each, 4 s.e."""
    rank = math.ceil((n + 1) * level - 1e-9)
    expected = rank / (n + 1)
    shares = []
    for seed in range(200):
        both = items(n + 50, factor=3.0, samples=20, seed=seed)
        first, second = Distances(both.error[:n], both.resampled[:n]), Distances(both.error[n:], both.resampled[n:])
        shares.append(coverage(second.times(torch.ones(1, 1)), level, Calibration(first).factor(level)).share)
    found = torch.tensor(shares)
    assert level <= expected <= level + 1 / (n + 1)
    assert abs(float(found.mean()) - expected) < 4 * float(found.std()) / math.sqrt(200)


def test_factor_is_the_order_statistic():
    ratios = torch.tensor([0.3, 0.1, 0.4, 0.2])
    calibration = Calibration(Distances(ratios, torch.ones(4, 7)))
    assert [calibration.factor(level) for level in (0.2, 0.21, 0.4, 0.8)] == pytest.approx([0.1, 0.2, 0.2, 0.4])
    assert calibration.highest_level == 0.8
    assert calibration.factor(0.99) == pytest.approx(0.4)  # no item can vouch for it


def test_item_without_error_needs_no_width_and_one_without_resampled_error_any():
    calibration = Calibration(Distances(torch.tensor([0.0, 1.0]), torch.zeros(2, 3)))
    assert (calibration.factor(0.3), calibration.factor(0.6)) == (0.0, math.inf)


def test_file_keeps_everything(tmp_path):
    before = Calibration(items(5), {"method": "es", "n_samples": 10, "sigma": None})
    before.save(tmp_path / "calibration.json")
    after = Calibration.load(tmp_path / "calibration.json")
    assert after.settings == before.settings
    assert [after.factor(p) for p in (0.1, 0.9)] == [before.factor(p) for p in (0.1, 0.9)]


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text('{"schema": 7}')
    with pytest.raises(ValueError, match="is no calibration of schema 1"):
        Calibration.load(path)


@pytest.mark.parametrize("level", [0.0, 1.0, 90])
def test_level_outside_is_refused(level):
    with pytest.raises(ValueError, match=f"strictly between 0 and 1, got {level}"):
        Calibration(items(3)).factor(level)
