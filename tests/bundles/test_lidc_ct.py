"""The bundle lidc_ct trains, evaluates and reconstructs on sparse-view sinograms: methods, splits, weighting, rotations."""

import math
import shutil

import h5py
import pytest
import torch
from monai.bundle import ConfigParser
from processes import runs
from tiny import BUNDLES, SIGMA, VIEWS, causes, execute, names, workflow, write_sinograms, write_slices

from data_prep.ct.options import LIDCOptions
from data_prep.demo.options import ChestOptions
from es_medical.jobs import training as session
from es_medical.losses.base import mean_square
from es_medical.losses.weighting import RampWeighting
from es_medical.physics import Batch, VirtualPhysics

BUNDLE = "lidc_ct"
SPACING = 180 / VIEWS


def load(name):
    return ConfigParser.load_config_file(str(BUNDLES / BUNDLE / "configs" / name))


def train(folder, source, uri, *overlays, **knobs):
    return execute(workflow(["train.yaml", *overlays], folder, source, uri, BUNDLE, **knobs))


def reconstruct(folder, source, *overlays, **knobs):
    """Runs the inference without DICOM; returns (images, ids)."""
    one = workflow(["inference.json", *overlays], folder, source, "", BUNDLE, **({"dicom": False} | knobs))
    one.initialize()
    assert one.check_properties() == []
    one.run()
    one.finalize()
    with h5py.File(one.parser.get_parsed_content("output_dir") + "/reconstructions.h5") as file:
        return torch.from_numpy(file["reconstruction"][()]), file["id"].asstr()[()].tolist()


def scanner_of(physics):
    """The scanner under A T_g."""
    while isinstance(physics, VirtualPhysics):
        physics = physics.physics
    return physics


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    return write_sinograms(tmp_path_factory.mktemp("ct") / "slices.h5")


@pytest.fixture(scope="module")
def truth(data_file):
    with h5py.File(data_file) as file:
        return torch.from_numpy(file["image"][()])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_file, workflow_uri):
    """The folder of a finished training of two epochs."""
    folder = tmp_path_factory.mktemp("trained-ct")
    train(folder, data_file, workflow_uri)
    return folder


@pytest.fixture(scope="module")
def trained_by_rotations(tmp_path_factory, data_file, workflow_uri):
    """As `trained`, with rotations by fractions of the view spacing."""
    folder = tmp_path_factory.mktemp("rotated-ct")
    train(folder, data_file, workflow_uri, "rotations.yaml")
    return folder


@pytest.fixture
def built(data_file, tmp_path):
    """Initialises the training, nothing is run; returns what gives its parts."""

    def build(*overlays, **knobs):
        one = workflow(["train.yaml", *overlays], tmp_path, data_file, "sqlite:///none.db", BUNDLE, **knobs)
        one.initialize()
        return one.parser.get_parsed_content

    return build


