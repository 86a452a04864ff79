"""What a reproduction runs: the experiments, their budgets and commands."""

import sys
from pathlib import Path

import pytest
from report_store import BUNDLES

from es_medical.methods import METHODS
from es_medical.report.catalogue import STUDIES
from es_medical.report.paper import DURATIONS, RATIOS
from es_medical.report.running.plan import plan


def planned(*only, scale="demo", methods=("es",), effort=1.0):
    return {run.name: run for run in plan(scale, only, methods, BUNDLES, effort)}


def test_every_experiment_and_every_method_of_its_table_is_there():
    runs = plan("demo", (), (), BUNDLES)
    for study in STUDIES:
        here = {run.method for run in runs if run.study is study}
        assert {*study.methods, *study.more} - {"biharmonic"} <= here <= METHODS.keys()
    assert len({run.name for run in runs}) == len(runs)


def test_experiments_are_chosen_by_key_or_bundle_and_levels_of_compressed_sensing_are_runs_of_their_own():
    assert list(planned("inpainting")) == ["inpainting-es"]
    assert list(planned("div2k_inpainting")) == ["inpainting-es", "pushbroom_random-es", "pushbroom_even-es"]
    assert list(planned("sensing")) == [f"sensing-{ratio:g}-es" for ratio in RATIOS]
    assert len({run.knobs["data_file"] for run in planned("sensing", methods=["es", "mc"]).values()}) == len(RATIOS)


def test_demo_gives_methods_the_time_of_their_passes():
    """Passes of a step: EI two without noise, three with it; supervised one; ES one for each split, two in the MRI demo."""
    runs = planned("inpainting", "mri_x8", methods=["es", "ei", "supervised", "tv"])
    epochs = {name: run.knobs.get("epochs") for name, run in runs.items()}
    assert epochs["inpainting-es"] == epochs["inpainting-supervised"] == 2 * epochs["inpainting-ei"]
    assert epochs["mri_x8-supervised"] == 2 * epochs["mri_x8-es"] == 3 * epochs["mri_x8-ei"]
    assert epochs["inpainting-tv"] is None
    assert planned("ct", methods=["biharmonic"]) == {}


def test_paper_scale_has_the_papers_epochs_and_no_data_command():
    for run in planned("mri_x8", scale="paper", methods=["es", "ei"]).values():
        assert run.knobs["epochs"] == {one.method: one.epochs for one in DURATIONS["mri_x8"]}[run.method]
        assert run.data == ""
        assert "demo" not in run.overlays


def test_milestones_stand_at_the_same_shares_of_the_epochs():
    whole, short = (planned("mri_x8", effort=effort)["mri_x8-es"].knobs for effort in (1.0, 0.5))
    shares = [one / whole["epochs"] for one in whole["lr_milestones"]]
    assert [one / short["epochs"] for one in short["lr_milestones"]] == pytest.approx(shares, abs=0.06)
    assert short["epochs"] == round(whole["epochs"] / 2)


def test_command_names_configurations_weights_and_record_and_interrupted_training_goes_on(tmp_path):
    run = planned("pushbroom_even")["pushbroom_even-es"]
    words = run.command(Path("bundles"), tmp_path, {"study": "demo_pushbroom_even"})
    assert words[:4] == (sys.executable, "-m", "monai.bundle", "run")
    given = dict(zip(words[4::2], words[5::2], strict=True))
    for name in ("train", "pushbroom_even", "demo"):
        assert f"bundles/div2k_inpainting/configs/{name}.yaml" in given["--config_file"]
    assert given["--ckpt_dir"] == str(tmp_path / "models")
    assert (given["--method"], given["--study"], given["--data_file"]) == ("es", "demo_pushbroom_even", "demo_even.h5")
    assert "--resume" not in given
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "last.pt").touch()
    assert run.command(Path("bundles"), tmp_path, {})[-2:] == ("--resume", "True")
