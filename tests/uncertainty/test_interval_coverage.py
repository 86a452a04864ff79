"""Empirical coverage and its confidence interval."""

import numpy as np
import pytest
import torch
from helpers import rng
from scipy import stats

from es_medical.uncertainty import LEVELS, Distances, coverage, curve
from es_medical.uncertainty.figures import coverage_figure


def counted(covered, n):
    """n items of which `covered` have an error below 1, all have resampled distances of 1."""
    error = torch.where(torch.arange(n) < covered, 0.5, 2.0)
    return Distances(error, torch.ones(n, 5))


@pytest.mark.parametrize(("covered", "n"), [(0, 20), (17, 20), (20, 20), (3, 7)])
def test_confidence_interval_is_clopper_pearsons(covered, n):
    """Ends at the 2.5 % and 97.5 % quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k)."""
    found = coverage(counted(covered, n), 0.9)
    low = stats.beta.ppf(0.025, covered, n - covered + 1) if covered else 0.0
    high = stats.beta.ppf(0.975, covered + 1, n - covered) if covered < n else 1.0
    assert (found.covered, found.n, found.share) == (covered, n, covered / n)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_intervals_of_the_right_law_cover_as_often_as_they_say():
    """3000 items with their own 400 draws: the count is binomial, within its own 99.9 % interval at every level."""
    draws = torch.randn(3000, 401, generator=rng(), dtype=torch.float64).abs()
    for one in curve(Distances(draws[:, 0], draws[:, 1:])):
        low, high = stats.binom.interval(0.999, 3000, one.level)
        assert low - 10 <= one.covered <= high + 10, one  # 400 draws know a quantile to about 0.3 % of the items


def test_factor_widens_the_interval():
    assert [coverage(counted(2, 4), 0.9, factor).covered for factor in (0.4, 1.0, 2.0)] == [0, 2, 4]
    factors = dict(zip(LEVELS, np.linspace(0.4, 2, len(LEVELS)), strict=True))
    assert [one.covered for one in curve(counted(2, 4), factors.get)] == [0] + 9 * [2] + [4]


def test_no_item_and_levels_outside_are_refused():
    with pytest.raises(ValueError, match="coverage of no item"):
        coverage(Distances(torch.zeros(0), torch.zeros(0, 3)), 0.9)
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 1.5"):
        coverage(counted(1, 2), 1.5)


def test_picture_shows_every_curve_and_the_diagonal():
    panels = {"images": {"bootstrap": curve(counted(3, 4)), "bootstrap, calibrated": curve(counted(4, 4))}, "other": {}}
    figure = coverage_figure(panels)
    first, second = figure.axes
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["nominal", "bootstrap", "bootstrap, calibrated"]
    assert (first.get_title(), second.get_title()) == ("images", "other")
    shown = [container[0].get_ydata().tolist() for container in first.containers]
    assert shown == [[75.0] * len(LEVELS), [100.0] * len(LEVELS)]
