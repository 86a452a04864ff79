"""A whole job from a bundle's configuration: what is trained, what is kept, and what MLflow shows of it."""

import getpass
import html
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from tiny import DEAD, SPLITS, causes, execute, runs, steps, workflow, write_slices

from es_medical.data import file_digest
from es_medical.engine import evaluator
from es_medical.knobs import logged_knobs
from es_medical.output.overview import DATA
from es_medical.tracking import upload, with_hidden
from es_medical.tracking.spool import spools


@pytest.fixture
def train(data_file, workflow_uri, tmp_path) -> Callable:
    def run(*overlays, source=data_file, uri=workflow_uri, **overrides):
        return execute(workflow(["train.yaml", *overlays], tmp_path, source, uri, **overrides))

    return run


def paths(client, run, folder=None):
    return {file.path for file in client.list_artifacts(run.info.run_id, folder)}


def content(client, run, path, tmp_path):
    return Path(client.download_artifacts(run.info.run_id, path, str(tmp_path))).read_text()


# --- what a finished job leaves


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_file, workflow_uri, client):
    """One run of two epochs, looked at by many tests."""
    folder = tmp_path_factory.mktemp("finished")
    execute(workflow(["train.yaml"], folder, data_file, workflow_uri, n_cases=2))
    (run,) = runs(client, folder.name)
    return run, folder


def test_run_is_finished_and_named(finished, client, data_file):
    run, _ = finished
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "ES, MRI x2, slices.h5, seed 0"
    tags = {"method": "es", "operator": "MRI", "bundle": "fastmri_synthetic", "acceleration": "2.0", "data_set": str(data_file)}
    assert run.data.tags.items() >= tags.items()


def test_knobs_have_their_overrides_and_only_the_main_ones_are_parameters(finished):
    run, _ = finished
    assert run.data.params.items() >= {"lr": "0.01", "widths": "[4, 8]", "seed": "0", "method": "es"}.items()
    assert len(run.data.params) <= 13
    knobs = logged_knobs(run.data.params, with_hidden(run.data.tags))
    assert knobs.items() >= run.data.params.items() | {"assumed_sigma": "0.01", "alpha": "0.5"}.items()
    assert not any("_target_" in name or "session." in value for name, value in knobs.items())


def test_chips_are_what_a_person_looks_for_and_user_and_command_are_known(finished):
    run, _ = finished
    chips = {name for name in run.data.tags if not name.startswith("mlflow.")}
    assert chips == {"method", "bundle", "operator", "acceleration", "sigma", "scale", "data_set"}
    assert run.info.user_id == run.data.tags["mlflow.user"] == getpass.getuser()
    assert run.data.tags["mlflow.source.name"].startswith(("pytest", "-c"))  # -c: a worker of xdist


def test_description_starts_with_the_result_and_is_on_the_page(finished, client, tmp_path):
    run, folder = finished
    gain = run.data.metrics["test/psnr"] - run.data.metrics["val/baseline_psnr"]
    first, *_ = run.data.tags["mlflow.note.content"].splitlines()
    found = re.fullmatch(r"\*\*(ES, no ground truth: \+?(\d+\.\d) dB (over|below) zero-filled .*)\*\*", first)
    assert float(found[2]) == pytest.approx(abs(gain), abs=2)  # test and validation slices differ
    page = content(client, run, "overview.html", tmp_path)
    assert html.escape(found[1]) in page.replace("&#43;", "+")
    assert page == (folder / "models" / "overview.html").read_text()
    assert len(page) < 3_000_000


def test_curves_are_per_step_and_per_validation(finished, client):
    run, _ = finished
    for name in ("train/loss", "train/consistency", "train/prediction", "train/grad_norm"):
        assert [step for step, _ in steps(client, run, name)] == [1, 2, 3, 4]
    assert steps(client, run, "lr") == [(2, 0.01), (4, pytest.approx(0.003))]
    assert steps(client, run, "epoch") == [(2, 1), (4, 2)]
    assert all(value > 0 for _, value in steps(client, run, "epoch_time"))
    for name in ("val/heldout", "val/psnr", "val/ssim", "val/baseline_psnr"):
        assert [step for step, _ in steps(client, run, name)] == [0, 2, 4]  # the first before training
    assert {name for name in run.data.metrics if name.startswith("test/")} == {"test/psnr", "test/ssim", "test/heldout"}
    assert run.data.metrics.keys() >= {"system/cpu_utilization_percentage"}


def test_pictures_step_through_the_epochs(finished, client):
    run, _ = finished
    images = paths(client, run, "images")
    for item in ("item4", "item5"):
        for epoch in (0, 1, 2):
            assert any(path.startswith(f"images/recon~{item}+step+{epoch}+") for path in images), images
    assert any("test" in path for path in images)


