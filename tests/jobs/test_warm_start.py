"""The warm start: trained on synthetic images before the method, found again, resumed bit for bit, and never silent."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import pytest
import torch
from tiny import BUNDLE_NAMES, SIGMA, causes, execute, names, runs, steps, workflow, write_slices, write_slices_for

from es_medical.jobs import warm_start
from es_medical.jobs.training import Training
from es_medical.jobs.warm_start import WarmKnobs, WarmStart
from es_medical.physics import MRI
from es_medical.tracking.tracker import NullTracker

WARM = {"warm_images": 6, "warm_epochs": 2, "warm_lr": 0.01}
SOURCE = "6 synthetic images of kind mr, 2 epochs"
IDENTITY = {"method": "es", "key_metric": "heldout"}
FILES = {"warm.pt", "last.pt", "reconstructor.pt", "model.pt", "README.md", "overview.html"}


class Notes(NullTracker):
    """Collects the tags and metrics that are logged."""

    def __init__(self):
        super().__init__()
        self.noted = {}

    def _put(self, kind, fields):
        self.noted |= fields.get("values", {})


def built(folder, source, bundle="fastmri_synthetic", **knobs):
    """Initialises a training, nothing is run; returns what gives its parts."""
    one = workflow(["train.yaml"], folder, source, "sqlite:///none.db", bundle, **knobs)
    one.initialize()
    return one.parser.get_parsed_content


def warm(folder, source, bundle="fastmri_synthetic", resume=False, **knobs):
    """Runs the warm start of a training alone; returns what it logged."""
    part, notes = built(folder, source, bundle, **knobs), Notes()
    checkpoints = part("checkpoints")
    part("warm").run(notes, checkpoints, IDENTITY, checkpoints.read_last() if resume else None)
    return notes.noted


def weights(folder, name="warm.pt"):
    return torch.load(folder / "models" / name)["reconstructor"]


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def warmed(tmp_path_factory, data_file, workflow_uri):
    """A finished training of two epochs after a warm start of two epochs of three steps; its folder."""
    folder = tmp_path_factory.mktemp("warmed")
    execute(workflow(["train.yaml"], folder, data_file, workflow_uri, **WARM))
    return folder


@pytest.fixture
def train(tmp_path, data_file, workflow_uri) -> Callable:
    """Trains to the end, in a run of MLflow."""

    def run(**knobs):
        return execute(workflow(["train.yaml"], tmp_path, data_file, workflow_uri, **knobs))

    return run


@pytest.fixture
def start(tmp_path, data_file) -> Callable:
    """Runs a warm start alone; see `warm`."""
    return partial(warm, tmp_path, data_file)


# --- what a warm start leaves


def test_curves_time_tag_and_data_set_are_in_the_run(warmed, client):
    (run,) = runs(client, warmed.name)
    assert names(warmed / "models") == FILES
    assert [step for step, _ in steps(client, run, "warm/loss")] == [3, 6]
    assert steps(client, run, "warm/epoch") == [(3, 1.0), (6, 2.0)]
    assert steps(client, run, "warm/seconds") == [(0, torch.load(warmed / "models" / "warm.pt")["seconds"])]
    assert run.data.metrics["warm/seconds"] > 0
    assert run.data.tags["warm_start"] == SOURCE
    assert run.data.params["warm_images"] == "6"
    used = {one.tags[0].value: one.dataset.name for one in run.inputs.dataset_inputs}
    assert used["warm"] == "synthetic images, mr"
    assert [step for step, _ in steps(client, run, "val/heldout")] == [0, 2, 4]


def test_equal_warm_start_is_found_and_ends_in_the_same_weights(warmed, train, tmp_path, client, caplog, monkeypatch):
    """And epoch 0 is that of its weights."""
    validate, first = Training._validate, []

    def seen(self, epoch, *args):
        first.append({name: value.clone() for name, value in self.checkpoints.network.state_dict().items()})
        return validate(self, epoch, *args)

    monkeypatch.setattr(WarmStart, "_train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(Training, "_validate", seen)
    with caplog.at_level("INFO", logger="es_medical"):
        train(**WARM, warm_dir=str(warmed / "warm"))
    assert "the weights of an equal warm start were found" in caplog.text
    assert f"{SOURCE}; ground truth: synthetic images only" in caplog.text
    assert "ground truth: not used in training" in caplog.text
    assert same(first[0], weights(warmed))
    assert not same(first[0], first[1])
    assert same(weights(warmed, "last.pt"), weights(tmp_path, "last.pt"))
    (one,), (other,) = runs(client, warmed.name), runs(client, tmp_path.name)
    for name in ("train/loss", "val/heldout", "warm/seconds"):  # the time that it took, though it was not spent again
        assert steps(client, one, name) == steps(client, other, name)


OTHERS = (
    {"warm_images": 4},
    {"warm_epochs": 1},
    {"warm_lr": 0.02},
    {"warm_kind": "mr_phase"},
    {"seed": 1},
    {"start": "estimate"},
    {"noise_level": 0.1},
    {"split_ratio": 0.6},
    {"alpha": 1.0},
    {"zero_residual": True},
    {"method": "es_neq"},
)


def test_whatever_decides_the_weights_makes_another_key(data_file, tmp_path):
    def key(**knobs):
        return built(tmp_path, data_file, **(WARM | knobs))("warm")._key()

    assert key() == key(num_workers=1, warm_kind="mr", epochs=9, method="supervised", lr=0.5)
    assert len({key(**other) for other in ({}, *OTHERS)}) == 1 + len(OTHERS)


def test_networks_of_the_same_weights_have_keys_of_their_own(tmp_path):
    """A denoiser on the adjoint, and on the pseudo-inverse."""
    source = write_slices_for("mnist_cs", tmp_path / "slices.h5")
    kinds = ("adjoint", "pseudo_inverse")
    one, other = (built(tmp_path, source, "mnist_cs", architecture=kind, **WARM)("warm") for kind in kinds)
    assert same(one.network.state_dict(), other.network.state_dict())
    assert one._key() != other._key()


def test_no_ground_truth_of_the_data_is_read(warmed, tmp_path, data_file):
    """A file without images and measurements gives the same warm start, under the same key."""
    blind = write_slices(tmp_path / "blind.h5", with_image=False)
    with h5py.File(blind, "r+") as file:
        del file["checksum"]  # changed on purpose
        file["measurement"][:] = float("nan")
    warm(tmp_path, blind, **WARM)
    assert same(weights(warmed), weights(tmp_path))
    assert names(warmed / "warm") == names(tmp_path / "warm")


NOISES = (("noise_wrong.yaml", 2.0), ("noise_unknown.yaml", 0.0))


@pytest.mark.parametrize(("overlay", "factor"), NOISES)
def test_warm_start_never_knows_more_of_the_noise_than_the_loss(overlay, factor, tmp_path, data_file):
    """Also where another overlay switches it on after the one that assumes another noise."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("warm_images: 6\n")
    one = workflow(["train.yaml", overlay, mine], tmp_path, data_file, "sqlite:///none.db")
    one.initialize()
    like = one.parser.get_parsed_content("warm").like
    assert [record.sigma for record in like.records(2)] == [pytest.approx(factor * SIGMA)] * 2
    measured = torch.stack([record.measurement for record in like.records(6)])
    clean = like.physics.A(torch.stack([record.image for record in like.records(6)]))
    noise = (measured - clean)[:, :, :, like.header.mask]
    assert float(noise.std()) == pytest.approx(factor * SIGMA, rel=0.1, abs=1e-6)


