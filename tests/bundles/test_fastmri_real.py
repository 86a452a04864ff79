"""The bundle fastmri_real trains, evaluates and reconstructs on recorded k-space: one coil or several, noise of each slice."""

import math

import h5py
import pytest
import torch
from processes import reconstruct
from tiny import LEVELS, SINGLE, Recorder, causes, load, runs, write_slices, write_slices_for

from es_medical.groups import Flips
from es_medical.losses import FrequencyWeighting
from es_medical.physics import Batch

BUNDLE = "fastmri_real"
each_case = pytest.mark.parametrize("case", [SINGLE, BUNDLE])


# --- what it trains, tests and reconstructs


def test_weights_need_not_know_the_number_of_coils(trained, tmp_path):
    """The network works on images: weights of three coils reconstruct five."""
    five = write_slices(tmp_path / "five.h5", coils=5, sigmas=LEVELS)
    found, _ = reconstruct(BUNDLE, trained(BUNDLE), five, output_dir=str(tmp_path / "out"))
    with h5py.File(five) as source:
        image = torch.from_numpy(source["image"][()])
    assert (found - image).square().sum() < 0.5 * image.square().sum()


# --- the noise level of each slice


def test_slices_of_a_batch_have_levels_of_their_own(built):
    batch = next(iter(built(BUNDLE)("test#dataloader")))
    assert batch["id"] == ["item6", "item7"]
    torch.testing.assert_close(batch["sigma"], torch.tensor(LEVELS[:2]))


def omega(get, batch, sigma):
    """The noise that the bundle's loss adds to empty k-space, alpha = 1 taken out."""
    recorder, loss = Recorder(2), get("loss")
    y = torch.zeros_like(batch["measurement"])
    loss(recorder, Batch(y, get("physics").of(batch), sigma), torch.Generator().manual_seed(0))
    ((y1, physics1),) = recorder.calls
    return y1 / loss.alpha, physics1.mask.expand_as(y1).bool()


@each_case
@pytest.mark.parametrize(("factor", "overlays"), [(1.0, ()), (2.0, ("noise_wrong.yaml",)), (0.5, ())])
def test_training_draws_noise_of_each_slice_times_the_factor(built, case, factor, overlays):
    """Exact multiples of the same standard normal numbers, which have a standard deviation of 1."""
    get = built(case, *overlays, **({} if overlays else {"sigma_factor": factor}))
    batch = next(iter(get("train#dataloader")))
    noise, measured = omega(get, batch, batch["sigma"])
    unit, _ = omega(get, batch, torch.ones(2))
    assert len(set(batch["sigma"].tolist())) == 2
    for i, sigma in enumerate(batch["sigma"]):
        torch.testing.assert_close(noise[i], sigma * unit[i], rtol=1e-5, atol=0)
    drawn = unit[measured] / factor
    assert abs(float(drawn.std()) - 1) < 5 / math.sqrt(2 * drawn.numel())  # five standard errors
    assert (unit[~measured] == 0).all()


@each_case
@pytest.mark.parametrize(("knobs", "levels"), [({"sigma_factor": 2.0}, None), ({"assumed_sigma": 0.25}, 0.25)])
def test_inference_draws_noise_of_each_slice_times_the_factor(built, case, knobs, levels):
    get = built(case, **knobs)
    batch, inferer = next(iter(get("test#dataloader"))), get("inferer")
    y, physics = torch.zeros_like(batch["measurement"]), get("physics").of(batch)
    found = {}
    for name, sigma in (("own", batch["sigma"]), ("unit", torch.ones(2))):
        recorder = Recorder(2)
        inferer(recorder, Batch(y, physics, sigma, ids=batch["id"]))
        found[name] = torch.stack([y1 for y1, _ in recorder.calls]) / inferer.alpha  # (samples, B, ...)
    for i, sigma in enumerate(batch["sigma"]):
        torch.testing.assert_close(found["own"][:, i], found["unit"][:, i] * (1 if levels else sigma), rtol=1e-5, atol=0)
        drawn = found["own"][:, i][found["own"][:, i] != 0] / (levels or 2.0 * sigma)
        assert abs(float(drawn.std()) - 1) < 5 / math.sqrt(2 * drawn.numel())