def test_configuration_artifact_reproduces_the_run(finished, client, tmp_path):
    import yaml

    run, folder = finished
    configuration = yaml.safe_load(content(client, run, "config.yaml", tmp_path))
    assert configuration["widths"] == [4, 8]
    assert configuration["ckpt_dir"] == str(folder / "models")
    assert configuration["loss"]["_target_"] == "es_medical.engine.setup.build_loss"
    assert "environment.json" in paths(client, run)


def test_lineage_names_the_file_of_each_split(finished, client, data_file):
    run, _ = finished
    used = {one.tags[0].value: one.dataset for one in client.get_run(run.info.run_id).inputs.dataset_inputs}
    assert set(used) == {"train", "val", "test"}
    rows = {context: json.loads(dataset.profile) for context, dataset in used.items()}
    assert {context: one["num_rows"] for context, one in rows.items()} == {"train": 4, "val": 2, "test": 3}
    assert {one["sha256"] for one in rows.values()} == {file_digest(data_file)}


def test_tables_hold_every_test_slice_and_the_summary(finished, client, tmp_path):
    run, _ = finished
    cases = json.loads(content(client, run, "test/cases.json", tmp_path))
    assert len(cases["data"]) == 3
    assert {"id", "psnr", "ssim", "heldout", "equiv", "baseline_psnr"} <= set(cases["columns"])
    psnr = [row[cases["columns"].index("psnr")] for row in cases["data"]]
    assert np.mean(psnr) == pytest.approx(run.data.metrics["test/psnr"])
    summary = json.loads(content(client, run, "test/summary.json", tmp_path))
    titles = ["method", "slices", "PSNR (dB)", "SSIM", "EQUIV (dB)", "held-out error"]
    assert summary["columns"] == titles
    assert [row[0] for row in summary["data"]] == ["zero-filled", "es"]


def test_final_table_is_printed_with_the_places_and_an_exact_equivariance_is_no_number(
    train, client, tmp_path, capsys, monkeypatch, caplog
):
    """Of a supervised network, whose choice by the held-out error is warned of."""
    exact = torch.tensor([math.inf] * 3)
    monkeypatch.setattr(evaluator, "equivariance", lambda reconstruct, y, physics, group: exact[: len(y)])
    with caplog.at_level("WARNING", logger="es_medical"):
        train(method="supervised", epochs=1)
    assert "supervised is trained on whole measurements" in caplog.text
    (run,) = runs(client, tmp_path.name)
    assert not any("equiv" in name for name in run.data.metrics)
    assert not any("nonfinite" in name for name in run.data.tags)
    cases = json.loads(content(client, run, "test/cases.json", tmp_path), parse_constant=pytest.fail)
    assert [row[cases["columns"].index("equiv")] for row in cases["data"]] == ["inf"] * 3
    assert "∞ (exact)" in json.loads(content(client, run, "test/summary.json", tmp_path))["data"][1]
    out = capsys.readouterr().out
    for words in ("zero-filled", "held-out error", "∞ (exact)", str(tmp_path / "models")):
        assert words in out, words
    assert "mlflow ui --backend-store-uri sqlite:////" in out
    assert f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?workflowType=machine_learning" in out


def test_model_is_logged_with_a_signature_and_is_the_best(finished, client, workflow_uri):
    import mlflow

    run, folder = finished
    (model,) = client.search_logged_models([run.info.experiment_id], filter_string=f"source_run_id = '{run.info.run_id}'")
    mlflow.set_tracking_uri(workflow_uri)
    assert model.name == "fastmri_synthetic"
    network = mlflow.pytorch.load_model(f"models:/{model.model_id}")
    assert mlflow.models.get_model_info(f"models:/{model.model_id}").signature is not None
    best = torch.load(folder / "models" / "model.pt", weights_only=True)
    assert all(torch.equal(value, best[name]) for name, value in network.state_dict().items())
    assert network(torch.rand(2, 2, 32, 24)).shape == (2, 2, 32, 24)


def test_best_weights_are_those_of_the_best_heldout_error(finished, client):
    run, folder = finished
    errors = [value for _, value in steps(client, run, "val/heldout")[1:]]
    best = torch.load(folder / "models" / "reconstructor.pt")
    assert best["epoch"] == errors.index(min(errors)) + 1
    assert best["score"] == -min(errors)


def test_nothing_is_left_unsent(finished):
    _, folder = finished
    assert not (folder / "eval" / "unsent").exists()


# --- other ways through a job


