"""The bundle fastmri_synthetic does what every MONAI bundle does, with every command of MONAI."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import torch
from monai.bundle import ConfigParser, ckpt_export, verify_metadata, verify_net_in_out
from tiny import CONFIGS, KNOBS, Parts, causes, execute, names, workflow, write_slices

ROOT, SCHEMA = CONFIGS.parent, Path(__file__).with_name("metadata_schema.json")
OVERLAYS = ["demo.yaml", "x6_10db.yaml", "multi_gpu_train.yaml", "evaluate.yaml"]
METADATA, INFERENCE = str(CONFIGS / "metadata.json"), str(CONFIGS / "inference.json")
unhashed = pytest.mark.filterwarnings("ignore:No hash value provided:UserWarning")  # our own file, not downloaded
PYTHON = [sys.executable, "-W", "ignore"]


def load(name):
    return ConfigParser.load_config_file(str(CONFIGS / name))


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


def runs(client, name):
    return client.search_runs([client.get_experiment_by_name(name).experiment_id], order_by=["start_time ASC"])


# --- files and metadata


@pytest.mark.parametrize(
    "name",
    ["LICENSE", "docs/README.md", "docs/data_license.txt"]
    + [f"configs/{one}" for one in (*OVERLAYS, "train.yaml", "inference.json", "metadata.json", "logging.conf")],
)
def test_file_is_there(name):
    assert (ROOT / name).stat().st_size > 0


def test_nothing_in_the_configuration_stands_on_an_absolute_path():
    for path in CONFIGS.iterdir():
        assert not any(word in path.read_text() for word in ("/home", "/root", "/work", "/mnt", "/data/u", "C:\\"))


def test_changelog_holds_the_version():
    metadata = load("metadata.json")
    assert metadata["version"] in metadata["changelog"]


@unhashed
def test_metadata_is_valid(tmp_path):
    schema = shutil.copy(SCHEMA, tmp_path / "schema.json")
    verify_metadata(meta_file=METADATA, filepath=schema)  # a file that is there is not downloaded


@unhashed
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), None),
        (("required_packages_version",), None),
        (("network_data_format", "outputs"), None),
        (("network_data_format", "inputs", "image", "value_range"), None),
        (("network_data_format", "inputs", "image", "num_channels"), "2"),
        (("monai_version",), "newest"),
    ],
)
def test_metadata_that_lacks_something_is_refused(tmp_path, path, value):
    content = copy.deepcopy(load("metadata.json"))
    place = content
    for name in path[:-1]:
        place = place[name]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    broken = tmp_path / "metadata.json"
    broken.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="Failed validating"):
        verify_metadata(meta_file=str(broken), filepath=shutil.copy(SCHEMA, tmp_path / "schema.json"))


def test_required_packages_are_dependencies_of_ours():
    import tomllib

    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    for package, wanted in load("metadata.json")["required_packages_version"].items():
        assert any(one.startswith(package) and wanted.rstrip(".0") in one for one in project["dependencies"]), package


@pytest.mark.parametrize("config", ["train.yaml", "inference.json"])
def test_network_takes_and_gives_what_the_metadata_says(config):
    files = {"meta_file": METADATA, "config_file": str(CONFIGS / config)}
    verify_net_in_out("network_def", **files, device="cpu", any=32)
    verify_net_in_out("network_def", **files, device="cpu", n=4)


# --- configuration files


@pytest.mark.parametrize("name", ["train.yaml", *OVERLAYS])
def test_yaml_is_short(name):
    assert len((CONFIGS / name).read_text().splitlines()) <= 100


@pytest.mark.parametrize("name", ["demo.yaml", "x6_10db.yaml", "multi_gpu_train.yaml"])
def test_overlay_sets_only_names_that_the_training_has(name):
    assert set(load(name)) <= set(load("train.yaml"))


def test_numbers_of_overlays_are_numbers():
    shipped = load("train.yaml")
    for name in OVERLAYS:
        for key, value in load(name).items():
            default = shipped[key]
            if isinstance(default, int | float):
                assert type(value) is type(default) or isinstance(value, int | float), (name, key, value)


def test_inference_has_the_knobs_of_the_training():
    training, inference = load("train.yaml"), load("inference.json")
    own = {"data_split", "mask_seed", "input_file", "weights", "dataset", "dataloader", "handlers", "evaluator"}
    assert set(inference) - set(training) == own
    knobs = {name for name, value in inference.items() if not isinstance(value, dict | list)} - own - {"num_workers"}
    knobs |= {"widths"}
    assert {name: inference[name] for name in knobs} == {name: training[name] for name in knobs}
    for name in ("network_def", "group", "inferer", "device"):
        assert inference[name] == training[name]


@pytest.mark.parametrize("files", [["train.yaml", one] for one in OVERLAYS] + [["inference.json", "demo.yaml"]])
def test_overlays_merge_and_everything_is_built(files, data_file, tmp_path, monkeypatch):
    kept = {name: KNOBS[name] for name in ("acceleration", "center_fraction", "sigma", "widths")}
    one = workflow(files, tmp_path, data_file, "sqlite:///none.db", **kept)
    one.initialize()
    assert one.check_properties() == []
    for name in ("session", "checkpoints") if "train.yaml" in files else ("evaluator", "inferer"):
        one.parser.get_parsed_content(name)


def test_demo_and_x6_say_what_the_data_must_be():
    for name, knobs in (("demo.yaml", (4, 0.08, 0.005)), ("x6_10db.yaml", (6, 0.08, 0.1)), ("train.yaml", (8, 0.03, 0.005))):
        merged = ConfigParser.load_config_files([str(CONFIGS / "train.yaml"), str(CONFIGS / name)])
        assert tuple(merged[knob] for knob in ("acceleration", "center_fraction", "sigma")) == knobs


def test_no_ground_truth_is_used_by_default():
    training = load("train.yaml")
    assert (training["method"], load("demo.yaml")["key_metric"]) == ("es", "heldout")
    assert all("method" not in load(name) for name in OVERLAYS)


def test_unknown_method_lists_the_valid_ones(data_file, tmp_path, workflow_uri):
    one = workflow(["train.yaml"], tmp_path, data_file, workflow_uri, method="ei")
    one.initialize()
    with pytest.raises(RuntimeError) as caught:
        one.run()
    assert "unknown method 'ei': choose one of es, supervised" in causes(caught.value)


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


def test_every_method_trains(data_file, tmp_path, workflow_uri, client):
    from es_medical.losses import METHODS

    for method in METHODS:
        folder = tmp_path / f"{tmp_path.name}-{method}"
        execute(workflow(["train.yaml"], folder, data_file, workflow_uri, method=method, epochs=1))
        (run,) = runs(client, folder.name)
        assert (run.info.status, run.data.tags["method"]) == ("FINISHED", method)


# --- processes of their own


def shell(command, cwd, **environment):
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | environment
    settings.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


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
    from es_medical.engine.tracking.server import connect

    client = connect(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = runs(client, "fastmri_synthetic_demo")
    assert (run.info.status, run.data.params["lr"], run.data.params["resume"]) == ("FINISHED", "0.0001", "False")
    assert run.info.artifact_uri.startswith((tmp_path / "mlartifacts").as_uri())


def test_two_processes_train_one_model_and_log_once(tmp_path, workflow_uri, client, data_file):
    """Three test slices and two processes: shares of different size, the same scores as one process gives."""
    launch = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = str(Path(__file__).with_name("two_processes.py"))
    out = shell([*launch, script, str(tmp_path), str(data_file), workflow_uri], tmp_path)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    assert first["weights"] == first["resumed"] == second["resumed"]
    assert first["generator"] != second["generator"]
    assert first["steps"] == second["steps"] == 2 * 4 / 2
    assert first["processes"] == 2
    (run,) = runs(client, tmp_path.name)
    assert run.info.status == "FINISHED"
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    assert out.count("epoch 1/2") == 1  # the first process speaks for both
    assert out.count("held-out error") == 3  # one table for each of the three trainings
    execute(workflow(["train.yaml", "evaluate.yaml"], tmp_path, data_file, workflow_uri))
    alone = runs(client, tmp_path.name)[-1]
    assert alone.info.run_id != run.info.run_id
    for name in ("test/heldout", "test/psnr", "test/psnr_sd"):
        assert alone.data.metrics[name] == pytest.approx(run.data.metrics[name], rel=1e-4)
