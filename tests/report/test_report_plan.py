"""What a reproduction runs: the experiments, their budgets and commands."""

import sys
from pathlib import Path

import pytest
from report_store import BUNDLES

from es_medical.methods import METHODS
from es_medical.report.catalogue import STUDIES
from es_medical.report.paper import DURATIONS, RATIOS
from es_medical.report.reading.store import ReportError
from es_medical.report.running.plan import plan


def names(*only, scale="demo", methods=()):
    return [run.name for run in plan(scale, only, methods, BUNDLES)]


def test_every_experiment_and_every_method_of_its_table_is_there():
    planned = plan("demo", (), (), BUNDLES)
    for study in STUDIES:
        here = {run.method for run in planned if run.study is study}
        assert set(study.methods) <= here
        assert here <= set(METHODS)
    assert len({run.name for run in planned}) == len(planned)


def test_levels_of_compressed_sensing_are_runs_of_their_own():
    assert names("sensing", methods=["es"]) == [f"sensing-{ratio:g}-es" for ratio in RATIOS]
    files = {run.knobs["data_file"] for run in plan("demo", ["sensing"], ["es", "mc"], BUNDLES)}
    assert len(files) == len(RATIOS)


def test_experiments_are_chosen_by_key_or_bundle():
    assert names("inpainting", methods=["es"]) == ["inpainting-es"]
    assert names("div2k_inpainting", methods=["es"]) == ["inpainting-es", "pushbroom_random-es", "pushbroom_even-es"]


@pytest.mark.parametrize(("only", "methods", "message"), [
    (["mri"], [], "unknown experiment mri: choose from .*mri_x8"),
    ([], ["dip"], "unknown method dip: choose from .*supervised"),
])  # fmt: skip
def test_unknown_names_list_the_valid_ones(only, methods, message):
    with pytest.raises(ReportError, match=message):
        plan("demo", only, methods, BUNDLES)


def test_missing_bundles_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the folder of the bundles"):
        plan("demo", [], ["es"], tmp_path)


def test_demo_gives_methods_the_time_of_their_passes():
    """Noiseless EI takes two passes, with noise three; supervised and es one."""
    planned = plan("demo", ["inpainting", "mri_x8"], ["es", "ei", "supervised"], BUNDLES)
    epochs = {run.name: run.knobs["epochs"] for run in planned}
    assert epochs["inpainting-es"] == epochs["inpainting-supervised"] == 2 * epochs["inpainting-ei"]
    assert epochs["mri_x8-es"] == epochs["mri_x8-supervised"] == 3 * epochs["mri_x8-ei"]


def test_paper_scale_has_the_papers_epochs_and_no_data_command():
    for run in plan("paper", ["mri_x8"], ["es", "ei"], BUNDLES):
        known = {one.method: one.epochs for one in DURATIONS["mri_x8"]}
        assert run.knobs["epochs"] == known[run.method]
        assert run.data == ""
        assert "demo" not in run.overlays


def test_milestones_stand_at_the_same_shares_of_the_epochs():
    (whole,), (short,) = (plan("demo", ["inpainting"], ["es"], BUNDLES, effort) for effort in (1.0, 0.5))
    shares = [one / whole.knobs["epochs"] for one in whole.knobs["lr_milestones"]]
    assert [one / short.knobs["epochs"] for one in short.knobs["lr_milestones"]] == pytest.approx(shares, abs=0.06)
    assert short.knobs["epochs"] == round(whole.knobs["epochs"] / 2)


def test_methods_that_learn_nothing_have_no_budget():
    (run,) = plan("demo", ["inpainting"], ["tv"], BUNDLES)
    assert "epochs" not in run.knobs
    assert plan("demo", ["ct"], ["biharmonic"], BUNDLES) == []


def test_command_names_configurations_weights_and_record(tmp_path):
    (run,) = plan("demo", ["pushbroom_even"], ["es"], BUNDLES)
    words = run.command(Path("bundles"), tmp_path, {"study": "demo_pushbroom_even"})
    assert words[:4] == (sys.executable, "-m", "monai.bundle", "run")
    given = dict(zip(words[4::2], words[5::2], strict=True))
    for name in ("train", "pushbroom_even", "demo"):
        assert f"bundles/div2k_inpainting/configs/{name}.yaml" in given["--config_file"]
    assert given["--ckpt_dir"] == str(tmp_path / "models")
    assert (given["--method"], given["--study"], given["--data_file"]) == ("es", "demo_pushbroom_even", "demo_even.h5")
    assert "--resume" not in given


def test_interrupted_training_goes_on(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "last.pt").touch()
    (run,) = plan("demo", ["inpainting"], ["es"], BUNDLES)
    words = run.command(Path("bundles"), tmp_path, {})
    assert words[words.index("--resume") + 1] == "True"
