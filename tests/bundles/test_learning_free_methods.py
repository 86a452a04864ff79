"""Every bundle runs the methods that learn nothing, by `--method`, with the configuration of its training."""

import pytest
from tiny import BUNDLE_NAMES, causes, execute, workflow, write_slices_for

from es_medical.jobs import training
from es_medical.methods import METHODS

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:mlflow", "ignore::FutureWarning:mlflow", "ignore::DeprecationWarning:sqlalchemy"
)
SIZE = (8, 8)
FREE = [name for name, method in METHODS.items() if not method.trained]


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    """The tiny data file of a bundle, made once."""
    made = {}

    def file(bundle):
        if bundle not in made:
            path = tmp_path_factory.mktemp(bundle) / "slices.h5"
            made[bundle] = write_slices_for(bundle, path, size=SIZE, splits={"train": 1, "val": 1, "test": 2})
        return made[bundle]

    return file


@pytest.fixture(autouse=True)
def few_weights(monkeypatch):
    """Two decades in place of six."""
    monkeypatch.setattr(training, "DECADES", (0.001, 0.1))


@pytest.mark.parametrize("bundle", BUNDLE_NAMES)
@pytest.mark.parametrize("method", [name for name in FREE if name != "biharmonic"])
def test_method_runs_on_every_bundle(bundle, method, data_file, workflow_uri, client, tmp_path):
    execute(workflow(["train.yaml"], tmp_path, data_file(bundle), workflow_uri, bundle, method=method))
    (run,) = client.search_runs([client.get_experiment_by_name(tmp_path.name).experiment_id])
    assert run.info.status == "FINISHED"
    assert (run.data.tags["method"], run.data.tags["bundle"]) == (method, bundle)
    assert run.data.metrics.keys() >= {"test/psnr", "test/heldout", "test/baseline_psnr", "val/heldout", "epoch_time"}
    assert ("weight" in run.data.params) == (method != "pseudo_inverse")


def test_biharmonic_runs_on_the_inpainting_bundle(data_file, workflow_uri, client, tmp_path):
    execute(
        workflow(["train.yaml"], tmp_path, data_file("div2k_inpainting"), workflow_uri, "div2k_inpainting", method="biharmonic")
    )
    (run,) = client.search_runs([client.get_experiment_by_name(tmp_path.name).experiment_id])
    assert run.data.metrics["test/psnr"] > run.data.metrics["test/baseline_psnr"] + 3


@pytest.mark.parametrize("bundle", [name for name in BUNDLE_NAMES if name != "div2k_inpainting"])
def test_biharmonic_is_refused_by_the_other_bundles(bundle, data_file, workflow_uri, tmp_path):
    job = workflow(["train.yaml"], tmp_path, data_file(bundle), workflow_uri, bundle, method="biharmonic")
    with pytest.raises(RuntimeError) as info:
        execute(job)
    assert "it is for inpainting and decimation" in causes(info.value)
