"""Every method trains a network and is tested: all of them on one bundle, one of each kind on the others."""

import math

import pytest
from processes import reconstruct
from tiny import CASES, SINGLE, bundle_of, runs

from es_medical.methods import TRAINED

CHOSEN = {"mnist_cs": TRAINED, "div2k_inpainting": ("es_neq", "ei", "unsure"), SINGLE: ("ei", "supervised")}
OTHERS = ("es_neq", "ei", "unsure", "supervised")
PAIRS = [(case, method) for case in CASES for method in CHOSEN.get(case, OTHERS)]


@pytest.mark.parametrize(("case", "method"), PAIRS)
def test_method_trains_and_reconstructs(tmp_path, train, data_file, client, case, method):
    folder = tmp_path / f"{case}-{method}"
    train(case, folder, method=method, epochs=1)
    (run,) = runs(client, folder.name)
    tags = (run.info.status, run.data.tags["method"], run.data.tags["bundle"], run.data.tags["scale"])
    assert tags == ("FINISHED", method, bundle_of(case), "paper")
    assert all(math.isfinite(run.data.metrics[name]) for name in ("train/loss", "test/psnr", "test/heldout"))
    assert "study" not in run.data.tags
    images, ids = reconstruct(case, folder, data_file(case), method=method, data_split="test")
    assert ids == ["item6", "item7", "item8"]
    assert (images.flatten(1).std(1) > 0).all()


def test_a_run_of_a_study_says_so_and_names_its_parent(tmp_path, train, client):
    folder = tmp_path / "study"
    train("mnist_cs", folder, epochs=1, study="demo/some/es", parent_run="0" * 32)
    (run,) = runs(client, folder.name)
    assert (run.data.tags["study"], run.data.tags["mlflow.parentRunId"]) == ("demo/some/es", "0" * 32)
