"""The bundle fastmri_synthetic trains, evaluates, reconstructs and is exported, with the commands of MONAI."""

import shutil

import h5py
import pytest
import torch
from monai.bundle import ConfigParser, ckpt_export
from processes import PYTHON, shell
from tiny import CONFIGS, KNOBS, Parts, causes, execute, names, runs, workflow, write_slices

from es_medical.jobs.trained_weights import export_command
from es_medical.knobs import logged_knobs, read_options
from es_medical.tracking import with_hidden

BUNDLE = "fastmri_synthetic"


# --- configuration


def test_demo_and_x6_say_what_the_data_must_be():
    for name, knobs in (("demo.yaml", (4, 0.08, 0.005)), ("x6_10db.yaml", (6, 0.08, 0.1)), ("train.yaml", (8, 0.03, 0.005))):
        merged = ConfigParser.load_config_files([str(CONFIGS / "train.yaml"), str(CONFIGS / name)])
        assert tuple(merged[knob] for knob in ("acceleration", "center_fraction", "sigma")) == knobs


def test_unknown_method_lists_the_valid_ones(train, tmp_path):
    with pytest.raises(RuntimeError) as caught:
        train(BUNDLE, tmp_path, method="dip")
    assert "unknown method 'dip': choose one of supervised, supervised_neq, es, es_neq" in causes(caught.value)


# --- workflows


def test_inference_from_all_of_y_is_the_equivariant_network_and_says_that_it_was_not_chosen_so(trained, data_file, tmp_path):
    one = workflow(["inference.json"], trained(BUNDLE), data_file(BUNDLE), "", output_dir=str(tmp_path), eval_split_input=False)
    with pytest.warns(UserWarning, match="chosen by images that are averages over splits"):
        execute(one)
    network, physics = (one.parser.get_parsed_content(name) for name in ("reconstructor", "physics"))
    with h5py.File(data_file(BUNDLE)) as data, h5py.File(tmp_path / "reconstructions.h5") as file, torch.no_grad():
        expected = network(torch.from_numpy(data["measurement"][()]), physics)
        torch.testing.assert_close(torch.from_numpy(file["reconstruction"][()]), expected, rtol=1e-4, atol=1e-5)


def test_inference_without_weights_says_what_to_do(data_file, tmp_path):
    with pytest.raises(RuntimeError) as caught:
        execute(workflow(["inference.json"], tmp_path, data_file(BUNDLE), ""))
    assert "train first, or set ckpt_dir" in causes(caught.value)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:FutureWarning",
    "ignore:`torch.jit:DeprecationWarning",
    "ignore::torch.jit.TracerWarning",
    "ignore:UNet.compact:UserWarning",
)
def test_export_traces_the_denoiser(trained, tmp_path):
    """With the knobs of the weights: none is typed."""
    target, weights = tmp_path / "model.ts", trained(BUNDLE) / "models" / "model.pt"
    job, *options = export_command(weights.parent, target)
    assert job == "ckpt_export"
    ckpt_export(**read_options(options))
    exported = torch.jit.load(target)
    x = torch.rand(1, 2, 16, 16)
    plain = ConfigParser({"n": {"_target_": "es_medical.networks.unet", "widths": KNOBS["widths"]}}).get_parsed_content("n")
    plain.load_state_dict(torch.load(weights))
    torch.testing.assert_close(exported(x), plain(x))


def test_accelerated_knobs_run_on_the_cpu(train, data_file, tmp_path, client):
    train(BUNDLE, tmp_path, channels_last=True, amp=True, epochs=1)
    assert runs(client, tmp_path.name)[0].info.status == "FINISHED"
    plain = Parts(data_file(BUNDLE))
    plain.denoiser.load_state_dict(torch.load(tmp_path / "models" / "model.pt"))


# --- processes of their own


def test_command_line_from_the_bundles_root(tmp_path, empty_database):
    """What a user types: the demo, its numbers as text; everything lands under the bundle's root."""
    shutil.copytree(CONFIGS, tmp_path / "configs")
    shutil.copy(empty_database, tmp_path)
    write_slices(tmp_path / "demo.h5")
    knobs = {name: KNOBS[name] for name in ("acceleration", "center_fraction", "sigma", "widths", "iterations")}
    knobs |= {"epochs": 2, "lr": "1e-4", "resume": "false", "train#trainer#max_epochs": 1, "n_samples": 2, "warm_images": 4}
    options = [text for name, value in knobs.items() for text in (f"--{name}", str(value))]
    files = "['configs/train.yaml','configs/demo.yaml']"
    out = shell([*PYTHON, "-m", "monai.bundle", "run", "--config_file", files, *options], tmp_path)
    assert "4 train slices, 2 val slices, 3 test slices of demo.h5" in out
    assert "ground truth: not used in training, not used in the choice" in out
    assert "ground truth: synthetic images only" in out
    assert "epoch 1/1" in out
    assert "zero-filled" in out
    assert {"last.pt", "model.pt", "reconstructor.pt", "warm.pt", "README.md", "overview.html"} == names(tmp_path / "models")
    from es_medical.tracking.server import connect

    client = connect(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = runs(client, "fastmri_synthetic_demo")
    knobs = logged_knobs(run.data.params, with_hidden(run.data.tags))
    assert (run.info.status, knobs["lr"], knobs["resume"]) == ("FINISHED", "0.0001", "False")
    assert run.info.artifact_uri.startswith((tmp_path / "mlartifacts").as_uri())