def test_kept_weights_can_be_read_as_other_files(warmed):
    (kept,) = (warmed / "warm").iterdir()
    assert kept.stat().st_mode == (warmed / "models" / "last.pt").stat().st_mode


def test_weights_from_another_estimate_are_refused(start, tmp_path, monkeypatch):
    start(**WARM, start="estimate")
    (tmp_path / "models" / "warm.pt").rename(tmp_path / "warm.pt")
    monkeypatch.setattr(MRI, "estimated", "focal least squares 1.0 0.001 0.02")
    with pytest.raises(ValueError, match=r"had estimate focal .* 0.01, the configuration gives focal .* 0.02"):
        start(warm_start=str(tmp_path / "warm.pt"), start="estimate")
    start(**WARM, start="estimate")
    assert len(names(tmp_path / "warm")) == 2  # another key


# --- epoch 0


def fixed_errors(monkeypatch, *errors):
    """Makes the held-out errors of a training those that are given."""
    from es_medical.engine.evaluator import Evaluator

    run, left = Evaluator.run, list(errors)

    def scored(self, *args):
        run(self, *args)
        self.state.metrics["heldout"] = left.pop(0) if left else 1.0

    monkeypatch.setattr(Evaluator, "run", scored)
    monkeypatch.setattr(Evaluator, "score", property(lambda self: -self.state.metrics["heldout"]))


