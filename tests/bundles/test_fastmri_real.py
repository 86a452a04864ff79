"""The bundle fastmri_real trains, evaluates and reconstructs on recorded k-space: one coil or several, noise of each slice."""

import math

import h5py
import pytest
import torch
from monai.bundle import ConfigParser
from processes import runs
from tiny import BUNDLES, LEVELS, causes, execute, names, workflow, write_slices

from es_medical.groups import D4, Flips
from es_medical.losses import FrequencyWeighting
from es_medical.physics import Batch

BUNDLE = "fastmri_real"
COILS = {"single": 0, "multi": 3}
each_kind = pytest.mark.parametrize("kind", COILS)


def load(name):
    return ConfigParser.load_config_file(str(BUNDLES / BUNDLE / "configs" / name))


@pytest.fixture(scope="module")
def data_files(tmp_path_factory):
    """A file of each kind; the noise level of a slice is one of LEVELS in turn."""
    folder = tmp_path_factory.mktemp("real")
    return {kind: write_slices(folder / f"{kind}.h5", coils=coils, sigmas=LEVELS) for kind, coils in COILS.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_files, workflow_uri):
    """The folder of a finished training of each kind, made once."""
    folders = {}

    def train(kind):
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(f"trained-{kind}")
            execute(workflow(["train.yaml"], folders[kind], data_files[kind], workflow_uri, BUNDLE))
        return folders[kind]

    return train


@pytest.fixture
def built(data_files, tmp_path):
    """Initialises the training of a kind, nothing is run; returns what gives its parts."""

    def build(kind, *overlays, **knobs):
        one = workflow(["train.yaml", *overlays], tmp_path, data_files[kind], "sqlite:///none.db", BUNDLE, **knobs)
        one.initialize()
        return one.parser.get_parsed_content

    return build


class Recorder(torch.nn.Module):
    """A reconstructor that keeps what it was given and returns black images."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, y, physics, generator=None, g=None):
        self.calls.append((y, physics))
        return torch.zeros(len(y), 2, *physics.image_size)


# --- what it trains, tests and reconstructs


@each_kind
@pytest.mark.parametrize("method", ["es", "supervised", "ei"])
def test_every_method_trains_and_reconstructs(tmp_path, data_files, workflow_uri, client, kind, method):
    folder = tmp_path / f"{kind}-{method}"
    knobs = {"method": method, "epochs": 1}
    execute(workflow(["train.yaml"], folder, data_files[kind], workflow_uri, BUNDLE, **knobs))
    (run,) = runs(client, folder.name)
    assert (run.info.status, run.data.tags["method"], run.data.tags["bundle"]) == ("FINISHED", method, BUNDLE)
    assert math.isfinite(run.data.metrics["train/loss"])
    execute(workflow(["inference.json"], folder, data_files[kind], "", BUNDLE, method=method, dicom=False))
    with h5py.File(folder / "eval" / "reconstructions.h5") as file:
        found = torch.from_numpy(file["reconstruction"][()])
    assert found.shape == (9, 2, 16, 16)
    assert found.isfinite().all()
    assert (found.flatten(1).std(1) > 0).all()


@each_kind
def test_training_leaves_weights_and_scores(trained, client, kind):
    folder = trained(kind)
    assert names(folder / "models") == {"last.pt", "reconstructor.pt", "model.pt"}
    run = runs(client, folder.name)[0]
    metrics = run.data.metrics
    scores = ("heldout", "psnr", "ssim", "equiv", "baseline_psnr", "baseline_ssim")
    assert all(math.isfinite(metrics[f"test/{name}"]) for name in scores)
    assert all(math.isfinite(metrics[f"val/{name}"]) for name in ("heldout", "psnr"))
    assert metrics["test/heldout"] > 0
    assert [one.step for one in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4]


@each_kind
def test_evaluation_gives_the_scores_of_the_end_of_the_training(trained, data_files, workflow_uri, client, kind):
    folder = trained(kind)
    one = workflow(["train.yaml", "evaluate.yaml"], folder, data_files[kind], workflow_uri, BUNDLE)
    one.initialize()
    assert one.check_properties() == []
    one.run()
    one.finalize()
    first, last = runs(client, folder.name)[0], runs(client, folder.name)[-1]
    assert last.info.run_name == "es-x2-seed0-evaluate"
    ended, repeated = (
        {name: value for name, value in run.data.metrics.items() if name.startswith("test/")} for run in (first, last)
    )
    assert repeated == pytest.approx(ended, rel=1e-5)
    assert "test/psnr" in repeated


@each_kind
def test_inference_is_the_same_for_every_batch_size(trained, data_files, tmp_path, kind):
    folder, images = trained(kind), []
    for batch_size in (1, 2, 9):
        knobs = {"output_dir": str(tmp_path / "out"), "batch_size": batch_size, "dicom": False}
        one = workflow(["inference.json"], folder, data_files[kind], "", BUNDLE, **knobs)
        one.initialize()
        assert one.check_properties() == []
        one.run()
        one.finalize()
        with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
            images.append(torch.from_numpy(file["reconstruction"][()]))
    for other in images[1:]:
        torch.testing.assert_close(images[0], other, rtol=1e-4, atol=1e-5)


def test_everything_works_without_ground_truth(tmp_path, workflow_uri, client):
    """Recorded k-space of undersampled scans has none."""
    blind = write_slices(tmp_path / "blind.h5", coils=3, sigmas=LEVELS, with_image=False)
    execute(workflow(["train.yaml"], tmp_path, blind, workflow_uri, BUNDLE, epochs=1, key_metric="auto"))
    (run,) = runs(client, tmp_path.name)
    assert run.data.metrics["test/heldout"] > 0
    assert not any("psnr" in name or "ssim" in name for name in run.data.metrics)
    execute(workflow(["inference.json"], tmp_path, blind, "", BUNDLE, data_split="test"))
    with h5py.File(tmp_path / "eval" / "reconstructions.h5") as file:
        assert file["id"].asstr()[()].tolist() == ["item6", "item7", "item8"]


def test_weights_need_not_know_the_number_of_coils(trained, tmp_path):
    """The network works on images: weights of three coils reconstruct five."""
    five = write_slices(tmp_path / "five.h5", coils=5, sigmas=LEVELS)
    knobs = {"output_dir": str(tmp_path / "out"), "dicom": False}
    execute(workflow(["inference.json"], trained("multi"), five, "", BUNDLE, **knobs))
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file, h5py.File(five) as source:
        error, image = file["reconstruction"][()] - source["image"][()], source["image"][()]
    assert (error**2).sum() < 0.5 * (image**2).sum()


def test_resumed_training_ends_where_an_unbroken_one_does(trained, data_files, tmp_path, workflow_uri):
    for knobs in ({"epochs": 1}, {"epochs": 2, "resume": True}):
        execute(workflow(["train.yaml"], tmp_path, data_files["multi"], workflow_uri, BUNDLE, **knobs))
    unbroken, resumed = (torch.load(folder / "models" / "last.pt") for folder in (trained("multi"), tmp_path))
    assert resumed["iteration"] == unbroken["iteration"] == 4
    torch.testing.assert_close(resumed["reconstructor"], unbroken["reconstructor"], rtol=0, atol=1e-6)


# --- the noise level of each slice


def test_slices_of_a_batch_have_levels_of_their_own(built):
    batch = next(iter(built("multi")("test#dataloader")))
    assert batch["id"] == ["item6", "item7"]
    torch.testing.assert_close(batch["sigma"], torch.tensor(LEVELS[:2]))


def omega(get, batch, sigma):
    """The noise that the bundle's loss adds to empty k-space, alpha = 1 taken out."""
    recorder, loss = Recorder(), get("loss")
    y = torch.zeros_like(batch["measurement"])
    loss(recorder, Batch(y, get("physics").of(batch), sigma), torch.Generator().manual_seed(0))
    ((y1, physics1),) = recorder.calls
    return y1 / loss.alpha, physics1.mask.expand_as(y1).bool()