def test_file_of_test_slices_alone_can_be_evaluated(finished, client, tmp_path, workflow_uri):
    _, folder = finished
    source = write_slices(tmp_path / "tests_only.h5", splits={"test": 2})
    places = {"ckpt_dir": str(folder / "models"), "experiment": tmp_path.name}
    execute(workflow(["train.yaml", "evaluate.yaml"], tmp_path, source, workflow_uri, **places))
    (run,) = runs(client, tmp_path.name)
    assert run.info.status == "FINISHED"
    assert "test/psnr" in run.data.metrics
    assert [one.tags[0].value for one in run.inputs.dataset_inputs] == ["test"]


def test_poisoned_ground_truth_changes_neither_training_nor_choice(train, client, tmp_path, finished):
    """The images are read for the PSNR curve alone."""
    train(source=write_slices(tmp_path / "poisoned.h5", poison=dict.fromkeys(range(9), "image")))
    (run,) = runs(client, tmp_path.name)
    expected, folder = finished
    assert steps(client, run, "train/loss") == steps(client, expected, "train/loss")
    assert run.data.metrics["test/heldout"] == expected.data.metrics["test/heldout"]
    mine, theirs = (torch.load(place / "models" / "model.pt") for place in (tmp_path, folder))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_supervised_training_and_choice_by_psnr(train, client, tmp_path):
    train(method="supervised", key_metric="psnr")
    (run,) = runs(client, tmp_path.name)
    assert run.data.metrics.keys() >= {"train/supervised", "test/psnr"}
    best = torch.load(tmp_path / "models" / "reconstructor.pt")
    assert best["score"] == max(value for _, value in steps(client, run, "val/psnr")[1:])


def test_interval_is_the_mean_of_its_steps_and_validation_every_few_epochs_and_at_the_end(train, client, tmp_path, finished):
    train(epochs=3, log_interval=4, val_interval=2)
    (run,) = runs(client, tmp_path.name)
    assert [step for step, _ in steps(client, run, "val/heldout")] == [0, 4, 6]
    each = [value for _, value in steps(client, finished[0], "train/loss")]
    page = json.loads(DATA.search((tmp_path / "models" / "overview.html").read_text())[1])
    (third,) = [loss for epoch, loss in page["curves"]["loss"]["training"] if epoch == 3]  # of its two steps, the rest
    expected = [(4, pytest.approx(np.mean(each))), (6, pytest.approx(third, rel=1e-3))]
    assert steps(client, run, "train/loss") == expected


# --- resuming


def test_an_epoch_and_another_equal_two(train, finished, client, tmp_path):
    one, straight = finished
    train(epochs=1, n_cases=2)
    train(epochs=2, n_cases=2, resume=True)
    (other,) = runs(client, tmp_path.name)
    for name in ("train/loss", "train/grad_norm", "epoch", "lr", "val/heldout", "val/psnr"):
        assert steps(client, one, name) == steps(client, other, name), name
    assert [value for _, value in steps(client, other, "epoch")] == [1, 2]
    for file in ("last.pt", "reconstructor.pt", "model.pt"):
        states = [torch.load(place / "models" / file, weights_only=True) for place in (straight, tmp_path)]
        for state in states:
            state.pop("run_id", None)
            state.pop("key", None)  # names the training
            state.get("configuration", {}).pop("experiment", None)  # named by the folder, here
        assert repr(states[0]) == repr(states[1])
        assert all(torch.equal(a, b) for a, b in zip(*map(tensors, states), strict=True)), file
    assert other.info.status == "FINISHED"


def tensors(state):
    if isinstance(state, torch.Tensor):
        return [state]
    children = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [tensor for child in children for tensor in tensors(child)]


def test_resuming_with_another_learning_rate_leaves_both_traceable(train, client, tmp_path):
    train(epochs=1, lr_milestones=[])
    train(epochs=2, lr_milestones=[], lr=0.002, resume=True)
    (run,) = runs(client, tmp_path.name)
    assert steps(client, run, "lr") == [(2, 0.01), (4, 0.002)]
    assert (run.data.params["lr"], run.data.params["lr.epoch1"]) == ("0.01", "0.002")
    assert {"config.yaml", "config.epoch1.yaml"} <= paths(client, run)
    page = json.loads(DATA.search((tmp_path / "models" / "overview.html").read_text())[1])
    assert [frame["epoch"] for frame in page["slices"]["validation slice item4"]["frames"]] == [0, 1, 2]
    assert [epoch for epoch, _ in page["curves"]["loss"]["training"]] == [1, 2]
    assert "measurements alone" in page["facts"]["Without ground truth"]


def test_resuming_a_finished_training_only_tests(train, client, tmp_path):
    train(epochs=1)
    before = (tmp_path / "models" / "last.pt").read_bytes()
    train(epochs=1, resume=True)
    (run,) = runs(client, tmp_path.name)
    assert (tmp_path / "models" / "last.pt").read_bytes() == before
    assert [step for step, _ in steps(client, run, "train/loss")] == [1, 2]


