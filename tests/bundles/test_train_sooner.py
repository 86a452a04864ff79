"""Knobs of a training that gets there sooner, as the command line gives them: schedule, warm-up, average, several splits."""

import pytest
import torch
from tiny import BUNDLE_NAMES, execute, runs, workflow, write_slices_for

from es_medical.losses import FrequencyWeighting, RampWeighting

SOONER = {"schedule": "cosine", "lr_end": 0.1, "warmup": 3, "ema": 0.9, "n_splits": 2}


def job(bundle, folder, uri, **overrides):
    source = folder / "slices.h5"
    if not source.exists():
        write_slices_for(bundle, source)
    return workflow(["train.yaml"], folder, source, uri, bundle, **(SOONER | overrides))


@pytest.mark.parametrize("bundle", BUNDLE_NAMES)
def test_knobs_reach_what_they_are_for(bundle, tmp_path):
    one = job(bundle, tmp_path, "sqlite:///none.db", epochs=7)
    one.initialize()
    trainer, loss = (one.parser.get_parsed_content(name) for name in ("train#trainer", "loss"))
    assert trainer.average.decay == 0.9
    assert (trainer.scheduler.kind, trainer.scheduler.epochs, trainer.scheduler.end) == ("cosine", 7, 0.1)
    assert (trainer.scheduler.warmup, loss.n) == (3, 2)
    expected = {"fastmri_synthetic": FrequencyWeighting, "fastmri_real": FrequencyWeighting, "lidc_ct": RampWeighting}
    weighting = {"weighting": "frequency"} if "fastmri" in bundle else {}
    other = job(bundle, tmp_path, "sqlite:///none.db", n_splits=1, **weighting)
    other.initialize()
    assert isinstance(other.parser.get_parsed_content("loss").weighting, expected.get(bundle, type(None)))
    assert one.parser.get_parsed_content("checkpoints").scheduler is trainer.scheduler
    assert trainer.scheduler.optimizer is trainer.optimizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory, workflow_uri):
    """Two epochs of two steps, validated at the end alone."""
    folder = tmp_path_factory.mktemp("sooner")
    execute(job("fastmri_synthetic", folder, workflow_uri, val_interval=2))
    return folder


def test_average_is_what_is_validated_tested_and_kept(trained, client, workflow_uri):
    last = torch.load(trained / "models" / "last.pt")
    best = torch.load(trained / "models" / "reconstructor.pt")["reconstructor"]
    assert all(torch.equal(value, last["average"]["weights"][name]) for name, value in best.items())
    assert not all(torch.equal(value, last["reconstructor"][name]) for name, value in best.items())
    places = {"experiment": f"{trained.name}-again", "val_interval": 2}
    source = trained / "slices.h5"
    execute(workflow(["train.yaml", "evaluate.yaml"], trained, source, workflow_uri, "fastmri_synthetic", **places))
    (run,), (again,) = runs(client, trained.name), runs(client, f"{trained.name}-again")
    assert run.data.metrics["test/psnr"] == again.data.metrics["test/psnr"]
    assert -torch.load(trained / "models" / "reconstructor.pt")["score"] == run.data.metrics["val/heldout"]


def test_rates_are_logged_as_they_were_used(trained, client):
    (run,) = runs(client, trained.name)
    history = client.get_metric_history(run.info.run_id, "lr")
    assert [(one.step, one.value) for one in history] == [(2, pytest.approx(0.01 * 2 / 3)), (4, pytest.approx(0.01 * 0.1))]
