"""Every method trains a network and is tested: all of them on one bundle, one of each kind on the others."""

import math

import pytest
from processes import runs
from tiny import BUNDLE_NAMES, execute, workflow, write_slices_for

from es_medical.methods import TRAINED

WHOLE = "mnist_cs"  # every method; of the other bundles one of each kind
OTHERS = ("es_neq", "ei", "unsure")
PAIRS = [(bundle, method) for bundle in BUNDLE_NAMES for method in (TRAINED if bundle == WHOLE else OTHERS)]


@pytest.fixture(scope="module")
def data_files(tmp_path_factory):
    """The tiny data file of each bundle."""
    return {name: write_slices_for(name, tmp_path_factory.mktemp(name) / "slices.h5") for name in BUNDLE_NAMES}


@pytest.mark.parametrize(("bundle", "method"), PAIRS)
def test_method_trains_on_the_bundle(tmp_path, data_files, workflow_uri, client, bundle, method):
    folder = tmp_path / f"{bundle}-{method}"
    execute(workflow(["train.yaml"], folder, data_files[bundle], workflow_uri, bundle, method=method, epochs=1))
    (run,) = runs(client, folder.name)
    tags = (run.info.status, run.data.tags["method"], run.data.tags["bundle"], run.data.tags["scale"])
    assert tags == ("FINISHED", method, bundle, "paper")
    assert all(math.isfinite(run.data.metrics[name]) for name in ("train/loss", "test/psnr", "test/heldout"))
    assert "study" not in run.data.tags


def test_a_run_of_a_study_says_so_and_names_its_parent(tmp_path, data_files, workflow_uri, client):
    folder = tmp_path / "study"
    knobs = {"epochs": 1, "study": "demo/some/es", "parent_run": "0" * 32}
    execute(workflow(["train.yaml"], folder, data_files["mnist_cs"], workflow_uri, "mnist_cs", **knobs))
    (run,) = runs(client, folder.name)
    assert (run.data.tags["study"], run.data.tags["mlflow.parentRunId"]) == ("demo/some/es", "0" * 32)
