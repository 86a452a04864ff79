"""A job of a method that learns nothing: what is chosen, on which slices, what is kept, and what MLflow shows of it."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from tiny import Parts, causes, execute, names, runs, steps, workflow, write_slices
from torch import nn

from es_medical.engine import setup
from es_medical.jobs import penalty_search as search_module
from es_medical.jobs.penalty_search import DECADES, best_weight, search_penalty
from es_medical.jobs.training import Training
from es_medical.networks import Tikhonov


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_file, workflow_uri, client):
    """One job of Tikhonov, looked at by many tests; knobs of trainings are given, as one overlay hands them to every method."""
    folder = tmp_path_factory.mktemp("tikhonov")
    knobs = {"schedule": "cosine", "warmup": 3, "ema": 0.9, "n_splits": 2, "warm_images": 4}
    job = execute(workflow(["train.yaml"], folder, data_file, workflow_uri, method="tikhonov", key_metric="psnr", **knobs))
    (run,) = runs(client, folder.name)
    return run, folder, job


# --- the search


def test_search_refines_the_best_decade():
    scores = search_penalty(lambda weight: -abs(math.log10(weight) + 2.6))
    assert list(scores)[: len(DECADES)] == list(DECADES)
    assert len(scores) == len(DECADES) + 2
    assert best_weight(scores) == pytest.approx(10**-2.5)


def test_weights_without_a_finite_score_are_never_chosen():
    assert best_weight({1.0: math.nan, 2.0: -math.inf, 3.0: -1.0, 4.0: math.inf}) == 3.0
    assert best_weight({1.0: math.nan, 2.0: math.nan}) == 1.0


# --- what a finished job leaves


def test_curve_has_every_weight_and_ends_with_the_best(finished, client):
    run, _, _ = finished
    weights, psnr = steps(client, run, "val/weight"), steps(client, run, "val/psnr")
    last = len(DECADES) + 2
    assert [step for step, _ in weights] == [step for step, _ in psnr] == list(range(last + 1))
    best = max(psnr[:-1], key=lambda point: point[1])
    assert psnr[-1][1] == pytest.approx(best[1])
    assert weights[-1][1] == pytest.approx(weights[best[0]][1]) == pytest.approx(float(run.data.params["weight"]))
    assert len({value for _, value in psnr}) > 3  # the weight matters


def test_time_is_that_of_one_epoch_and_there_is_no_loss(finished, client):
    run, _, _ = finished
    assert [value for _, value in steps(client, run, "epoch")] == [1]
    assert steps(client, run, "epoch_time")[0][1] > 0
    assert not any(name.startswith("train/") for name in run.data.metrics)


def test_test_scores_are_those_of_the_chosen_weight(finished, data_file):
    run, _, job = finished
    parts = Parts(data_file)
    parts.network = Tikhonov(float(run.data.params["weight"]))
    parts.inferer = job.parser.get_parsed_content("inferer")
    tester = parts.evaluator("test")
    tester.run()
    assert tester.state.metrics["psnr"] == pytest.approx(run.data.metrics["test/psnr"], abs=1e-4)
    assert tester.state.metrics["heldout"] == pytest.approx(run.data.metrics["test/heldout"], abs=1e-5)


def test_run_shows_a_table_and_pictures_but_no_model(finished, client, tmp_path):
    run, _, _ = finished
    assert run.info.status == "FINISHED"
    assert run.data.tags["method"] == "tikhonov"
    path = client.download_artifacts(run.info.run_id, "test/summary.json", str(tmp_path))
    assert [row[0] for row in json.loads(Path(path).read_text())["data"]] == ["zero-filled", "tikhonov"]
    images = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    assert any("recon" in path for path in images)
    assert any("test" in path for path in images)
    assert not client.search_logged_models([run.info.experiment_id])
    assert {one.tags[0].value for one in run.inputs.dataset_inputs} == {"val", "test"}


def test_only_the_reconstructor_is_kept(finished):
    run, folder, _ = finished
    assert names(folder / "models") == {"reconstructor.pt", "README.md", "overview.html"}
    weights = torch.load(folder / "models" / "reconstructor.pt", weights_only=True)["reconstructor"]
    assert {name: float(value) for name, value in weights.items()} == {
        "log_weight": pytest.approx(math.log(float(run.data.params["weight"])))
    }


def test_evaluation_and_inference_take_the_chosen_weight(finished, data_file, workflow_uri, client, tmp_path):
    run, folder, _ = finished
    places = {"ckpt_dir": str(folder / "models"), "method": "tikhonov"}
    execute(workflow(["train.yaml", "evaluate.yaml"], tmp_path, data_file, workflow_uri, **places))
    (again,) = runs(client, tmp_path.name)
    assert again.data.metrics["test/psnr"] == pytest.approx(run.data.metrics["test/psnr"])
    job = execute(workflow(["inference.json"], tmp_path, data_file, workflow_uri, **places, data_split="test", dicom=False))
    assert job.parser.get_parsed_content("reconstructor").weight == pytest.approx(float(run.data.params["weight"]))
    assert (tmp_path / "eval" / "reconstructions.h5").is_file()


def test_weight_of_another_method_is_refused(finished, data_file, workflow_uri, tmp_path):
    places = {"ckpt_dir": str(finished[1] / "models"), "method": "tv"}
    job = workflow(["train.yaml", "evaluate.yaml"], tmp_path, data_file, workflow_uri, **places)
    with pytest.raises(RuntimeError) as info:
        execute(job)
    assert "method: tikhonov in training, tv is given" in causes(info.value)


# --- other jobs: two decades in place of six


@pytest.fixture
def two_decades(monkeypatch):
    monkeypatch.setattr(search_module, "DECADES", DECADES[2:4])


def test_method_without_a_weight_is_scored_once_also_when_it_is_to_resume(data_file, workflow_uri, client, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        execute(workflow(["train.yaml"], tmp_path, data_file, workflow_uri, method="pseudo_inverse", resume=True))
    (run,) = runs(client, tmp_path.name)
    assert (run.info.status, [step for step, _ in steps(client, run, "val/heldout")]) == ("FINISHED", [0])
    assert "weight" not in run.data.params
    assert run.data.metrics["val/psnr"] == pytest.approx(run.data.metrics["val/baseline_psnr"], abs=1e-4)  # A^dagger = A^T
    told = [record.message for record in caplog.records if "learns nothing" in record.message]
    knobs = "epochs, lr, resume, the warm start and the other knobs of a training"
    assert told == [f"pseudo_inverse learns nothing: {knobs} are not used"]


@pytest.mark.usefixtures("two_decades")
def test_choice_without_ground_truth_is_by_the_held_out_error(workflow_uri, client, tmp_path):
    source = write_slices(tmp_path / "measured.h5", with_image=False)
    execute(workflow(["train.yaml"], tmp_path, source, workflow_uri, method="tikhonov", key_metric="auto"))
    (run,) = runs(client, tmp_path.name)
    errors = steps(client, run, "val/heldout")
    assert errors[-1][1] == pytest.approx(min(value for _, value in errors))
    assert "test/psnr" not in run.data.metrics


@pytest.mark.usefixtures("two_decades")
def test_test_slices_have_no_part_in_the_choice(data_file, workflow_uri, tmp_path):
    """The tester is run once, after the weight is set for good."""
    job = workflow(["train.yaml"], tmp_path, data_file, workflow_uri, method="tikhonov")
    job.initialize()
    session = job.parser.get_parsed_content("session")
    assert isinstance(session, Training)
    seen = []
    run, validate = session.tester.run, session.validator.run
    session.tester.run = lambda: (seen.append("test"), run())
    session.validator.run = lambda epoch: (seen.append("val"), validate(epoch))
    job.run()
    assert seen == ["val"] * (2 + 3) + ["test"]


@pytest.mark.usefixtures("two_decades")
def test_no_finite_score_is_an_error(workflow_uri, tmp_path):
    blank = write_slices(tmp_path / "blank.h5", poison={4: "image", 5: "image"})  # the validation slices
    job = workflow(["train.yaml"], tmp_path, blank, workflow_uri, method="tikhonov", key_metric="psnr")
    with pytest.raises(RuntimeError) as info:
        execute(job)
    assert "no epoch had a finite validation score" in causes(info.value)


def test_optimizer_of_no_parameters_has_an_idle_number():
    optimizer = setup.build_optimizer(nn.Identity(), 0.1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]
    optimizer.step()


def test_reconstructor_of_a_learning_free_method_has_no_denoiser():
    network = setup.build_reconstructor(nn.Conv2d(2, 2, 3), None, "cpu", method="tv")
    assert [name for name, _ in network.named_parameters()] == ["log_weight"]