@each_kind
@pytest.mark.parametrize(("factor", "overlays"), [(1.0, ()), (2.0, ("noise_wrong.yaml",)), (0.5, ())])
def test_training_draws_noise_of_each_slice_times_the_factor(built, kind, factor, overlays):
    """Exact multiples of the same standard normal numbers, which have a standard deviation of 1."""
    get = built(kind, *overlays, **({} if overlays else {"sigma_factor": factor}))
    batch = next(iter(get("train#dataloader")))
    noise, measured = omega(get, batch, batch["sigma"])
    unit, _ = omega(get, batch, torch.ones(2))
    assert len(set(batch["sigma"].tolist())) == 2
    for i, sigma in enumerate(batch["sigma"]):
        torch.testing.assert_close(noise[i], sigma * unit[i], rtol=1e-5, atol=0)
    drawn = unit[measured] / factor
    assert abs(float(drawn.std()) - 1) < 5 / math.sqrt(2 * drawn.numel())  # five standard errors
    assert (unit[~measured] == 0).all()


@each_kind
@pytest.mark.parametrize(("knobs", "levels"), [({"sigma_factor": 2.0}, None), ({"assumed_sigma": 0.25}, 0.25)])
def test_inference_draws_noise_of_each_slice_times_the_factor(built, kind, knobs, levels):
    get = built(kind, **knobs)
    batch, inferer = next(iter(get("test#dataloader"))), get("inferer")
    y, physics = torch.zeros_like(batch["measurement"]), get("physics").of(batch)
    found = {}
    for name, sigma in (("own", batch["sigma"]), ("unit", torch.ones(2))):
        recorder = Recorder()
        inferer(recorder, Batch(y, physics, sigma, ids=batch["id"]))
        found[name] = torch.stack([y1 for y1, _ in recorder.calls]) / inferer.alpha  # (samples, B, ...)
    for i, sigma in enumerate(batch["sigma"]):
        torch.testing.assert_close(found["own"][:, i], found["unit"][:, i] * (1 if levels else sigma), rtol=1e-5, atol=0)
        drawn = found["own"][:, i][found["own"][:, i] != 0] / (levels or 2.0 * sigma)
        assert abs(float(drawn.std()) - 1) < 5 / math.sqrt(2 * drawn.numel())