def test_resuming_nothing_says_so_and_makes_no_run(train, client, tmp_path):
    with pytest.raises(RuntimeError) as caught:
        train(resume=True)
    assert "leave out --resume" in causes(caught.value)
    assert client.get_experiment_by_name(tmp_path.name) is None


# --- when things go wrong


def test_nan_fails_the_run_and_the_next_one_is_separate(train, client, tmp_path):
    """C11 and D3."""
    broken = write_slices(tmp_path / "broken.h5", poison={1: "measurement"})
    with pytest.raises(RuntimeError) as caught:
        train(source=broken)
    assert "FloatingPointError" in causes(caught.value)
    assert "item1" in causes(caught.value)
    assert str(broken) in causes(caught.value)
    assert not list((tmp_path / "models").glob("*.pt"))
    train(epochs=1)
    first, second = runs(client, tmp_path.name)
    assert (first.info.status, second.info.status) == ("FAILED", "FINISHED")
    assert len(steps(client, second, "train/loss")) == 2


def test_weights_of_an_earlier_training_never_stand_for_one_without_a_score(train, client, tmp_path):
    train(epochs=1)
    blank = write_slices(tmp_path / "blank.h5")
    with h5py.File(blank, "r+") as file:
        del file["checksum"]  # changed on purpose
        file["measurement"][SPLITS["train"] : 6] = 0  # the validation slices: a held-out error of nothing
    with pytest.raises(RuntimeError) as caught:
        train(source=blank, epochs=1)
    assert "no epoch had a finite validation score" in causes(caught.value)
    assert runs(client, tmp_path.name)[1].info.status == "FAILED"


def test_nan_in_a_later_epoch_leaves_the_best_weights_finite(train, client, tmp_path, monkeypatch):
    from es_medical.engine import trainer as module

    step, calls = module.training_step, []

    def diverges(loss, reconstructor, optimizer, passes, clip):
        calls.append(1)
        factor = torch.nan if len(calls) > 3 else 1.0
        broken = [one._replace(batch=replace(one.batch, y=one.batch.y * factor)) for one in passes]
        return step(loss, reconstructor, optimizer, broken, clip)

    monkeypatch.setattr(module, "training_step", diverges)
    with pytest.raises(RuntimeError) as caught:
        train(epochs=3)
    assert "epoch 2" in causes(caught.value)
    best = torch.load(tmp_path / "models" / "reconstructor.pt")
    assert best["epoch"] == 1
    assert all(value.isfinite().all() for value in best["reconstructor"].values())
    monkeypatch.undo()
    train(epochs=3, resume=True)  # goes on from epoch 1
    (run,) = runs(client, tmp_path.name)
    assert [value for _, value in steps(client, run, "epoch")] == [1, 2, 3]


def test_dead_server_costs_seconds_and_loses_nothing(train, tmp_path, capsys, monkeypatch, client, workflow_uri):
    """D1."""
    from es_medical.tracking.__main__ import main

    monkeypatch.setattr(upload, "GRACE", 1.0)
    start = time.monotonic()
    train(uri=DEAD)
    assert time.monotonic() - start < 30  # a machine that others use
    assert (tmp_path / "models" / "reconstructor.pt").exists()
    printed = capsys.readouterr()
    assert "zero-filled" in printed.out
    assert "127.0.0.1:9" in printed.out + printed.err
    (spool,) = spools(tmp_path / "eval" / "unsent")
    assert main(["send", str(spool), "--uri", workflow_uri]) == 0
    (run,) = runs(client, tmp_path.name)
    assert [step for step, _ in steps(client, run, "train/loss")] == [1, 2, 3, 4]
    assert run.info.status == "FINISHED"


def test_mismatching_data_file_is_refused_before_anything_is_logged(train, client, tmp_path):
    with pytest.raises(RuntimeError) as caught:
        train(sigma=0.1)
    assert "was made with sigma 0.01, the configuration asks for sigma 0.1" in causes(caught.value)
    assert client.get_experiment_by_name(tmp_path.name) is None


def test_folder_store_is_refused_by_name(train, tmp_path):
    with pytest.raises(RuntimeError) as caught:
        train(uri=str(tmp_path / "mlruns"))
    assert "file store" in causes(caught.value)


@pytest.mark.usefixtures("untracked")
@pytest.mark.parametrize(("key_metric", "anew"), [("psnr", True), ("heldout", False)])
def test_best_score_of_other_images_is_not_compared(train, caplog, key_metric, anew):
    """The PSNR of images from all of y is another one than that of averages over splits; the held-out error is the same."""
    train(key_metric=key_metric, epochs=1)
    caplog.clear()
    train(key_metric=key_metric, epochs=2, resume=True, eval_split_input=False)
    assert ("the best weights are chosen anew" in caplog.text) == anew
