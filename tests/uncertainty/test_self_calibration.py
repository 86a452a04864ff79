"""Items that calibrate themselves: the scale of their errors by their own held-out measurements, and how sure it is."""

import math

import pytest
import torch
from helpers import randn
from scipy import stats
from stand_ins import SIZE, Around, measured_pixels, nothing

from es_medical.groups import D4, Shifts
from es_medical.inferers import Inferer
from es_medical.networks import MoDL, unet
from es_medical.physics import Batch
from es_medical.splits import Split
from es_medical.uncertainty import (
    Distances,
    EquivariantBootstrap,
    IntervalInferer,
    Scale,
    SelfCalibration,
    estimator,
    heldout_distances,
    heldout_scale,
    scaled,
    with_level,
)
from es_medical.uncertainty.scale import TRANSFER

SPLIT = Split("values")


def test_scale_of_an_item_is_its_error_over_the_predicted_one():
    """f = 0 and images of 1, 2 and 3: errors are 2, 4 and 6 times the predicted 0.5, in every fold."""
    x = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1).expand(3, 1, *SIZE)
    found, scale = heldout_scale(nothing, Around([0.5, 0.5]), measured_pixels(x), SPLIT)
    torch.testing.assert_close(scale.factor, torch.tensor([2.0, 4.0, 6.0]))
    torch.testing.assert_close(scale.uncertainty, torch.zeros(3), atol=1e-5, rtol=0)
    other = heldout_distances(nothing, Around([0.5, 0.5]), measured_pixels(x), SPLIT)
    torch.testing.assert_close(found.error, other.error)
    torch.testing.assert_close(found.resampled, other.resampled)


def test_uncertainty_is_how_much_the_scale_differs_between_draws():
    """White images: log s = log(mean of m squares) / 2 has the standard deviation 1 / sqrt(2 m), m held-out values of 64.

    400 items: their own estimates agree with it on average within 10 %, and with the deviation between the items.
    """
    measured = measured_pixels(randn(400, 1, *SIZE))
    _, scale = heldout_scale(nothing, Around([0.5, 0.5]), measured, SPLIT, 10)
    m = int(measured.physics.mask.sum())
    root_mean_square = float(scale.uncertainty.square().mean().sqrt())
    assert root_mean_square == pytest.approx(1 / math.sqrt(2 * m), rel=0.1)
    assert root_mean_square == pytest.approx(float(scale.factor.log().std()), rel=0.15)


def test_item_without_error_has_no_width():
    measured = measured_pixels(torch.zeros(2, 1, *SIZE))
    _, scale = heldout_scale(nothing, Around([0.5, 0.5]), measured, SPLIT)
    assert (scale.factor == 0).all()
    assert scale.uncertainty.isfinite().all()


def test_self_calibrated_errors_are_log_normal_about_the_scaled_prediction():
    """Prediction 2, scale 3, deviation 0.1 by the jackknife and that of transfer: quantiles are 6 exp(z sqrt(0.01 + t^2))."""
    scale = Scale(torch.tensor([3.0], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64))
    distances = Distances(torch.zeros(1), torch.tensor([[1.0, 7**0.5]], dtype=torch.float64))  # root mean square 2
    found = scaled(distances, scale)
    for level in (0.1, 0.5, 0.9, 0.95):
        expected = 6 * math.exp(stats.norm.ppf(level) * math.sqrt(0.01 + TRANSFER**2))
        assert float(found.quantile(level)) == pytest.approx(expected, rel=4e-3)


@pytest.fixture(scope="module")
def setting():
    torch.manual_seed(0)
    return MoDL(unet(1, (4, 8)), n_iterations=1).eval(), measured_pixels(randn(2, 1, *SIZE))


def test_intervals_are_widened_by_the_items_own_scale(setting):
    network, measured = setting
    inferer, few, many = Inferer(SPLIT, 2), EquivariantBootstrap(D4(), 2), EquivariantBootstrap(D4(), 8)
    by_itself = SelfCalibration(few, 3)
    plain, wider = (IntervalInferer(inferer, many, 0.9, None, one)(network, measured) for one in (None, by_itself))
    f, measured = estimator(inferer, network), with_level(inferer, measured)
    _, scale = heldout_scale(f, few, measured, SPLIT, 3)
    norms = torch.stack([one.error.square().flatten(1).mean(1).sqrt() for one in many(f, plain.image, measured)], 1)
    expected = scaled(Distances(torch.zeros(2), norms), scale).quantile(0.9)
    torch.testing.assert_close(wider.bound, expected)
    torch.testing.assert_close(wider.halfwidth, plain.halfwidth * (expected / norms.quantile(0.9, dim=1)).view(2, 1, 1, 1))
    assert all(torch.equal(getattr(wider, name), getattr(plain, name)) for name in ("image", "spread", "heldout"))


def test_scale_does_not_depend_on_the_batch(setting):
    network, measured = setting
    f, few = estimator(Inferer(SPLIT, 2), network), EquivariantBootstrap(Shifts(SIZE), 3)
    _, together = heldout_scale(f, few, measured, SPLIT)
    _, alone = heldout_scale(f, few, Batch(measured.y[1:], measured.physics, measured.sigma[1:], ids=measured.ids[1:]), SPLIT)
    torch.testing.assert_close(alone.factor, together.factor[1:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(alone.uncertainty, together.uncertainty[1:], rtol=1e-3, atol=1e-5)
