"""Two processes train what one does; one of them is killed once, and torchrun starts both again.

The gradient of every method, divided among processes: tests/engine/test_shared_batches.py. Every method of every bundle by two
processes: tests/endurance/matrix.py.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from processes import PYTHON, shell
from tiny import execute, names, runs, steps, write_slices_for
from two_processes import KILLED, TRAININGS, training

from es_medical.engine.launch import FILE

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as es-medical sets it
SPLITS = {"train": 5, "val": 2, "test": 3}  # the last batch has one slice, for two processes


class Trained(NamedTuple):
    """The folder of the trainings of both processes, that of one process alone, and what both processes printed."""

    folder: Path
    alone: Path
    output: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory, workflow_uri):
    """All one after another: to start the processes takes most of the time."""
    folder, alone = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("alone")
    for bundle in TRAININGS:
        source = write_slices_for(bundle, folder / f"{bundle}.h5", splits=SPLITS)
        shutil.copy(source, alone / source.name)
        execute(training(alone, workflow_uri, bundle))
    output = shell([*PYTHON, str(Path(__file__).with_name("two_processes.py")), str(folder), workflow_uri], folder, **OWN_STORE)
    return Trained(folder, alone, output)


def run_of(trained, client, bundle, alone=False):
    (run,) = runs(client, f"{(trained.alone if alone else trained.folder).name}-{bundle}")
    assert run.info.status == "FINISHED"
    return run


@pytest.mark.parametrize("bundle", TRAININGS)
def test_steps_and_scores_are_those_of_one_process(trained, client, bundle):
    together, alone = run_of(trained, client, bundle), run_of(trained, client, bundle, alone=True)
    for name in ("train/loss", "train/grad_norm"):
        curve = steps(client, together, name)  # logged by the first process alone: each step once
        assert sorted(step for step, _ in curve) == list(range(1, 3 * TRAININGS[bundle]["epochs"] + 1))
        assert dict(curve) == pytest.approx(dict(steps(client, alone, name)), rel=1e-3)
    for name in ("test/heldout", "test/psnr"):
        assert together.data.metrics[name] == pytest.approx(alone.data.metrics[name], rel=1e-3)


@pytest.mark.parametrize("bundle", TRAININGS)
def test_weights_are_those_of_one_process(trained, bundle):
    """Up to rounding; Adam's first steps have the size of the learning rate, 0.01, whatever the gradient is."""
    both, one = (torch.load(place / bundle / "models" / "last.pt") for place in (trained.folder, trained.alone))
    for name, value in one["reconstructor"].items():
        assert (both["reconstructor"][name] - value).abs().median() < 1e-4, name
    assert FILE not in names(trained.folder / bundle / "models")


def test_after_a_process_is_killed_both_go_on_in_the_same_run(trained, client):
    run = run_of(trained, client, KILLED)
    assert run.data.tags["restarts"] == "1"
    assert trained.output.count("Test slices") == len(TRAININGS)  # one table for each training
    assert sorted(steps(client, run, "epoch")) == [(3, 1), (6, 2), (9, 3)]
    assert len(steps(client, run, "warm/loss")) == 1
