"""The bundle fastmri_synthetic trains, evaluates, reconstructs and is exported, with the commands of MONAI."""

import shutil

import h5py
import pytest
import torch
from monai.bundle import ConfigParser, ckpt_export
from processes import PYTHON, runs, shell
from tiny import CONFIGS, KNOBS, Parts, causes, execute, names, workflow, write_slices

METADATA, INFERENCE = str(CONFIGS / "metadata.json"), str(CONFIGS / "inference.json")


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    return write_slices(tmp_path_factory.mktemp("bundle") / "slices.h5")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data_file, workflow_uri):
    """The folder of a finished training, and what it said of its properties."""
    folder = tmp_path_factory.mktemp("trained")
    one = workflow(["train.yaml"], folder, data_file, workflow_uri)
    one.initialize()
    missing = one.check_properties()
    one.run()
    one.finalize()
    return folder, missing


# --- configuration


def test_demo_and_x6_say_what_the_data_must_be():
    for name, knobs in (("demo.yaml", (4, 0.08, 0.005)), ("x6_10db.yaml", (6, 0.08, 0.1)), ("train.yaml", (8, 0.03, 0.005))):
        merged = ConfigParser.load_config_files([str(CONFIGS / "train.yaml"), str(CONFIGS / name)])
        assert tuple(merged[knob] for knob in ("acceleration", "center_fraction", "sigma")) == knobs


def test_unknown_method_lists_the_valid_ones(data_file, tmp_path, workflow_uri):
    one = workflow(["train.yaml"], tmp_path, data_file, workflow_uri, method="dip")
    one.initialize()
    with pytest.raises(RuntimeError) as caught:
        one.run()
    assert "unknown method 'dip': choose one of es, es_neq" in causes(caught.value)


# --- workflows


def test_training_has_every_property_and_leaves_weights(trained):
    folder, missing = trained
    assert missing == []
    assert {"last.pt", "reconstructor.pt", "model.pt"} == names(folder / "models")


def test_evaluation_runs(trained, data_file, workflow_uri, client):
    folder, _ = trained
    one = workflow(["train.yaml", "evaluate.yaml"], folder, data_file, workflow_uri)
    one.initialize()
    assert one.check_properties() == []
    one.run()
    one.finalize()
    assert runs(client, folder.name)[-1].info.run_name.endswith("-evaluate")


def test_inference_runs_and_repeats_itself(trained, data_file, tmp_path):
    folder, _ = trained
    images = []
    for batch_size in (2, 3):
        one = workflow(["inference.json"], folder, data_file, "", output_dir=str(tmp_path / "out"), batch_size=batch_size)
        one.initialize()
        assert one.check_properties() == []
        one.run()
        one.finalize()
        with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
            images.append(torch.from_numpy(file["reconstruction"][()]))
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-5)


def test_inference_from_all_of_y_is_the_equivariant_network_and_says_that_it_was_not_chosen_so(trained, data_file, tmp_path):
    folder, _ = trained
    one = workflow(["inference.json"], folder, data_file, "", output_dir=str(tmp_path), eval_split_input=False)
    with pytest.warns(UserWarning, match="chosen by images that are averages over splits"):
        execute(one)
    network, physics = (one.parser.get_parsed_content(name) for name in ("reconstructor", "physics"))
    with h5py.File(data_file) as data, h5py.File(tmp_path / "reconstructions.h5") as file, torch.no_grad():
        expected = network(torch.from_numpy(data["measurement"][()]), physics)
        torch.testing.assert_close(torch.from_numpy(file["reconstruction"][()]), expected, rtol=1e-4, atol=1e-5)


def test_inference_of_one_split_and_without_ground_truth(trained, tmp_path):
    folder, _ = trained
    blind = write_slices(tmp_path / "blind.h5", with_image=False)
    execute(workflow(["inference.json"], folder, blind, "", output_dir=str(tmp_path / "out"), data_split="test"))
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        assert file["id"].asstr()[()].tolist() == ["item6", "item7", "item8"]


def test_inference_without_weights_says_what_to_do(data_file, tmp_path):
    with pytest.raises(RuntimeError) as caught:
        execute(workflow(["inference.json"], tmp_path, data_file, ""))
    assert "train first, or set ckpt_dir" in causes(caught.value)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:FutureWarning",
    "ignore:`torch.jit:DeprecationWarning",
    "ignore::torch.jit.TracerWarning",
    "ignore:UNet.compact:UserWarning",
)
def test_export_traces_the_denoiser(trained, tmp_path):
    folder, _ = trained
    target, weights = tmp_path / "model.ts", str(folder / "models" / "model.pt")
    files = {"meta_file": METADATA, "config_file": INFERENCE}
    shape = {"use_trace": True, "input_shape": [1, 2, 16, 16]}
    ckpt_export("network_def", filepath=str(target), ckpt_file=weights, **files, **shape, widths=KNOBS["widths"])
    exported = torch.jit.load(target)
    x = torch.rand(1, 2, 16, 16)
    plain = ConfigParser({"n": {"_target_": "es_medical.networks.unet", "widths": KNOBS["widths"]}}).get_parsed_content("n")
    plain.load_state_dict(torch.load(weights))
    torch.testing.assert_close(exported(x), plain(x))


def test_accelerated_knobs_run_on_the_cpu(data_file, tmp_path, workflow_uri, client):
    execute(workflow(["train.yaml"], tmp_path, data_file, workflow_uri, channels_last=True, amp=True, epochs=1))
    assert runs(client, tmp_path.name)[0].info.status == "FINISHED"
    plain = Parts(data_file)
    plain.denoiser.load_state_dict(torch.load(tmp_path / "models" / "model.pt"))


# --- processes of their own


def test_command_line_from_the_bundles_root(tmp_path, workflow_uri):
    """What a user types: the demo, its numbers as text; everything lands under the bundle's root."""
    shutil.copytree(CONFIGS, tmp_path / "configs")
    shutil.copy(workflow_uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db")  # new tables take seconds
    write_slices(tmp_path / "demo.h5")
    knobs = {name: KNOBS[name] for name in ("acceleration", "center_fraction", "sigma", "widths", "iterations")}
    knobs |= {"epochs": 2, "lr": "1e-4", "resume": "false", "train#trainer#max_epochs": 1, "n_samples": 2}
    options = [text for name, value in knobs.items() for text in (f"--{name}", str(value))]
    files = "['configs/train.yaml','configs/demo.yaml']"
    out = shell([*PYTHON, "-m", "monai.bundle", "run", "--config_file", files, *options], tmp_path)
    assert "4 train slices, 2 val slices, 3 test slices of demo.h5" in out
    assert "ground truth: not used in training, not used in the choice" in out
    assert "epoch 1/1" in out
    assert "zero-filled" in out
    assert {"last.pt", "model.pt", "reconstructor.pt"} == names(tmp_path / "models")
    from es_medical.tracking.server import connect

    client = connect(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = runs(client, "fastmri_synthetic_demo")
    assert (run.info.status, run.data.params["lr"], run.data.params["resume"]) == ("FINISHED", "0.0001", "False")
    assert run.info.artifact_uri.startswith((tmp_path / "mlartifacts").as_uri())
