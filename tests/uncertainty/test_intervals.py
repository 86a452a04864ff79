"""Intervals of pixels and images from resampling."""

import math

import pytest
import torch
from helpers import line_mri, randn, rng

from es_medical.groups import D4
from es_medical.inferers import Inferer
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch, measure
from es_medical.splits import Split
from es_medical.uncertainty import EquivariantBootstrap, IntervalInferer, SelfCalibration, estimator, pixel_error, with_level

IDS = ["a", "b"]


@pytest.fixture(scope="module")
def setting():
    torch.manual_seed(0)
    network = ReynoldsAveraging(MoDL(unet(2, (4, 8)), n_iterations=1), D4()).eval()
    physics = line_mri((8, 8))
    return network, measure(physics, randn(2, 2, 8, 8), 0.1, rng()), physics


@pytest.mark.parametrize("factor", [None, 3.0])
@pytest.mark.parametrize(("split_input", "eval_split_input"), [(True, True), (True, False), (False, True)])
def test_reconstruction_is_that_of_the_inferer_and_intervals_are_quantiles_of_the_bootstrap(
    setting, split_input, eval_split_input, factor
):
    """The factor is of the root mean square of the norms; pixels are widened as much as the whole image."""
    network, y, physics = setting
    inferer = Inferer(Split(split_ratio=0.5), 2, 0.1, group=D4(), split_input=split_input, eval_split_input=eval_split_input)
    bootstrap = EquivariantBootstrap(D4(), 5)
    found = IntervalInferer(inferer, bootstrap, 0.8, factor)(network, Batch(y, physics, ids=IDS))
    plain = inferer(network, Batch(y, physics, ids=IDS))
    assert all(torch.equal(getattr(found, name), getattr(plain, name)) for name in ("image", "spread", "heldout"))
    replicas = bootstrap(estimator(inferer, network), plain.image, with_level(inferer, Batch(y, physics, ids=IDS)))
    errors = torch.stack([one.error for one in replicas])  # (N, B, 2, H, W)
    norms = (errors.square().flatten(2).sum(2) / 64).sqrt()  # of a complex pixel the modulus
    bound = norms.quantile(0.8, dim=0) if factor is None else factor * norms.square().mean(0).sqrt()
    pixels = errors.norm(dim=2, keepdim=True).quantile(0.8, dim=0)
    torch.testing.assert_close(found.bound, bound)
    torch.testing.assert_close(found.halfwidth, pixels * (bound / norms.quantile(0.8, dim=0)).view(2, 1, 1, 1))
    assert found.halfwidth.min() > 0


def test_intervals_do_not_depend_on_the_batch(setting):
    network, y, physics = setting
    inferer = IntervalInferer(Inferer(Split(split_ratio=0.5), 2, 0.1, group=D4()), EquivariantBootstrap(D4(), 4), 0.9)
    together, alone = inferer(network, Batch(y, physics, ids=IDS)), inferer(network, Batch(y[1:], physics, ids=IDS[1:]))
    torch.testing.assert_close(alone.halfwidth, together.halfwidth[1:], rtol=1e-4, atol=1e-5)


def test_image_alone_takes_no_bootstrap(setting):
    network, y, physics = setting
    inferer = Inferer(Split(split_ratio=0.5), 2, 0.1, group=D4())

    class Never(EquivariantBootstrap):
        def __call__(self, *_):
            raise AssertionError

    found = IntervalInferer(inferer, Never(D4(), 2), 0.9).image(network, Batch(y, physics, ids=IDS))
    assert torch.equal(found, inferer.image(network, Batch(y, physics, ids=IDS)))


def test_two_calibrations_are_refused():
    bootstrap = EquivariantBootstrap(D4(), 2)
    with pytest.raises(ValueError, match="calibrated by a factor or by themselves, got both"):
        IntervalInferer(Inferer(Split()), bootstrap, 0.9, 1.0, SelfCalibration(bootstrap))


def test_size_of_an_error_at_a_pixel():
    x = torch.tensor([3.0, 4.0, 0.0]).view(1, 3, 1, 1)
    assert pixel_error(-x[:, :1]).item() == 3  # real
    assert pixel_error(x[:, :2]).item() == 5  # complex: modulus
    assert pixel_error(x).item() == pytest.approx(5 / math.sqrt(3))  # RGB: root mean square


@pytest.mark.parametrize(
    ("level", "factor", "words"), [(90, 1.0, "strictly between 0 and 1, got 90"), (0.9, math.inf, "got inf")]
)
def test_level_and_factor_out_of_range_are_refused(level, factor, words):
    with pytest.raises(ValueError, match=words):
        IntervalInferer(Inferer(Split()), EquivariantBootstrap(D4(), 2), level, factor)
