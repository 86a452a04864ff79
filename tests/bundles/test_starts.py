"""The knobs `start` and `zero_residual` of a bundle reach training, evaluation and reconstruction."""

import pytest
import torch
from processes import reconstruct
from tiny import execute, runs, workflow

CASE = "div2k_inpainting"
KNOBS = {"start": "estimate", "zero_residual": True}


def test_untrained_network_returns_what_it_starts_from(built):
    parts = built(CASE, **KNOBS)
    y, physics = parts("validate#dataset")[0]["measurement"][None], parts("physics")
    expected = physics.prox_l2(physics.estimate(y), y, parts("step"))  # one iteration
    torch.testing.assert_close(parts("reconstructor")(y, physics), expected)


def test_weights_serve_the_start_they_were_trained_with_and_the_baseline_is_the_incomplete_image(
    train, trained, data_file, tmp_path, client, workflow_uri
):
    train(CASE, tmp_path, **KNOBS)
    first, other = (runs(client, folder.name)[0].data.metrics for folder in (tmp_path, trained(CASE)))
    assert first["val/baseline_psnr"] == other["val/baseline_psnr"]
    assert first["test/psnr"] != other["test/psnr"]
    reconstruct(CASE, tmp_path, data_file(CASE))  # the weights know their start
    execute(workflow(["train.yaml", "evaluate.yaml"], tmp_path, data_file(CASE), workflow_uri, CASE, start="estimate"))
    assert runs(client, tmp_path.name)[-1].data.metrics["test/psnr"] == pytest.approx(first["test/psnr"], rel=1e-4)