def test_trainer_and_evaluator_hand_on_the_levels_of_their_batch(built):
    get = built(BUNDLE, epochs=1)
    trainer, tester, seen = get("train#trainer"), get("test#evaluator"), []
    trainer.loss = with_levels(trainer.loss, seen)
    trainer.run()
    assert sorted(seen) == pytest.approx(sorted([*LEVELS, LEVELS[0]]))  # four training slices
    seen.clear()
    tester.inferer = with_levels(tester.inferer, seen)
    tester.equiv_group = None
    tester.run()
    assert seen == pytest.approx(LEVELS)


def with_levels(inner, seen):
    """A loss or inferer that keeps the sigma it is given."""

    class Spy:
        needs_image = False

        def __call__(self, network, batch, *generator):
            seen.extend(batch.sigma.tolist())
            return inner(network, batch, *generator)

    return Spy()


def test_assumed_level_comes_before_that_of_the_slices(built):
    get = built(BUNDLE, "noise_unknown.yaml")
    batch = next(iter(get("train#dataloader")))
    noise, _ = omega(get, batch, batch["sigma"])
    assert (noise == 0).all()
    assert get("inferer").settings["sigma"] == 0
    assert get("run_name").endswith(", seed 0, noise unknown")


def test_wrong_noise_overlay_runs(tmp_path, train, data_file, client):
    """The other one, noise_unknown, is built (test_every_bundle), with what it assumes (above)."""
    train(BUNDLE, tmp_path, "noise_wrong.yaml", epochs=1)
    (run,) = runs(client, tmp_path.name)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"ES, MRI x2, {data_file(BUNDLE).name}, seed 0, noise wrong"
    reconstruct(BUNDLE, tmp_path, data_file(BUNDLE))  # at the noise level of the training, without a warning


# --- images that are not square


FREE = ("acceleration", "center_fraction")


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Recorded columns as they are: 16 x 24, an acceleration that is no round number."""
    folder = tmp_path_factory.mktemp("wide")
    return {case: write_slices_for(case, folder / f"{case}.h5", size=(16, 24), acceleration=1.85) for case in (SINGLE, BUNDLE)}


def test_native_width_trains_and_reconstructs_images_that_are_not_square(tmp_path, train, wide, client):
    one = train(BUNDLE, tmp_path, "native_width.yaml", source=wide[BUNDLE], without=FREE, epochs=1)
    assert type(one.parser.get_parsed_content("group")) is Flips
    (run,) = runs(client, tmp_path.name)
    assert (run.info.status, run.info.run_name) == ("FINISHED", f"ES, MRI, {wide[BUNDLE].name}, seed 0")
    images, _ = reconstruct(BUNDLE, tmp_path, wide[BUNDLE], "native_width.yaml", without=FREE)
    assert images.shape == (9, 2, 16, 24)


@each_case
def test_rotations_of_images_that_are_not_square_are_refused(tmp_path, train, wide, case):
    knobs = {"without": FREE, "acceleration": None, "center_fraction": None}
    with pytest.raises(RuntimeError) as caught:
        train(case, tmp_path, source=wide[case], **knobs)
    assert "needs square images, got 16 x 24" in causes(caught.value)
    assert "Flips" in causes(caught.value)


# --- what the data must be


@pytest.mark.parametrize(
    ("overlay", "knobs"),
    [("train", (8, 0.03)), ("demo", (4, 0.12)), ("x6_10db", (6, 0.08)), ("native_width", (None, None))],
)
def test_overlay_says_what_the_data_must_be(overlay, knobs):
    merged = load(BUNDLE, "train.yaml") | load(BUNDLE, f"{overlay}.yaml")
    assert (merged["acceleration"], merged["center_fraction"]) == knobs


def test_noise_level_is_no_knob_but_a_factor_is():
    assert "sigma" not in load(BUNDLE, "train.yaml")
    assert (load(BUNDLE, "train.yaml")["assumed_sigma"], load(BUNDLE, "train.yaml")["sigma_factor"]) == (None, 1.0)


@each_case
def test_residuals_are_weighted_by_frequency_where_the_knob_says_so(built, case):
    get = built(case, weighting="frequency", epochs=1)
    assert isinstance(get("loss").weighting, FrequencyWeighting)
    get("train#trainer").run()
