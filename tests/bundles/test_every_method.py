"""Every method trains a network and is tested by the commands of one bundle, and takes steps on the data of the others."""

import math

import pytest
from processes import reconstruct
from tiny import CASES, SINGLE, runs

from es_medical.methods import TRAINED

BUNDLE = "mnist_cs"
CHOSEN = {"div2k_inpainting": ("es_neq", "ei", "unsure"), SINGLE: ("ei", "supervised")}
OTHERS = ("es_neq", "ei", "unsure", "supervised")
PAIRS = [(case, method) for case in CASES if case != BUNDLE for method in CHOSEN.get(case, OTHERS)]


@pytest.mark.parametrize("method", TRAINED)
def test_method_trains_and_reconstructs(tmp_path, train, data_file, client, method):
    folder = tmp_path / method
    study = {"study": "demo/some/sure", "parent_run": "0" * 32} if method == "sure" else {}
    train(BUNDLE, folder, method=method, epochs=1, **study)
    (run,) = runs(client, folder.name)
    tags = (run.info.status, run.data.tags["method"], run.data.tags["bundle"], run.data.tags["scale"])
    assert tags == ("FINISHED", method, BUNDLE, "paper")
    assert all(math.isfinite(run.data.metrics[name]) for name in ("train/loss", "test/psnr", "test/heldout"))
    assert [run.data.tags.get(name) for name in ("study", "mlflow.parentRunId")] == list(study.values() or (None, None))
    images, ids = reconstruct(BUNDLE, folder, data_file(BUNDLE), method=method, data_split="test")
    assert ids == ["item6", "item7", "item8"]
    assert (images.flatten(1).std(1) > 0).all()


@pytest.mark.parametrize(("case", "method"), PAIRS)
def test_method_takes_steps_and_is_tested_on_every_bundle(built, case, method):
    """How its weights are kept, logged and used is that of all bundles (test_bundle_contract)."""
    get = built(case, method=method, epochs=1)
    trainer, tester = get("train#trainer"), get("test#evaluator")
    before = [value.clone() for value in trainer.network.parameters()]
    trainer.run()
    assert math.isfinite(float(trainer.state.output["loss"]))
    assert any((new != old).any() for new, old in zip(trainer.network.parameters(), before, strict=True))
    tester.equiv_group = None
    tester.run()
    assert all(math.isfinite(row[name]) for row in tester.rows for name in ("psnr", "heldout"))
    assert len(tester.rows) == 3
