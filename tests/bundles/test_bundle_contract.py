"""What every bundle does: it trains, evaluates, reconstructs and resumes, with and without ground truth."""

import math

import pytest
import torch
from processes import reconstruct
from tiny import BUNDLE_NAMES, CASES, KNOBS, causes, execute, names, runs, workflow, write_slices_for

from es_medical.knobs import logged_knobs
from es_medical.tracking import with_hidden

CHECKED = {"acceleration", "views", "mask", "ratio"}  # against the data file

each_case = pytest.mark.parametrize("case", CASES)


def scores(run):
    return {name: value for name, value in run.data.metrics.items() if name.startswith("test/")}


@each_case
def test_training_leaves_weights_and_scores(trained, client, case):
    folder = trained(case)
    assert names(folder / "models") == {"last.pt", "reconstructor.pt", "model.pt", "README.md", "overview.html"}
    run = runs(client, folder.name)[0]
    scored = ("test/heldout", "test/psnr", "test/ssim", "val/heldout", "val/psnr")
    assert [name for name in scored if not math.isfinite(run.data.metrics.get(name, math.nan))] == []
    assert min(run.data.metrics["test/heldout"], run.data.metrics["val/heldout"]) > 0
    assert [one.step for one in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4]


@each_case
def test_evaluation_gives_the_scores_of_the_end_of_the_training(trained, data_file, workflow_uri, client, case):
    """No knob is given again: the weights know them."""
    folder = trained(case)
    execute(workflow(["train.yaml", "evaluate.yaml"], folder, data_file(case), workflow_uri, case, tuple(KNOBS)), check=True)
    first, last = runs(client, folder.name)[0], runs(client, folder.name)[-1]
    assert last.info.run_name == f"{first.info.run_name}, evaluate"
    assert scores(last) == pytest.approx(scores(first), rel=1e-4)
    assert "test/psnr" in scores(last)
    assert "train/loss" not in last.data.metrics
    before, after = (logged_knobs(run.data.params, with_hidden(run.data.tags)) for run in (first, last))
    assert after.items() >= {name: before[name] for name in ("widths", "iterations", "lr", *CHECKED & before.keys())}.items()


@each_case
def test_inference_is_the_same_for_every_batch_size(trained, data_file, tmp_path, case):
    images = []
    for batch_size in (1, 4):  # the last batch has one slice
        knobs = {"output_dir": str(tmp_path / "out"), "batch_size": batch_size}
        found, ids = reconstruct(case, trained(case), data_file(case), **knobs)
        assert ids == [f"item{i}" for i in range(9)]
        assert (found.flatten(1).std(1) > 0).all()
        images.append(found)
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", BUNDLE_NAMES)
def test_everything_works_without_ground_truth(train, tmp_path, client, case, capsys):
    blind = write_slices_for(case, tmp_path / "blind.h5", with_image=False)
    train(case, tmp_path, source=blind, epochs=1, key_metric="auto")
    (run,) = runs(client, tmp_path.name)
    assert run.data.metrics["test/heldout"] > 0
    assert not any("psnr" in name or "ssim" in name for name in run.data.metrics)
    assert "PSNR" not in capsys.readouterr().out
    _, ids = reconstruct(case, tmp_path, blind, data_split="test")
    assert ids == ["item6", "item7", "item8"]


@pytest.mark.parametrize(("case", "overlays"), [("mnist_cs", ()), ("lidc_ct", ("rotations.yaml",))])
def test_resumed_training_ends_where_an_unbroken_one_does(trained, train, tmp_path, case, overlays):
    """No knob of the first part is given again; rotations are drawn for each step."""
    for knobs in ({"epochs": 1}, {"epochs": 2, "resume": True, "without": tuple(KNOBS), "num_workers": 0}):
        train(case, tmp_path, *overlays, **knobs)
    unbroken, resumed = (torch.load(folder / "models" / "last.pt") for folder in (trained(case, *overlays), tmp_path))
    assert resumed["iteration"] == unbroken["iteration"] == 4
    torch.testing.assert_close(resumed["reconstructor"], unbroken["reconstructor"], rtol=0, atol=1e-6)


@each_case
@pytest.mark.parametrize("file", ["train.yaml", "inference.json"])
def test_unknown_knob_is_refused_with_the_nearest_name(tmp_path, data_file, case, file):
    with pytest.raises(RuntimeError) as caught:
        workflow([file], tmp_path, data_file(case), "", case, sigma_facto=0.1).initialize()
    assert "unknown configuration name 'sigma_facto'" in causes(caught.value)
    assert "sigma_factor" in causes(caught.value)


@pytest.mark.parametrize("file", ["train.yaml", "inference.json"])
@pytest.mark.parametrize(
    ("case", "other", "message"),
    [
        ("lidc_ct", "fastmri_synthetic", "holds MR data without a scanner's geometry: expected CT sinograms"),
        ("fastmri_synthetic", "lidc_ct", "holds CT data: expected MR"),
        ("fastmri_real", "lidc_ct", "holds CT data: expected MR"),
    ],
)
def test_data_of_another_modality_are_refused_by_name(tmp_path, data_file, case, other, message, file):
    given = {"split_ratio": 0.8, "eval_split_input": True}  # there are no weights to keep them
    with pytest.raises(RuntimeError) as caught:
        execute(workflow([file], tmp_path, data_file(other), "sqlite:///none.db", case, **given))
    assert f"{data_file(other)} {message}" in causes(caught.value)
