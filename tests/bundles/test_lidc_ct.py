"""The bundle lidc_ct trains, evaluates and reconstructs on sparse-view sinograms: methods, splits, weighting, rotations."""

import math
import shutil

import h5py
import pytest
import torch
from processes import reconstruct
from tiny import SIGMA, VIEWS, Recorder, causes, execute, load, runs, workflow, write_sinograms

from data_prep.ct.options import LIDCOptions
from data_prep.demo.options import ChestOptions
from es_medical.jobs import record
from es_medical.losses.base import mean_square
from es_medical.losses.weighting import RampWeighting
from es_medical.physics import Batch, VirtualPhysics

BUNDLE = "lidc_ct"
SPACING = 180 / VIEWS


def scanner_of(physics):
    """The scanner under A T_g."""
    while isinstance(physics, VirtualPhysics):
        physics = physics.physics
    return physics


# --- what it trains, tests and reconstructs


def test_run_names_its_views_and_images_are_near_the_truth(trained, data_file, client, tmp_path):
    run = runs(client, trained(BUNDLE).name)[0]
    assert (run.info.run_name, run.data.tags["views"]) == (
        f"ES, CT {VIEWS} views, {data_file(BUNDLE).name}, seed 0",
        str(VIEWS),
    )
    found, _ = reconstruct(BUNDLE, trained(BUNDLE), data_file(BUNDLE), output_dir=str(tmp_path))
    with h5py.File(data_file(BUNDLE)) as file:
        truth = torch.from_numpy(file["image"][()])
    assert ((found - truth).square().sum((1, 2, 3)) < 0.25 * truth.square().sum((1, 2, 3))).all()


def test_linear_reconstruction_is_called_fbp_wherever_it_is_shown(tmp_path, train, client, monkeypatch, capsys, caplog):
    caplog.set_level("INFO", "es_medical")
    shown = []

    def picture(*images, baseline_name, **options):
        shown.append((baseline_name, images[0]))
        return drawn(*images, baseline_name=baseline_name, **options)

    drawn = record.picture
    monkeypatch.setattr(record, "picture", picture)
    done = train(BUNDLE, tmp_path, epochs=1)
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
    psnr = [one["baseline_psnr"] for one in done.parser.get_parsed_content("test#evaluator").rows]
    assert f"{sum(psnr) / len(psnr):.2f} ±" in row


# --- the overlays


@pytest.mark.usefixtures("untracked")
def test_paper_loss_is_the_papers_and_inference_takes_it(tmp_path, train, data_file, built):
    loss = built(BUNDLE, "paper_loss.yaml")("loss")
    assert (loss.weighting, loss.split.split_ratio, loss.consistency_weight) == (None, 0.8, 0.8 / 0.2)
    train(BUNDLE, tmp_path, "paper_loss.yaml", epochs=1)
    reconstruct(BUNDLE, tmp_path, data_file(BUNDLE), "paper_loss.yaml")
    reconstruct(BUNDLE, tmp_path, data_file(BUNDLE))  # auto: the ratio that is kept with the weights
    with pytest.warns(UserWarning, match=r"were trained with split_ratio 0\.8, they are used with 0\.9"):
        reconstruct(BUNDLE, tmp_path, data_file(BUNDLE), split_ratio=0.9)


def first_angles(network, seen):
    """Keep the angle of the first view that a reconstructor sees, call by call."""

    def note(module, args, kwargs):
        physics = kwargs.get("physics", args[1] if len(args) > 1 else None)
        seen.append(round(scanner_of(physics).geometry.angles[0], 6))

    network.register_forward_pre_hook(note, with_kwargs=True)


def test_rotations_turn_the_scanner_in_training_alone(built):
    get, seen = built(BUNDLE, "rotations.yaml", epochs=6), []
    first_angles(get("reconstructor"), seen)
    get("train#trainer").run()
    assert len(seen) == 12
    assert set(seen) == {-k * SPACING / 4 for k in range(4)}
    seen.clear()
    get("test#evaluator").equiv_group = None
    get("test#evaluator").run()
    assert set(seen) == {0}


def test_without_rotations_the_scanner_stays_as_it_is(built):
    get, seen = built(BUNDLE, epochs=2), []
    first_angles(get("reconstructor"), seen)
    get("train#trainer").run()
    assert set(seen) == {0}
    assert get("loss").group is None
    with pytest.raises(IndexError, match="1 angles"):
        get("physics").turned(1)


def test_turned_scanners_have_the_views_between_those_of_the_scanner(built):
    get = built(BUNDLE, rotations=2)
    physics, x = get("physics"), next(iter(get("test#dataloader")))["image"]
    half = physics.turned(1)
    assert half.geometry.angles == tuple(angle - SPACING / 2 for angle in physics.geometry.angles)
    assert float((half.A(x) - physics.A(x)).norm() / physics.A(x).norm()) > 0.01