def test_trainer_and_evaluator_hand_on_the_levels_of_their_batch(built):
    get = built("multi", epochs=1)
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


def test_assumed_level_stands_before_that_of_the_slices(built):
    get = built("multi", "noise_unknown.yaml")
    batch = next(iter(get("train#dataloader")))
    noise, _ = omega(get, batch, batch["sigma"])
    assert (noise == 0).all()
    assert get("inferer").settings["sigma"] == 0


@pytest.mark.parametrize("overlay", ["noise_unknown", "noise_wrong"])
def test_wrong_noise_overlays_run(tmp_path, data_files, workflow_uri, client, overlay):
    files = ["train.yaml", f"{overlay}.yaml"]
    execute(workflow(files, tmp_path, data_files["multi"], workflow_uri, BUNDLE, epochs=1))
    (run,) = runs(client, tmp_path.name)
    assert (run.info.status, run.info.run_name) == ("FINISHED", f"es-x2-seed0-{overlay.replace('_', '-')}")
    with pytest.warns(UserWarning, match="were trained with sigma"):
        execute(workflow(["inference.json"], tmp_path, data_files["multi"], "", BUNDLE, dicom=False))


# --- images that are not square


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Recorded columns as they are: 16 x 24, an acceleration that is no round number."""
    folder = tmp_path_factory.mktemp("wide")
    return {
        kind: write_slices(folder / f"{kind}.h5", (16, 24), coils=coils, sigmas=LEVELS, acceleration=1.85)
        for kind, coils in COILS.items()
    }


@each_kind
def test_native_width_trains_and_reconstructs_images_that_are_not_square(tmp_path, wide, workflow_uri, client, kind):
    files, free = ["train.yaml", "native_width.yaml"], ("acceleration", "center_fraction")
    one = workflow(files, tmp_path, wide[kind], workflow_uri, BUNDLE, without=free, epochs=1)
    execute(one)
    assert type(one.parser.get_parsed_content("group")) is Flips
    (run,) = runs(client, tmp_path.name)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "es-seed0")
    knobs = {"without": free, "dicom": False}
    execute(workflow(["inference.json", "native_width.yaml"], tmp_path, wide[kind], "", BUNDLE, **knobs))
    with h5py.File(tmp_path / "eval" / "reconstructions.h5") as file:
        assert file["reconstruction"].shape == (9, 2, 16, 24)


@each_kind
def test_rotations_of_images_that_are_not_square_are_refused(tmp_path, wide, workflow_uri, kind):
    knobs = {"without": ("acceleration", "center_fraction"), "acceleration": None, "center_fraction": None}
    one = workflow(["train.yaml"], tmp_path, wide[kind], workflow_uri, BUNDLE, **knobs)
    with pytest.raises(RuntimeError) as caught:
        execute(one)
    assert type(one.parser.get_parsed_content("group")) is D4
    assert "needs square images, got 16 x 24" in causes(caught.value)
    assert "Flips" in causes(caught.value)


# --- what the data must be


@pytest.mark.parametrize(
    ("overlay", "knobs"),
    [("train", (8, 0.03)), ("demo", (4, 0.12)), ("x6_10db", (6, 0.08)), ("native_width", (None, None))],
)
def test_overlay_says_what_the_data_must_be(overlay, knobs):
    merged = load("train.yaml") | load(f"{overlay}.yaml")
    assert (merged["acceleration"], merged["center_fraction"]) == knobs


def test_noise_level_is_no_knob_but_a_factor_is():
    assert "sigma" not in load("train.yaml")
    assert (load("train.yaml")["assumed_sigma"], load("train.yaml")["sigma_factor"]) == (None, 1.0)


def test_sigma_is_refused_with_the_names_of_the_knobs(tmp_path, data_files):
    with pytest.raises(RuntimeError) as caught:
        workflow(["train.yaml"], tmp_path, data_files["single"], "", BUNDLE, sigma=0.1).initialize()
    assert "unknown configuration name 'sigma'" in causes(caught.value)
    assert "sigma_factor" in causes(caught.value)


@each_kind
def test_residuals_are_weighted_by_frequency_where_the_knob_says_so(data_files, workflow_uri, tmp_path, kind):
    one = workflow(["train.yaml"], tmp_path, data_files[kind], workflow_uri, BUNDLE, weighting="frequency", epochs=1)
    execute(one)
    assert isinstance(one.parser.get_parsed_content("loss").weighting, FrequencyWeighting)
    assert (tmp_path / "models" / "reconstructor.pt").is_file()
