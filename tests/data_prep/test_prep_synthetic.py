"""Synthetic slices as a command: those of a warm start, marked wherever the file is used."""

import json

import numpy as np
import pytest
from columns import columns
from tiny import CASES, execute, runs, workflow, write_slices, write_slices_for

from es_medical.data import SliceDataset, read_header
from es_medical.engine.synthetic_slices import Likeness, synthetic_kind
from es_medical.physics import MRI


@pytest.mark.parametrize("case", CASES)
def test_slices_are_those_of_a_warm_start_in_three_splits(case, tmp_path, prep):
    like, out = write_slices_for(case, tmp_path / "like.h5"), tmp_path / "out.h5"
    prep("synthetic", like, out, "--n", 40, "--seed", 3)
    made = columns(out)
    for i, record in enumerate(Likeness.of(like, seed=3).records(40)):
        np.testing.assert_allclose(made["measurement"][i], record.measurement, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(made["image"][i], record.image)
        assert made["sigma"][i] == record.sigma or case == "lidc_ct"
    assert read_header(out).splits == {"train": 36, "val": 2, "test": 2}
    header, own = read_header(like), read_header(out)
    same = ("modality", "operator", "size", "coils", "channels", "acceleration", "encoded_lines")
    assert all(repr(getattr(header, name)) == repr(getattr(own, name)) for name in same)


def test_longer_file_begins_with_a_shorter_one(tmp_path, prep):
    like = write_slices(tmp_path / "like.h5")
    for n in (20, 45):
        prep("synthetic", like, tmp_path / f"{n}.h5", "--n", n)
    short, long = columns(tmp_path / "20.h5"), columns(tmp_path / "45.h5")
    for name in ("id", "split", "image", "sigma"):
        np.testing.assert_array_equal(short[name], long[name][:20])


def test_header_manifest_and_summary_say_synthetic_and_how_like_was_made(tmp_path, prep):
    out = tmp_path / "out.h5"
    printed = prep("synthetic", write_slices(tmp_path / "like.h5", coils=2, sigmas=(0.1, 0.2)), out, "--n", 20).output
    assert "synthetic images of kind mr_phase (no real image is in them)" in printed
    assert "noise levels drawn from those of LIKE, ground truth stored" in printed
    manifest = json.loads(out.with_suffix(".manifest.json").read_text())
    for configuration in (read_header(out).configuration, manifest["configuration"]):
        assert configuration["synthetic_images"] == configuration["kind"] == "mr_phase"
        assert (configuration["command"], configuration["n"]) == ("synthetic", 20)
    (source,) = manifest["sources"]
    assert source["target"] == "synthetic images of kind mr_phase"


def test_settings_of_like_are_kept_for_scans(tmp_path, prep, make_volume):
    make_volume(tmp_path / "raw" / "a.h5")
    options = ("--measurements", "real", "--acceleration", 2, "--center-fraction", 0.2, "--slices", "all")
    prep("fastmri", tmp_path / "raw", tmp_path / "like.h5", *options)
    prep("synthetic", tmp_path / "like.h5", tmp_path / "out.h5", "--n", 20)
    like, own = (read_header(tmp_path / name).configuration for name in ("like.h5", "out.h5"))
    assert own["synthetic_images"] == "mr_phase"
    kept = like.keys() - {"command", "recipe", "seed", "with_image"}
    assert {name: own[name] for name in kept} == {name: like[name] for name in kept}


def test_run_on_such_a_file_is_tagged(tmp_path, prep, client, workflow_uri, caplog):
    like, out = write_slices(tmp_path / "like.h5"), tmp_path / "out.h5"
    prep("synthetic", like, out, "--n", 20)
    with caplog.at_level("INFO", logger="es_medical"):
        execute(workflow(["train.yaml"], tmp_path, out, workflow_uri, epochs=1))
    (run,) = runs(client, tmp_path.name)
    assert run.data.tags["synthetic_images"] == synthetic_kind(out) == "mr"
    assert {one.dataset.name for one in run.inputs.dataset_inputs} == {
        f"out.h5:{split} (synthetic images, mr)" for split in ("train", "val", "test")
    }
    assert "(synthetic images, mr)" in caplog.text


def test_what_can_not_be_made_is_told(tmp_path, prep):
    like, out = write_slices(tmp_path / "like.h5"), tmp_path / "out.h5"
    before = like.read_bytes()
    assert "is LIKE itself" in prep("synthetic", like, like, "--overwrite", code=1).output
    assert like.read_bytes() == before
    assert "kind 'cat' of synthetic images is unknown" in prep("synthetic", like, out, "--kind", "cat", code=1).output
    assert "kind 'ct' of synthetic images has 1 channels" in prep("synthetic", like, out, "--kind", "ct", code=1).output
    assert "no slice file at" in prep("synthetic", tmp_path / "none.h5", out, code=1).output
    assert "--n" in prep("synthetic", like, out, "--n", 19, code=2).stderr
    small = write_slices(tmp_path / "small.h5", size=(8, 8))
    assert "size 8 x 8" in prep("synthetic", small, out, "--n", 20, code=1).output
    assert not out.exists()


def test_without_image_noise_is_that_of_the_operator(tmp_path, prep):
    """The measurements belong to the images that are not stored."""
    like = write_slices(tmp_path / "like.h5")
    prep("synthetic", like, tmp_path / "out.h5", "--n", 20, "--without-image")
    images = [record.image for record in Likeness.of(like).records(20)]
    physics = MRI(read_header(like).mask, read_header(like).size)
    for one, image in zip(SliceDataset(tmp_path / "out.h5"), images, strict=True):
        noise = (one["measurement"] - physics.A(image[None])[0])[..., read_header(like).mask]
        assert 0.5 < float(noise.std() / one["sigma"]) < 1.5