class Recorder(torch.nn.Module):
    """A reconstructor that keeps what it was given and returns air."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, y, physics, generator=None, g=None):
        self.calls.append((y, physics))
        return torch.zeros(len(y), 1, *physics.image_size)


# --- what it trains, tests and reconstructs


@pytest.mark.parametrize("method", ["es", "supervised", "ei"])
def test_every_method_trains_and_reconstructs(tmp_path, data_file, truth, workflow_uri, client, method):
    folder = tmp_path / f"ct-{method}"
    train(folder, data_file, workflow_uri, method=method, epochs=1)
    (run,) = runs(client, folder.name)
    tags = (run.data.tags["method"], run.data.tags["bundle"], run.data.tags["views"])
    assert (run.info.status, run.info.run_name, tags) == (
        "FINISHED", f"{method}-{VIEWS}views-seed0", (method, BUNDLE, str(VIEWS))
    )  # fmt: skip
    assert math.isfinite(run.data.metrics["train/loss"])
    found, ids = reconstruct(folder, data_file, method=method)
    assert ids == [f"item{i}" for i in range(9)]
    assert found.shape == truth.shape == (9, 1, 16, 16)
    assert ((found - truth).square().sum((1, 2, 3)) < 0.25 * truth.square().sum((1, 2, 3))).all()


def test_training_leaves_weights_and_scores(trained, client):
    assert names(trained / "models") == {"last.pt", "reconstructor.pt", "model.pt"}
    run = runs(client, trained.name)[0]
    metrics = run.data.metrics
    for name in ("heldout", "psnr", "ssim", "equiv", "baseline_psnr", "baseline_ssim"):
        assert math.isfinite(metrics[f"test/{name}"]), name
    assert metrics["test/heldout"] > 0
    assert metrics["val/heldout"] > 0
    assert [one.step for one in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4]


def test_evaluation_gives_the_scores_of_the_end_of_the_training(trained, data_file, workflow_uri, client):
    one = workflow(["train.yaml", "evaluate.yaml"], trained, data_file, workflow_uri, BUNDLE)
    one.initialize()
    assert one.check_properties() == []
    one.run()
    one.finalize()
    first, last = runs(client, trained.name)[0], runs(client, trained.name)[-1]
    assert last.info.run_name == f"es-{VIEWS}views-seed0-evaluate"
    ended, repeated = (
        {name: value for name, value in run.data.metrics.items() if name.startswith("test/")} for run in (first, last)
    )
    assert repeated == pytest.approx(ended, rel=1e-4)
    assert "test/psnr" in repeated


def test_inference_is_the_same_for_every_batch_size(trained, data_file, tmp_path):
    out = str(tmp_path / "out")
    first, *others = (reconstruct(trained, data_file, output_dir=out, batch_size=n)[0] for n in (1, 2, 9))
    for other in others:
        torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-5)


def test_everything_works_without_ground_truth(tmp_path, workflow_uri, client):
    blind = write_sinograms(tmp_path / "blind.h5", with_image=False)
    train(tmp_path, blind, workflow_uri, epochs=1, key_metric="auto")
    (run,) = runs(client, tmp_path.name)
    assert run.data.metrics["test/heldout"] > 0
    assert not any("psnr" in name or "ssim" in name for name in run.data.metrics)
    _, ids = reconstruct(tmp_path, blind, data_split="test")
    assert ids == ["item6", "item7", "item8"]


@pytest.mark.parametrize(("whole", "overlays"), [("trained", ()), ("trained_by_rotations", ("rotations.yaml",))])
def test_resumed_training_ends_where_an_unbroken_one_does(tmp_path, data_file, workflow_uri, whole, overlays, request):
    for knobs in ({"epochs": 1}, {"epochs": 2, "resume": True}):
        train(tmp_path, data_file, workflow_uri, *overlays, **knobs)
    folders = (request.getfixturevalue(whole), tmp_path)
    unbroken, resumed = (torch.load(folder / "models" / "last.pt") for folder in folders)
    assert resumed["iteration"] == unbroken["iteration"] == 4
    torch.testing.assert_close(resumed["reconstructor"], unbroken["reconstructor"], rtol=0, atol=1e-6)


def test_linear_reconstruction_is_called_fbp_wherever_it_is_shown(
    tmp_path, data_file, workflow_uri, client, monkeypatch, capsys, caplog
):
    caplog.set_level("INFO", "es_medical")
    shown = []

    def picture(*images, baseline_name, **options):
        shown.append((baseline_name, images[0]))
        return drawn(*images, baseline_name=baseline_name, **options)

    drawn = session.picture
    monkeypatch.setattr(session, "picture", picture)
    done = train(tmp_path, data_file, workflow_uri, epochs=1)
    output = capsys.readouterr().out
    (line,) = (message for message in caplog.messages if message.startswith("epoch 1/1"))
    assert " dB (FBP " in line
    row = next(line for line in output.splitlines() if line.startswith("│ FBP"))  # the table
    assert "FBP" in runs(client, tmp_path.name)[0].data.tags["mlflow.note.content"]
    assert "zero-filled" not in output + caplog.text
    assert [name for name, _ in shown] == ["FBP"] * 3  # before and after the epoch, and of the test
    batch = next(iter(done.parser.get_parsed_content("test#dataloader")))
    fbp = done.parser.get_parsed_content("physics").fbp(batch["measurement"])
    torch.testing.assert_close(shown[-1][1], fbp[0])
    scores = runs(client, tmp_path.name)[0].data.metrics
    assert f"{scores['test/baseline_psnr']:.2f} ±" in row


# --- the overlays


def test_paper_loss_is_the_papers_and_inference_takes_it(tmp_path, data_file, workflow_uri, built):
    loss = built("paper_loss.yaml")("loss")
    assert (loss.weighting, loss.split.split_ratio, loss.consistency_weight) == (None, 0.8, 0.8 / 0.2)
    train(tmp_path, data_file, workflow_uri, "paper_loss.yaml", epochs=1)
    images, _ = reconstruct(tmp_path, data_file, "paper_loss.yaml")
    assert images.isfinite().all()
    with pytest.warns(UserWarning, match=r"were trained with split_ratio 0\.8, they are used with 0\.9"):
        reconstruct(tmp_path, data_file)


def first_angles(network, seen):
    """Keep the angle of the first view that a reconstructor sees, call by call."""

    def note(module, args, kwargs):
        physics = kwargs.get("physics", args[1] if len(args) > 1 else None)
        seen.append(round(scanner_of(physics).geometry.angles[0], 6))

    network.register_forward_pre_hook(note, with_kwargs=True)


def test_rotations_turn_the_scanner_in_training_alone(built):
    get, seen = built("rotations.yaml", epochs=12), []
    first_angles(get("reconstructor"), seen)
    get("train#trainer").run()
    assert len(seen) == 24
    assert set(seen) == {-k * SPACING / 4 for k in range(4)}
    seen.clear()
    get("test#evaluator").run()
    assert set(seen) == {0}


def test_without_rotations_the_scanner_stays_as_it_is(built):
    get, seen = built(epochs=2), []
    first_angles(get("reconstructor"), seen)
    get("train#trainer").run()
    assert set(seen) == {0}
    assert get("loss").group is None
    with pytest.raises(IndexError, match="1 angles"):
        get("physics").turned(1)


def test_turned_scanners_have_the_views_between_those_of_the_scanner(built):
    get = built(rotations=2)
    physics, x = get("physics"), next(iter(get("test#dataloader")))["image"]
    half = physics.turned(1)
    assert half.geometry.angles == tuple(angle - SPACING / 2 for angle in physics.geometry.angles)
    assert float((half.A(x) - physics.A(x)).norm() / physics.A(x).norm()) > 0.01


def test_weights_trained_with_rotations_are_used_without_them(trained_by_rotations, data_file, client, tmp_path):
    assert runs(client, trained_by_rotations.name)[0].info.run_name == f"es-{VIEWS}views-rot4-seed0"
    out = str(tmp_path)
    (with_overlay, _), (without, _) = (
        reconstruct(trained_by_rotations, data_file, *files, output_dir=out) for files in (("rotations.yaml",), ())
    )
    torch.testing.assert_close(with_overlay, without)


@pytest.mark.parametrize("number", [0, -1])
def test_number_of_angles_that_is_none_is_refused(built, number):
    with pytest.raises(RuntimeError) as caught:
        built(rotations=number)("session")
    assert f"n_sub must be a whole number, at least 1, got {number}" in causes(caught.value)


# --- weighting and splits


@pytest.mark.parametrize(("name", "weighting"), [("none", None), ("ramp", RampWeighting())])
def test_weighting_reaches_both_terms_of_the_es_loss(built, name, weighting):
    """Exact for an image of air and no noise: the residual is -y."""
    get = built(weighting=name, assumed_sigma=0)
    y, network, loss = next(iter(get("train#dataloader")))["measurement"], Recorder(), get("loss")
    parts = loss(network, Batch(y, get("physics")), torch.Generator().manual_seed(0)).parts
    ((seen, physics1),) = network.calls
    m1 = physics1.mask
    torch.testing.assert_close(seen, m1 * y)
    torch.testing.assert_close(parts["consistency"], mean_square(y, m1, weighting))
    torch.testing.assert_close(parts["prediction"], mean_square(y, 1 - m1, weighting))


@pytest.mark.parametrize(("name", "weighting"), [("none", None), ("ramp", RampWeighting())])
def test_weighting_reaches_measurement_consistency(built, name, weighting):
    get = built(weighting=name, method="mc")
    y, physics = next(iter(get("train#dataloader")))["measurement"], get("physics")
    torch.testing.assert_close(get("loss")(Recorder(), Batch(y, physics)).total, mean_square(y, physics.mask, weighting))


def test_weightings_differ(built):
    y = next(iter(built()("train#dataloader")))["measurement"]
    mask = torch.ones(1, 1, VIEWS, 1)
    plain, ramp = mean_square(y, mask), mean_square(y, mask, RampWeighting())
    assert ((plain / ramp - 1).abs() > 0.5).all()


def test_unknown_weighting_is_refused_with_the_names(built):
    with pytest.raises(RuntimeError) as caught:
        built(weighting="hann")("loss")
    assert "unknown weighting 'hann': choose one of none, ramp" in causes(caught.value)


UNITS = {"views": (True, False), "rays": (True, True), "bins": (False, True)}  # whether M1 differs along views and bins


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_split_trained_and_used(tmp_path, data_file, workflow_uri, built, unit):
    get, network = built(split_unit=unit), Recorder()
    y, physics = next(iter(get("train#dataloader")))["measurement"], get("physics")
    get("loss")(network, Batch(y, physics, torch.full((len(y),), SIGMA)), torch.Generator().manual_seed(0))
    m1 = network.calls[0][1].mask.expand(-1, 1, *physics.grid)
    units = math.prod(n for n, differs in zip(physics.grid, UNITS[unit], strict=True) if differs)
    assert (m1.sum((1, 2, 3)) * units / m1[0].numel()).round(decimals=3).tolist() == [round(0.9 * units)] * len(y)
    assert [bool((m1 != m1.narrow(axis, 0, 1)).any()) for axis in (-2, -1)] == list(UNITS[unit])
    folder = tmp_path / "run"
    train(folder, data_file, workflow_uri, epochs=1, split_unit=unit)
    images, _ = reconstruct(folder, data_file, split_unit=unit)
    assert images.isfinite().all()


def test_unit_of_kspace_is_refused_with_those_of_sinograms(tmp_path, data_file, workflow_uri):
    with pytest.raises(RuntimeError) as caught:
        train(tmp_path, data_file, workflow_uri, split_unit="lines")
    assert "CT measures a sinogram, which has no lines: use views or rays or bins" in causes(caught.value)


# --- what the data must be


@pytest.mark.parametrize(
    ("overlay", "options"),
    [("train.yaml", LIDCOptions()), ("paper_loss.yaml", LIDCOptions()), ("demo.yaml", ChestOptions())],
)
def test_configuration_asks_for_what_the_command_makes_by_default(overlay, options):
    merged = load("train.yaml") | load(overlay)
    assert (merged["views"], merged["sigma"]) == (options.views, options.sigma)


@pytest.mark.parametrize(("knob", "value", "has"), [("views", 5, "views 6"), ("sigma", 0.1, "sigma 0.01")])
@pytest.mark.parametrize("file", ["train.yaml", "inference.json"])
def test_other_views_or_noise_than_those_of_the_file_are_refused(tmp_path, data_file, file, knob, value, has):
    with pytest.raises(RuntimeError) as caught:
        execute(workflow([file], tmp_path, data_file, "sqlite:///none.db", BUNDLE, **{knob: value}))
    found = causes(caught.value)
    assert f"{data_file} was made with {has}, the configuration asks for {knob} {value}: make new" in found
    assert f"--{knob} {value}" in found


def test_open_knobs_take_any_file(tmp_path, workflow_uri):
    other = write_sinograms(tmp_path / "other.h5", (24, 24), views=9, sigma=0.03)
    train(tmp_path, other, workflow_uri, epochs=1, views=None, sigma=None)
    images, _ = reconstruct(tmp_path, other, without=("views", "sigma"))
    assert len(images) == 9


def test_another_scanner_of_as_many_views_is_warned_of_and_refused_to_go_on_with(trained, tmp_path, workflow_uri):
    """The mask is the same: every view is measured."""
    other = write_sinograms(tmp_path / "other.h5", (24, 24))
    with pytest.warns(UserWarning, match="trained for another operator than the data has: other n_detectors, norm, size"):
        reconstruct(trained, other, output_dir=str(tmp_path))
    shutil.copytree(trained / "models", tmp_path / "models")
    with pytest.raises(RuntimeError) as caught:
        train(tmp_path, other, workflow_uri, epochs=3, resume=True)
    assert "is of a training for another operator: other n_detectors, norm, size" in causes(caught.value)


@pytest.mark.parametrize("file", ["train.yaml", "inference.json"])
def test_kspace_is_refused_by_name(tmp_path, file):
    other = write_slices(tmp_path / "mr.h5")
    with pytest.raises(RuntimeError) as caught:
        execute(workflow([file], tmp_path, other, "sqlite:///none.db", BUNDLE))
    assert f"{other} holds MR data without a scanner's geometry: expected CT sinograms" in causes(caught.value)


@pytest.mark.parametrize("bundle", ["fastmri_synthetic", "fastmri_real"])
@pytest.mark.parametrize("file", ["train.yaml", "inference.json"])
def test_sinograms_are_refused_by_the_bundles_of_kspace(tmp_path, data_file, bundle, file):
    with pytest.raises(RuntimeError) as caught:
        execute(workflow([file], tmp_path, data_file, "sqlite:///none.db", bundle))
    assert f"{data_file} holds CT data: expected MR" in causes(caught.value)