@pytest.mark.usefixtures("untracked")
def test_start_may_be_the_best_and_a_rise_of_the_error_is_told(warmed, train, tmp_path, monkeypatch, caplog):
    """It is scored with its own weights, not with an average that holds random ones."""
    fixed_errors(monkeypatch, 0.01, 0.5, 0.02)
    train(**WARM, warm_dir=str(warmed / "warm"), ema=0.99)
    assert torch.load(tmp_path / "models" / "reconstructor.pt")["epoch"] == 0
    assert same(weights(warmed), weights(tmp_path, "reconstructor.pt"))
    assert "the held-out error rose from 0.01 before training to 0.02" in caplog.text
    assert "those of epoch 0" in caplog.text


@pytest.mark.usefixtures("untracked")
def test_random_weights_are_never_the_best(train, tmp_path, monkeypatch, caplog):
    fixed_errors(monkeypatch, 0.01, 0.5, 0.02)
    train(warm_epochs=3)  # epochs without images are no warm start
    assert torch.load(tmp_path / "models" / "reconstructor.pt")["epoch"] == 2
    assert "rose" not in caplog.text
    assert names(tmp_path / "models") == FILES - {"warm.pt"}


# --- resuming


def stop_after(monkeypatch, owner, name, calls=1):
    """Interrupts the process when a method has been called a number of times."""
    whole, counted = getattr(owner, name), []

    def stop(self, *args, **options):
        result = whole(self, *args, **options)
        counted.append(1)
        if len(counted) == calls:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, stop)


PLACES = {
    "in the first epoch of the warm start": (warm_start.Checkpoints, "save_last", 1),
    "before the training": (WarmStart, "run", 1),
    "in the first epoch of the training": (Training, "_end_epoch", 1),
}


def test_training_that_was_interrupted_and_resumed_again_and_again_equals_one_that_went_through(
    warmed, train, tmp_path, client, monkeypatch, caplog
):
    for number, place in enumerate(PLACES.values()):
        stop_after(monkeypatch, *place)
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            train(**WARM, resume=number > 0)
        assert not (tmp_path / "models" / "synthetic.h5").exists()
        monkeypatch.undo()
    train(**WARM, resume=True)
    straight, resumed = (torch.load(folder / "models" / "last.pt") for folder in (warmed, tmp_path))
    assert (resumed["epoch"], resumed["warm"]) == (2, None)
    assert same(straight["reconstructor"], resumed["reconstructor"])
    assert (straight["best"], straight["heldout_before"]) == (resumed["best"], resumed["heldout_before"])
    assert torch.equal(straight["random"][0]["training"], resumed["random"][0]["training"])
    assert torch.equal(straight["random"][0]["torch"], resumed["random"][0]["torch"])
    for name in ("warm.pt", "reconstructor.pt"):
        assert same(weights(warmed, name), weights(tmp_path, name))
    (one,), (other,) = runs(client, warmed.name), runs(client, tmp_path.name)
    for name in ("warm/loss", "train/loss", "val/heldout"):
        assert steps(client, one, name) == steps(client, other, name), name
    assert other.info.status == "FINISHED"
    assert ("the held-out error rose" in caplog.text) == (straight["heldout_before"] < other.data.metrics["val/heldout"])


def test_training_stopped_in_its_first_epoch_is_not_taken_for_an_earlier_one(warmed, train, tmp_path, client, monkeypatch):
    """Its weights of epoch 0 have replaced the best ones of the earlier training in the same folder."""
    train(epochs=1)
    stop_after(monkeypatch, Training, "_start_epoch")
    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        train(**WARM, warm_dir=str(warmed / "warm"))
    monkeypatch.undo()
    train(**WARM, resume=True)
    assert same(weights(warmed, "last.pt"), weights(tmp_path, "last.pt"))
    assert len(runs(client, tmp_path.name)) == 2


