"""Intervals by the bundles: calibrated by one command, written by another, and of no cost when they are off."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from tiny import causes, execute, load, names, runs, workflow, write_images, write_slices

from es_medical.engine.evaluator import Evaluator
from es_medical.inferers import Inferer
from es_medical.jobs.intervals import check_settings
from es_medical.uncertainty import Calibration, EquivariantBootstrap

BUNDLES = {"fastmri_synthetic": write_slices, "div2k_inpainting": write_images}
CALIBRATION = ["train.yaml", "calibrate.yaml"]
KNOBS = {"session#n_bootstrap": 3, "session#n_folds": 2}
each = pytest.mark.parametrize("bundle", BUNDLES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, workflow_uri):
    """Folder and data file of a finished and calibrated training of a bundle, made once."""
    made = {}

    def of(bundle):
        if bundle not in made:
            folder = tmp_path_factory.mktemp(bundle)
            data = BUNDLES[bundle](folder / "slices.h5")
            execute(workflow(["train.yaml"], folder, data, workflow_uri, bundle, epochs=1))
            execute(workflow(CALIBRATION, folder, data, workflow_uri, bundle, **KNOBS))
            made[bundle] = folder, data
        return made[bundle]

    return of


def reconstruct(trained, bundle, output, **knobs):
    folder, data = trained(bundle)
    one = workflow(["inference.json"], folder, data, "", bundle, **({"output_dir": str(output), "data_split": "test"} | knobs))
    return execute(one)


@each
def test_calibration_leaves_a_file_a_picture_and_numbers_of_the_run(trained, client, bundle):
    folder, _ = trained(bundle)
    assert {"calibration.json", "coverage.png"} <= names(folder / "models")
    calibration = Calibration.load(folder / "models" / "calibration.json")
    assert (calibration.n, calibration.distances.resampled.shape) == (2, (2, 8))
    (run,) = (one for one in runs(client, folder.name) if one.info.run_name.endswith(", calibrate"))
    expected = {f"{kind}{word}.images" for kind in ("bootstrap", "spread") for word in ("", "_calibrated", "_self-calibrated")}
    expected |= {f"{kind}{word}.held-out_measurements" for kind in ("bootstrap", "spread") for word in ("", "_calibrated")}
    assert {f"coverage_90/{name}" for name in expected} <= set(run.data.metrics)
    files = {one.path for one in client.list_artifacts(run.info.run_id, "uncertainty")}
    assert files == {f"uncertainty/{name}" for name in ("calibration.json", "coverage.png", "coverage.json")}


def test_images_from_all_of_y_are_calibrated_without_the_spread_of_splits(trained, workflow_uri, client, tmp_path):
    folder, data = trained("fastmri_synthetic")
    shutil.copytree(folder / "models", tmp_path / "models")
    with pytest.warns(UserWarning, match="chosen by images that are averages over splits"):
        execute(workflow(CALIBRATION, tmp_path, data, workflow_uri, eval_split_input=False, **KNOBS))
    (run,) = runs(client, tmp_path.name)
    parts = (name.partition("/") for name in run.data.metrics)
    kinds = {name.partition(".")[0] for level, _, name in parts if level == "coverage_90"}
    assert kinds == {"bootstrap", "bootstrap_calibrated", "bootstrap_self-calibrated"}
    ours, theirs = (Calibration.load(one / "models" / "calibration.json").distances for one in (tmp_path, folder))
    assert not torch.equal(ours.resampled, theirs.resampled)


def test_a_calibration_from_before_the_knob_is_that_of_averages_over_splits(trained, tmp_path):
    folder, data = trained("fastmri_synthetic")
    shutil.copytree(folder / "models", tmp_path / "models")
    path = tmp_path / "models" / "calibration.json"
    kept = json.loads(path.read_text())
    del kept["settings"]["averages_splits"], kept["checksum"]
    path.write_text(json.dumps(kept))
    knobs = {"intervals": 0.5, "calibrate_by": "file", "n_bootstrap": 3, "data_split": "test"}
    execute(workflow(["inference.json"], tmp_path, data, "", **knobs, output_dir=str(tmp_path / "out")))
    with pytest.warns(UserWarning, match="averages over splits"), pytest.raises(RuntimeError) as caught:
        execute(workflow(["inference.json"], tmp_path, data, "", **knobs, eval_split_input=False))
    assert "averages_splits True and False" in causes(caught.value)


def test_calibration_uses_no_ground_truth(trained, workflow_uri, tmp_path):
    """Without any image in the file, it is the same to the last bit; coverage is then that of held-out measurements alone."""
    folder, _ = trained("fastmri_synthetic")
    before = json.loads((folder / "models" / "calibration.json").read_text())
    without = write_slices(tmp_path / "slices.h5", with_image=False)
    execute(workflow(CALIBRATION, folder, without, workflow_uri, **KNOBS))
    assert json.loads((folder / "models" / "calibration.json").read_text()) == before


@each
def test_intervals_are_written_with_the_factor_of_the_calibration(trained, bundle, tmp_path, caplog):
    folder, _ = trained(bundle)
    with caplog.at_level("INFO"):
        one = reconstruct(trained, bundle, tmp_path / "out", intervals=0.5, n_bootstrap=3, calibrate_by="file")
    factor = Calibration.load(folder / "models" / "calibration.json").factor(0.5)
    assert one.parser.get_parsed_content("interval_inferer").factor == factor
    assert f"intervals of level 0.5: {factor:.3g} times the mean error of the bootstrap, calibrated on 2 items" in caplog.text
    assert "pixels flagged" in caplog.text
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        halfwidth, flagged = file["halfwidth"][()], file["flagged"][()]
    assert halfwidth.shape == flagged.shape == (3, 1, 16, 16)
    assert (halfwidth > 0).any()
    found = {
        path.name.rsplit("_", 1)[1] for path in (tmp_path / "out").rglob("*_*") if path.name.split(".")[-1] in ("gz", "png")
    }
    kind = "nii.gz" if bundle == "fastmri_synthetic" else "png"
    assert found == {f"{name}.{kind}" for name in ("reconstruction", "spread", "halfwidth", "flagged")}


def test_off_by_default_and_then_of_no_cost(trained, tmp_path, monkeypatch):
    """The evaluator has the plain inferer, nothing is resampled, and the images are those that come with intervals."""
    with monkeypatch.context() as patch:
        patch.setattr(EquivariantBootstrap, "__call__", lambda *_: pytest.fail("a bootstrap without being asked for"))
        one = reconstruct(trained, "fastmri_synthetic", tmp_path / "plain")
    evaluator = one.parser.get_parsed_content("evaluator")
    assert isinstance(evaluator, Evaluator)
    assert type(evaluator.inferer) is Inferer
    assert not any("halfwidth" in path.name or "flagged" in path.name for path in (tmp_path / "plain").rglob("*"))
    reconstruct(trained, "fastmri_synthetic", tmp_path / "with", intervals=0.5, n_bootstrap=2)
    with (
        h5py.File(tmp_path / "plain" / "reconstructions.h5") as first,
        h5py.File(tmp_path / "with" / "reconstructions.h5") as second,
    ):
        assert set(second) - set(first) == {"halfwidth", "flagged", "n_flagged"}
        assert all(np.array_equal(first[name][()], second[name][()]) for name in ("reconstruction", "spread", "heldout"))


def test_intervals_of_a_scan_that_calibrates_itself_are_those_of_its_held_out_measurements(trained, tmp_path, caplog):
    """The default: half-widths are those without calibration, times one factor for each slice."""
    with caplog.at_level("WARNING"):
        for word in ("scan", "none"):
            reconstruct(trained, "div2k_inpainting", tmp_path / word, intervals=0.5, n_bootstrap=3, calibrate_by=word)
    assert "intervals are not calibrated" in caplog.text
    files = (tmp_path / word / "reconstructions.h5" for word in ("scan", "none"))
    with h5py.File(next(files)) as first, h5py.File(next(files)) as second:
        factors = first["halfwidth"][()] / second["halfwidth"][()]
    assert factors.shape == (3, 1, 16, 16)
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :, :1, :1], factors.shape), rtol=1e-4)
    assert len(np.unique(factors[:, 0, 0, 0])) == 3
    assert {load(bundle, "inference.json")["calibrate_by"] for bundle in BUNDLES} == {"scan"}


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"n_samples": 3, "calibrate_by": "file"}, "was made for something else (n_samples 2 and 3): calibrate anew"),
        ({"intervals": 1.5}, "the level of an interval lies strictly between 0 and 1, got 1.5"),
        ({"calibrate_by": "luck"}, "calibrate_by must be scan, file, none, got 'luck'"),
        ({"calibrate_by": "file", "ckpt_dir": "{elsewhere}"}, "let each slice calibrate itself: --calibrate_by scan"),
        ({"n_bootstrap": 0}, "n_bootstrap must be a whole number, at least 1, got 0"),
    ],
)
def test_intervals_that_cannot_be_are_refused(trained, tmp_path, knobs, words):
    folder, _ = trained("fastmri_synthetic")
    if "ckpt_dir" in knobs:
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "reconstructor.pt").write_bytes((folder / "models" / "reconstructor.pt").read_bytes())
        knobs = knobs | {"ckpt_dir": str(tmp_path / "models")}
    with pytest.raises(RuntimeError) as caught:
        reconstruct(trained, "fastmri_synthetic", tmp_path / "out", **({"intervals": 0.5, "n_bootstrap": 2} | knobs))
    assert words in causes(caught.value)


def test_calibration_of_other_weights_is_refused(trained, tmp_path):
    folder, _ = trained("fastmri_synthetic")
    (tmp_path / "models").mkdir()
    state = torch.load(folder / "models" / "reconstructor.pt", weights_only=True)
    torch.save(state | {"score": 0.0}, tmp_path / "models" / "reconstructor.pt")
    (tmp_path / "models" / "calibration.json").write_bytes((folder / "models" / "calibration.json").read_bytes())
    knobs = {"intervals": 0.5, "calibrate_by": "file", "ckpt_dir": str(tmp_path / "models")}
    with pytest.raises(RuntimeError) as caught:
        reconstruct(trained, "fastmri_synthetic", tmp_path / "out", **knobs)
    assert "was made for something else (weights" in causes(caught.value)


def test_a_calibration_holds_under_the_new_name_of_its_method(tmp_path):
    kept = {"method": "ei_lot", "split_input": False}
    check_settings(tmp_path / "calibration.json", kept, {"method": "ei_alternating", "split_input": False})
    with pytest.raises(ValueError, match="made for something else"):
        check_settings(tmp_path / "calibration.json", kept, {"method": "ei", "split_input": False})