def test_weights_trained_with_rotations_are_used_without_them(trained, data_file, client, tmp_path):
    folder = trained(BUNDLE, "rotations.yaml")
    assert runs(client, folder.name)[0].info.run_name == f"ES, CT {VIEWS} views rotations 4, {data_file(BUNDLE).name}, seed 0"
    with_overlay, _ = reconstruct(BUNDLE, folder, data_file(BUNDLE), "rotations.yaml", output_dir=str(tmp_path))
    without, _ = reconstruct(BUNDLE, folder, data_file(BUNDLE), output_dir=str(tmp_path))
    torch.testing.assert_close(with_overlay, without)


# --- weighting and splits


@pytest.mark.parametrize(("name", "weighting"), [("none", None), ("ramp", RampWeighting())])
def test_weighting_reaches_both_terms_of_the_es_loss(built, name, weighting):
    """Exact for an image of air and no noise: the residual is -y."""
    get = built(BUNDLE, weighting=name, assumed_sigma=0)
    y, network, loss = next(iter(get("train#dataloader")))["measurement"], Recorder(1), get("loss")
    parts = loss(network, Batch(y, get("physics")), torch.Generator().manual_seed(0)).parts
    ((seen, physics1),) = network.calls
    m1 = physics1.mask
    torch.testing.assert_close(seen, m1 * y)
    torch.testing.assert_close(parts["consistency"], mean_square(y, m1, weighting))
    torch.testing.assert_close(parts["prediction"], mean_square(y, 1 - m1, weighting))
    assert ((mean_square(y, m1) / mean_square(y, m1, RampWeighting()) - 1).abs() > 0.5).all()  # the weightings differ


UNITS = {"views": (True, False), "rays": (True, True), "bins": (False, True)}  # whether M1 differs along views and bins


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_is_split_trained_and_used(built, unit):
    get, network = built(BUNDLE, split_unit=unit, epochs=1), Recorder(1)
    y, physics = next(iter(get("train#dataloader")))["measurement"], get("physics")
    get("loss")(network, Batch(y, physics, torch.full((len(y),), SIGMA)), torch.Generator().manual_seed(0))
    m1 = network.calls[0][1].mask.expand(-1, 1, *physics.grid)
    units = math.prod(n for n, differs in zip(physics.grid, UNITS[unit], strict=True) if differs)
    assert (m1.sum((1, 2, 3)) * units / m1[0].numel()).round(decimals=3).tolist() == [round(0.9 * units)] * len(y)
    assert [bool((m1 != m1.narrow(axis, 0, 1)).any()) for axis in (-2, -1)] == list(UNITS[unit])
    get("train#trainer").run()
    tester = get("test#evaluator")
    tester.equiv_group = None
    tester.run()
    assert len(tester.rows) == 3


# --- what the data must be


@pytest.mark.parametrize(
    ("overlay", "options"),
    [("train.yaml", LIDCOptions()), ("paper_loss.yaml", LIDCOptions()), ("demo.yaml", ChestOptions())],
)
def test_configuration_asks_for_what_the_command_makes_by_default(overlay, options):
    merged = load(BUNDLE, "train.yaml") | load(BUNDLE, overlay)
    assert (merged["views"], merged["sigma"]) == (options.views, options.sigma)


@pytest.mark.parametrize(("knob", "value", "has"), [("views", 5, "views 6"), ("sigma", 0.1, "sigma 0.01")])
@pytest.mark.parametrize("file", ["train.yaml", "inference.json"])
def test_other_views_or_noise_than_those_of_the_file_are_refused(tmp_path, trained, data_file, file, knob, value, has):
    folder = tmp_path if file == "train.yaml" else trained(BUNDLE)
    with pytest.raises(RuntimeError) as caught:
        execute(workflow([file], folder, data_file(BUNDLE), "sqlite:///none.db", BUNDLE, **{knob: value}))
    found = causes(caught.value)
    assert f"{data_file(BUNDLE)} was made with {has}, the configuration asks for {knob} {value}: make new" in found
    assert f"--{knob} {value}" in found


@pytest.mark.usefixtures("untracked")
def test_open_knobs_take_any_file(tmp_path, train):
    other = write_sinograms(tmp_path / "other.h5", (24, 24), views=9, sigma=0.03)
    train(BUNDLE, tmp_path, source=other, epochs=1, views=None, sigma=None)
    images, _ = reconstruct(BUNDLE, tmp_path, other, without=("views", "sigma"))
    assert len(images) == 9


def test_another_scanner_of_as_many_views_is_warned_of_and_refused_to_go_on_with(trained, tmp_path, train):
    """The mask is the same: every view is measured."""
    other = write_sinograms(tmp_path / "other.h5", (24, 24))
    with pytest.warns(UserWarning, match="trained for another operator than the data has: other n_detectors, norm, size"):
        reconstruct(BUNDLE, trained(BUNDLE), other, output_dir=str(tmp_path))
    shutil.copytree(trained(BUNDLE) / "models", tmp_path / "models")
    with pytest.raises(RuntimeError) as caught:
        train(BUNDLE, tmp_path, source=other, epochs=3, resume=True)
    assert "is from a training for another operator: other n_detectors, norm, size" in causes(caught.value)