@pytest.mark.parametrize("place", [(warm_start.Checkpoints, "save_last", 2), (WarmStart, "_train", 1)])
def test_interrupted_and_resumed_warm_start_equals_one_that_went_through(place, warmed, start, tmp_path, monkeypatch):
    """After its last epoch, and before its weights are kept for others."""
    stop_after(monkeypatch, *place)
    with pytest.raises(KeyboardInterrupt):
        start(**WARM)
    monkeypatch.undo()
    assert not (tmp_path / "models" / "warm.pt").exists()
    assert start(**WARM, resume=True)["warm/seconds"] > 0
    assert same(weights(warmed), weights(tmp_path))
    assert names(warmed / "warm") == names(tmp_path / "warm")


@pytest.mark.usefixtures("untracked")
def test_unfinished_warm_start_is_never_continued_as_another_one(start, train, monkeypatch):
    stop_after(monkeypatch, warm_start.Checkpoints, "save_last")
    with pytest.raises(KeyboardInterrupt):
        start(**WARM)
    monkeypatch.undo()
    for knobs in ({"warm_lr": 0.02}, {"warm_images": 8}, {"seed": 1}):
        with pytest.raises(ValueError, match=r"holds an unfinished warm start with other images.*another ckpt_dir"):
            start(**(WARM | knobs), resume=True)
    for knobs in ({}, {**WARM, "warm_start": "other.pt"}):  # a cold one; weights in place of it
        with pytest.raises(RuntimeError) as caught:
            train(resume=True, **knobs)
        assert "holds an unfinished warm start: resume with its warm_images" in causes(caught.value)


# --- a file of weights


@pytest.mark.parametrize("name", ["warm.pt", "reconstructor.pt"])
def test_file_of_weights_is_taken_in_place_of_a_training(name, warmed, start, tmp_path, caplog):
    with caplog.at_level("INFO", logger="es_medical"):
        noted = start(warm_start=str(warmed / "models" / name))
    assert same(weights(tmp_path), weights(warmed, name))
    synthetic = name == "warm.pt"
    assert noted["warm_start"].startswith(f"weights of {name}: {SOURCE if synthetic else 'epoch '}")
    assert (noted["warm/seconds"] > 0) == synthetic
    assert ("ground truth: synthetic images only" in caplog.text) == synthetic
    assert ("ground truth: not known" in caplog.text) == (not synthetic)
    assert torch.load(tmp_path / "models" / "warm.pt")["synthetic"] == synthetic


def test_unsure_takes_the_weights_of_another_method_and_gives_them_back(warmed, start, tmp_path):
    start(method="unsure", warm_start=str(warmed / "models" / "warm.pt"))
    own = weights(tmp_path)
    own.pop("noise_multiplier")
    assert same(own, weights(warmed))
    start(warm_start=str(tmp_path / "models" / "warm.pt"))
    assert same(own, weights(tmp_path))


REFUSED = (
    ({"widths": [4, 4]}, "warm.pt are of another network"),
    ({"iterations": 2}, "had iterations 1, the configuration gives 2"),
    ({"start": "estimate"}, "had start initial, the configuration gives estimate"),
    ({"method": "es_neq"}, "had group D4, the configuration gives none"),
)


@pytest.mark.parametrize(("knobs", "message"), REFUSED)
def test_weights_of_another_network_are_refused(knobs, message, warmed, start):
    with pytest.raises(ValueError, match=message):
        start(warm_start=str(warmed / "models" / "warm.pt"), **knobs)


def test_missing_damaged_and_other_files_are_named(warmed, start, tmp_path):
    half, text = tmp_path / "half.pt", tmp_path / "text.pt"
    half.write_bytes((warmed / "models" / "warm.pt").read_bytes()[:3000])
    text.write_text("thesis")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*none.pt: give the file of weights to start from"):
        start(warm_start=str(tmp_path / "none.pt"))
    for file in (half, text):
        with pytest.raises(
            ValueError, match=f"{file.name} can't be read as weights: it is damaged .*, or another kind of file"
        ):
            start(warm_start=str(file))
    with pytest.raises(ValueError, match=r"model.pt holds no weights of a reconstructor: expected warm.pt or reconstructor.pt"):
        start(warm_start=str(warmed / "models" / "model.pt"))


