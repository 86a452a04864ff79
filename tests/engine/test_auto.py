"""The rule behind `auto`: what it reads in measurements, and how its choices follow."""

import itertools
import math

import pytest
import torch
from tiny import SIGMA, smooth_images, write_images, write_sinograms, write_slices

from es_medical.data import SliceDataset
from es_medical.engine.auto import CLEAR, STEPS, Evidence, choose, evidence, weighting_of
from es_medical.engine.operators import operator_of

MANY = {"train": 24, "val": 1, "test": 1}
RATIOS = (0.0, *torch.logspace(-1, 4, 40).tolist(), math.inf)


def of(path, **options):
    return evidence(str(path), operator_of(str(path)), **options)


def values(ratio, weighting="frequency", weighted=1.0):
    return {name: choice.value for name, choice in choose(Evidence(ratio, weighting, weighted)).items()}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return write_slices(tmp_path_factory.mktemp("auto") / "clean.h5", splits=MANY)


@pytest.mark.parametrize("sigma", [0.02, 0.2])
def test_ratio_is_that_of_the_image_without_noise(tmp_path, sigma):
    """The noise in A^T y is subtracted: at 0.2 it has about a fifth of the signal's power."""
    path = write_slices(tmp_path / "slices.h5", splits=MANY, sigmas=(sigma,))
    physics = operator_of(str(path))
    images = smooth_images(26, (16, 16))[:24]
    signal = physics.initial(physics.A(images)).square().mean().sqrt()
    assert of(path).ratio == pytest.approx(float(signal) / sigma, rel=0.1)


@pytest.mark.parametrize("sigma", [0.02, 0.2])
def test_ratio_is_of_the_pixels_that_are_measured(tmp_path, sigma):
    path = write_images(tmp_path / "images.h5", splits=MANY, sigma=sigma)
    physics, images = (
        operator_of(str(path)),
        smooth_images(78, (16, 16)).abs().reshape(-1, 16, 16)[:78].view(-1, 3, 16, 16)[:24],
    )
    signal = (physics.A(images).square().sum() / (24 * physics.mask.sum())).sqrt()
    assert of(path).ratio == pytest.approx(float(signal) / sigma, rel=0.1)


def test_images_are_not_read(clean, tmp_path):
    blind = write_slices(tmp_path / "blind.h5", splits=MANY, with_image=False)
    assert of(clean) == of(blind)


def test_only_training_slices_are_read(clean, tmp_path):
    path = write_slices(tmp_path / "bad.h5", splits=MANY, poison={24: "measurement", 25: "measurement"})
    assert of(path) == of(clean)


def test_no_signal_gives_the_settings_of_noise(tmp_path):
    path = write_slices(tmp_path / "noise.h5", splits=MANY, sigmas=(100.0,))  # the signal is below a thousandth of it
    found = of(path)
    assert found.ratio < 0.5
    assert {name: choice.value for name, choice in choose(found).items()} == values(0.0, weighted=0.0)


def test_assumed_noise_level_is_what_counts(clean):
    own, given, doubled = of(clean), of(clean, sigma=SIGMA), of(clean, sigma_factor=2.0)
    assert own.ratio == pytest.approx(given.ratio)
    assert doubled.ratio == pytest.approx(own.ratio / 2, rel=0.01)
    assert of(clean, sigma=0.0) == (math.inf, "frequency", math.inf)


def test_noise_level_of_each_slice_is_used(tmp_path):
    """Powers are averaged over slices: levels of 0.01 and 0.03 count as their quadratic mean."""
    one, two = (
        write_slices(tmp_path / f"{len(levels)}.h5", splits=MANY, sigmas=levels) for levels in ((0.05**0.5 / 10,), (0.01, 0.03))
    )
    assert of(two).ratio == pytest.approx(of(one).ratio, rel=0.02)


@pytest.mark.parametrize(
    ("write", "weighting"),
    [(write_slices, "frequency"), (write_sinograms, "ramp"), (write_images, "none")],
)
def test_weighting_is_that_of_the_operator(tmp_path, write, weighting):
    path = write(tmp_path / "slices.h5")
    assert weighting_of(operator_of(str(path))) == weighting == of(path).weighting


def test_coils_have_the_weighting_of_kspace(tmp_path):
    path = write_slices(tmp_path / "coils.h5", coils=3, sigmas=(0.01, 0.03, 0.005))
    found = of(path)
    assert found.weighting == "frequency"
    assert math.isfinite(found.ratio)
    assert found.ratio > CLEAR


def test_same_file_gives_the_same_evidence(clean):
    torch.manual_seed(5)
    first = of(clean)
    torch.manual_seed(6)
    assert of(clean) == first


def test_evidence_does_not_depend_on_the_slices_taken(clean, monkeypatch):
    monkeypatch.setattr("es_medical.engine.auto.SLICES", 8)
    few = of(clean)
    monkeypatch.undo()
    assert few.ratio == pytest.approx(of(clean).ratio, rel=0.1)
    assert len(SliceDataset(clean, "train")) > 8


@pytest.mark.parametrize(("worse", "better"), list(itertools.pairwise(RATIOS)))
def test_better_measurements_never_get_the_settings_of_worse_ones(worse, better):
    low, high = values(worse), values(better)
    assert low["step"] <= high["step"]
    assert low["split_ratio"] <= high["split_ratio"]
    assert low["eval_split_input"] >= high["eval_split_input"]
    assert STEPS[0] <= low["step"] <= high["step"] <= STEPS[1]


@pytest.mark.parametrize(("weighting", "weighted", "chosen"), [
    ("frequency", 1.01, "frequency"), ("frequency", 1.0, "none"), ("ramp", math.inf, "ramp"), ("none", math.inf, "none"),
])  # fmt: skip
def test_weighting_is_used_where_the_signal_has_more_power_than_the_noise(weighting, weighted, chosen):
    assert values(50.0, weighting, weighted)["weighting"] == chosen


def test_every_choice_says_why():
    said = choose(Evidence(math.inf, "none", math.inf)) | choose(Evidence(2.5, "frequency", 0.3))
    assert all("dB" in choice.why for choice in said.values())
    assert "no noise" in choose(Evidence(math.inf, "none", math.inf))["step"].why


@pytest.mark.parametrize(("weighted", "chosen"), [(0.0, 4.0), (9.9, 4.0), (10.0, 0.1), (math.inf, 0.1)])
def test_what_is_mostly_noise_is_not_what_is_to_be_predicted(weighted, chosen):
    assert values(50.0, "frequency", weighted)["consistency_weight"] == chosen
