"""Every bundle runs the methods that learn nothing, by `--method`, with the configuration of its training."""

import functools
import importlib

import pytest
from tiny import BUNDLE_NAMES, causes, runs, write_slices_for

from es_medical.jobs import penalty_search
from es_medical.methods import METHODS

FREE = [name for name, method in METHODS.items() if not method.trained]


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


@pytest.mark.parametrize("bundle", BUNDLE_NAMES)
@pytest.mark.parametrize("method", [name for name in FREE if name != "biharmonic"])
def test_method_runs_on_every_bundle(bundle, method, small_file, train, client, tmp_path):
    train(bundle, tmp_path, source=small_file(bundle), method=method)
    (run,) = runs(client, tmp_path.name)
    assert run.info.status == "FINISHED"
    assert (run.data.tags["method"], run.data.tags["bundle"]) == (method, bundle)
    assert run.data.metrics.keys() >= {"test/psnr", "test/heldout", "val/baseline_psnr", "val/heldout", "epoch_time"}
    assert ("weight" in run.data.params) == (method != "pseudo_inverse")


def test_biharmonic_runs_on_the_inpainting_bundle(small_file, train, client, tmp_path):
    train("div2k_inpainting", tmp_path, source=small_file("div2k_inpainting"), method="biharmonic")
    (run,) = runs(client, tmp_path.name)
    assert run.data.metrics["test/psnr"] > run.data.metrics["val/baseline_psnr"] + 3


@pytest.mark.parametrize("bundle", [name for name in BUNDLE_NAMES if name != "div2k_inpainting"])
def test_biharmonic_is_refused_by_the_other_bundles(bundle, small_file, train, tmp_path):
    with pytest.raises(RuntimeError) as info:
        train(bundle, tmp_path, source=small_file(bundle), method="biharmonic")
    assert "it is for inpainting and decimation" in causes(info.value)