# --- when things go wrong


def test_damaged_cache_is_told_and_trained_anew(warmed, start, tmp_path, caplog):
    shutil.copytree(warmed / "warm", tmp_path / "warm")
    (kept,) = (tmp_path / "warm").iterdir()
    kept.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2])
    start(**WARM)
    assert f"{kept} can't be read as weights" in caplog.text
    assert same(weights(warmed), weights(tmp_path))
    assert torch.load(kept)["source"] == SOURCE


def test_cache_that_cannot_be_written_stops_nothing(warmed, start, tmp_path, caplog):
    (tmp_path / "file").touch()
    start(**WARM, warm_dir=str(tmp_path / "file"))
    assert "can't be kept for others" in caplog.text
    assert same(weights(warmed), weights(tmp_path))


def test_killed_between_writing_and_renaming_leaves_no_half_of_a_file(warmed, start, tmp_path, monkeypatch):
    def killed(self, target):
        if self.parent.name == "warm":
            raise KeyboardInterrupt
        return replace(self, target)

    replace = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            start(**WARM)
    assert names(tmp_path / "warm") == set()
    start(**WARM, resume=True)
    assert same(weights(warmed), weights(tmp_path))
    assert names(warmed / "warm") == names(tmp_path / "warm")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"warm_images": -5}, "warm_images must be a whole number, at least 1, got -5"),
        ({"warm_images": 1.5}, "warm_images must be a whole number, at least 1, got 1.5"),
        ({"warm_images": "many"}, "warm_images must be a number like 0, got 'many'"),
        (WARM | {"warm_epochs": 0}, "warm_epochs must be a whole number, at least 1, got 0"),
        (WARM | {"warm_lr": 0.0}, "warm_lr must be positive, got 0.0"),
        (WARM | {"warm_kind": "cat"}, "kind 'cat' of synthetic images is unknown: choose auto or mr, mr_phase"),
        (WARM | {"warm_kind": "ct"}, "kind 'ct' of synthetic images has 1 channels, the data 2"),
    ],
)
def test_impossible_knobs_are_refused_before_anything_runs(tmp_path, data_file, knobs, message):
    with pytest.raises((RuntimeError, ValueError)) as caught:
        built(tmp_path, data_file, **knobs)("warm")
    assert message in causes(caught.value)


def test_knobs_without_images_are_those_of_no_warm_start():
    assert WarmKnobs(images=0, epochs=0).images == 0
    assert WarmKnobs(images=3.0).images == 3


def test_too_small_images_are_named(tmp_path):
    with pytest.raises(ValueError, match="size 8 x 8"):
        warm(tmp_path, write_slices(tmp_path / "small.h5", size=(8, 8)), **WARM)


def test_slice_that_is_not_finite_is_named(start, tmp_path, monkeypatch):
    def poisoned(like, out, n):
        write(like, out, n)
        with h5py.File(out, "r+") as file:
            del file["checksum"]  # changed on purpose
            file["measurement"][1] = float("nan")

    write = warm_start.write_synthetic
    monkeypatch.setattr(warm_start, "write_synthetic", poisoned)
    with pytest.raises(FloatingPointError, match="synthetic-mr-0-1"):
        start(**WARM)
    assert not (tmp_path / "models" / "synthetic.h5").exists()
    assert not (tmp_path / "warm").exists()


# --- every bundle


@pytest.mark.parametrize("bundle", BUNDLE_NAMES)
def test_every_bundle_starts_warm(bundle, tmp_path, workflow_uri):
    source = write_slices_for(bundle, tmp_path / "slices.h5")
    noted = warm(tmp_path, source, bundle, **WARM, start="estimate")
    assert 0 < noted["warm/loss"] < 10
    assert noted["warm/epoch"] == 2
    kept = torch.load(tmp_path / "models" / "warm.pt")
    assert all(value.isfinite().all() for value in kept["reconstructor"].values())
    assert kept["architecture"]["start"] == "estimate"
