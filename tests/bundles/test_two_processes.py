"""Two processes on one CPU train one model, as several GPUs do: single- and multi-coil k-space."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from processes import PYTHON, shell
from tiny import execute, runs, workflow, write_slices_for

BUNDLES = ("fastmri_synthetic", "fastmri_real")


class Trained(NamedTuple):
    """The folder of the trainings, what each process found by bundle, and what both printed."""

    folder: Path
    ranks: list[dict[str, Any]]
    output: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory, workflow_uri):
    """Both bundles one after another: to start the processes takes most of the time."""
    folder = tmp_path_factory.mktemp("two")
    for bundle in BUNDLES:
        write_slices_for(bundle, folder / f"{bundle}.h5")
    launch = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = str(Path(__file__).with_name("two_processes.py"))
    output = shell([*launch, script, str(folder), workflow_uri, *BUNDLES], folder)
    return Trained(folder, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)], output)


@pytest.mark.parametrize("bundle", BUNDLES)
def test_both_hold_the_same_weights_also_when_resumed(trained, bundle):
    first, second = (rank[bundle] for rank in trained.ranks)
    assert first["weights"] == second["weights"]
    assert first["weights"] == first["resumed"] == second["resumed"]
    assert first["generator"] != second["generator"]
    assert first["steps"] == second["steps"] == 2 * 4 / 2
    assert first["processes"] == 2


@pytest.mark.parametrize("bundle", BUNDLES)
def test_both_start_from_one_warm_start_which_is_found_again(trained, client, bundle):
    """Its steps are divided between them: two for four images; the last training starts from the same weights as the first."""
    (run,) = runs(client, bundle)
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "warm/loss")] == [2]
    first, again = (torch.load(trained.folder / name / "models" / "warm.pt") for name in (bundle, f"{bundle}-resumed"))
    assert all(torch.equal(value, again["reconstructor"][name]) for name, value in first["reconstructor"].items())
    assert trained.output.count("warm epoch 1/1") == 2 * len(BUNDLES)


@pytest.mark.parametrize("bundle", BUNDLES)
def test_first_process_alone_logs(trained, client, bundle):
    (run,) = runs(client, bundle)
    assert run.info.status == "FINISHED"
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    assert trained.output.count("epoch 1/2") == len(BUNDLES)
    assert trained.output.count("Test slices") == 3 * len(BUNDLES)  # one table for each training


@pytest.mark.parametrize("bundle", BUNDLES)
def test_scores_are_those_of_one_process(trained, client, workflow_uri, bundle):
    """Three test slices and two processes: shares of different size."""
    source = trained.folder / f"{bundle}.h5"
    execute(workflow(["train.yaml", "evaluate.yaml"], trained.folder / bundle, source, workflow_uri, bundle))
    together, alone = runs(client, bundle)
    for name in ("test/heldout", "test/psnr", "test/ssim"):
        assert alone.data.metrics[name] == pytest.approx(together.data.metrics[name], rel=1e-4)
