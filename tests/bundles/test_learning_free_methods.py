"""Every bundle runs a method that learns nothing, by `--method`, with the configuration of its training.

What each method gives for each kind of operator: tests/networks/test_learning_free.py.
"""

import functools
import importlib

import pytest
from tiny import BUNDLE_NAMES, causes, runs, write_slices_for

from es_medical.jobs import penalty_search
from es_medical.methods import METHODS

RUN = {"fastmri_synthetic": "tikhonov", "fastmri_real": "tv", "lidc_ct": "tv", "mnist_cs": "pseudo_inverse"}
RUN |= {"div2k_inpainting": "biharmonic"}


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    """Returns the data file of a bundle, made once: 8 x 8, four slices."""

    @functools.cache
    def file(bundle):
        path, splits = tmp_path_factory.mktemp(bundle) / "slices.h5", {"train": 1, "val": 1, "test": 2}
        return write_slices_for(bundle, path, size=(8, 8), splits=splits)

    return file


@pytest.fixture(autouse=True)
def few_weights(monkeypatch):
    """Two decades in place of six, and at most 20 iterations of total variation."""
    module = importlib.import_module("es_medical.networks.learning_free")
    monkeypatch.setattr(penalty_search, "DECADES", (0.001, 0.1))
    monkeypatch.setattr(module, "total_variation", functools.partial(module.total_variation, max_iter=20))


def test_every_method_is_run():
    assert set(RUN.values()) == {name for name, method in METHODS.items() if not method.trained}
    assert set(RUN) == set(BUNDLE_NAMES)


@pytest.mark.parametrize(("bundle", "method"), RUN.items())
def test_method_runs_on_every_bundle(bundle, method, small_file, train, client, tmp_path):
    train(bundle, tmp_path, source=small_file(bundle), method=method)
    (run,) = runs(client, tmp_path.name)
    assert run.info.status == "FINISHED"
    assert (run.data.tags["method"], run.data.tags["bundle"]) == (method, bundle)
    assert run.data.metrics.keys() >= {"test/psnr", "test/heldout", "val/baseline_psnr", "val/heldout", "epoch_time"}
    assert ("weight" in run.data.params) == (method in ("tikhonov", "tv"))
    if method == "biharmonic":
        assert run.data.metrics["test/psnr"] > run.data.metrics["val/baseline_psnr"] + 3


@pytest.mark.parametrize("bundle", [name for name in BUNDLE_NAMES if name != "div2k_inpainting"])
def test_biharmonic_is_refused_by_the_other_bundles(bundle, small_file, train, tmp_path):
    with pytest.raises(RuntimeError) as info:
        train(bundle, tmp_path, source=small_file(bundle), method="biharmonic")
    assert "it is for inpainting and decimation" in causes(info.value)
