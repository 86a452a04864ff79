"""The GPU report on the CPU, tiny. What needs a GPU is skipped there and says so."""

import json
import subprocess
import sys
import time
from argparse import Namespace

import pytest
import torch

from es_medical.benchmark import gpu, gpu_parts
from es_medical.benchmark.__main__ import main
from es_medical.benchmark.gpu_parts import PARTS, Context
from es_medical.benchmark.gpu_problems import PAPER, TINY

CPU = torch.device("cpu")
COMPILED = {name for name in PARTS if "compiled" in name}
ON_GPU = {name for name in PARTS if "captured" in name or "graphs" in name}


def options(**changes):
    return Namespace(**({"device": "cpu", "tiny": True, "minutes": 5.0, "repeats": 1, "only": None} | changes))


def context(seconds=60.0):
    return Context(CPU, TINY, time.monotonic() + seconds, 1)


@pytest.fixture(scope="module")
def results():
    return {one.part: one for one in gpu.run(options(only=[name for name in PARTS if name not in COMPILED]))}


def test_every_part_runs_or_says_that_it_needs_a_gpu(results):
    assert {name for name, one in results.items() if one.status == "skipped"} == ON_GPU
    assert all(results[name].error == "needs a GPU" for name in ON_GPU)
    assert {one.error for name, one in results.items() if name not in ON_GPU} == {""}


def test_operators_losses_and_networks_agree_with_float64(results):
    found = results["agreement"].values
    assert {"mri es", "mri ei", "mri sure", "coils es", "ct es", "inpainting es"} <= set(found)
    assert all(row["agrees"] and row["gap"] < 1e-4 for row in found.values())


def test_a_wrong_gradient_does_not_agree(monkeypatch):
    factors = iter([1.0, 1.01, 1.0, *[1.0] * 18])  # in float64, on the device, on the CPU
    monkeypatch.setattr(gpu_parts, "gradient", lambda *_: next(factors) * torch.ones(3))
    here = context()
    gpu_parts.agreement(here)
    assert [row["agrees"] for row in here.found.values()] == [False, *[True] * 6]
    assert here.found["mri es"]["gap"] == pytest.approx(0.01, rel=1e-3)


def test_speeds_are_consistent(results):
    values = results["step bf16"].values
    assert values["images_per_second"] == pytest.approx(1e3 * values["batch"] / values["ms"])
    assert values["epoch_seconds"] == pytest.approx(TINY.epoch / values["images_per_second"])
    whole = results["epoch bf16"].values
    assert (whole["images"], whole["epoch_seconds"]) == (TINY.epoch, whole["seconds"])
    assert "paper_epoch_seconds" not in values  # which is of the paper's size
    assert [results[name].values["tf32"] for name in ("step float32", "ei float32", "sure float32")] == [True, False, False]


def test_the_papers_sizes():
    assert (PAPER.mri, PAPER.widths, PAPER.epoch, PAPER.ct, PAPER.views) == (320, (64, 128, 256, 512), 900, 256, 50)
    assert gpu_parts.PAPER_EPOCH == {"es": 24, "supervised": 29, "ei": 53, "sure": 36}


def test_a_failure_is_recorded_and_the_others_go_on_until_the_time_is_over(monkeypatch, tmp_path, capsys):
    def out_of_memory(here):
        here.found["before"] = 1
        raise torch.OutOfMemoryError("CUDA out of memory")

    def endless(here):
        while True:
            time.sleep(0.01)

    parts = {"full": out_of_memory, "good": lambda here: here.found.update(x=2.5), "endless": endless, "late": out_of_memory}
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(gpu, "LEAST", 0.2)
    path = tmp_path / "gpu.json"
    start = time.monotonic()
    main(["gpu", "--device", "cpu", "--tiny", "--minutes", "0.01", "--json", str(path)])
    assert time.monotonic() - start < 10
    found = {one["part"]: one for one in json.loads(path.read_text())["gpu"]}
    assert {name: one["status"] for name, one in found.items()} == {
        "full": "failed", "good": "done", "endless": "failed", "late": "skipped",
    }  # fmt: skip
    assert found["full"]["error"] == "OutOfMemoryError: CUDA out of memory"
    assert (found["full"]["values"], found["good"]["values"]) == ({"before": 1}, {"x": 2.5})
    assert "out of time" in found["endless"]["error"]
    assert "OutOfMemoryError" in capsys.readouterr().out


def test_what_was_found_is_kept_when_the_process_ends(monkeypatch, tmp_path):
    def end(here):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "PARTS", {"first": lambda here: here.found.update(x=1), "second": end})
    path = tmp_path / "gpu.json"
    with pytest.raises(KeyboardInterrupt):
        main(["gpu", "--device", "cpu", "--tiny", "--json", str(path)])
    assert [one["part"] for one in json.loads(path.read_text())["gpu"]] == ["first"]
    assert list(tmp_path.iterdir()) == [path]


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch finds no GPU on this machine: try --device cpu"):
        main(["gpu"])


def test_unknown_parts_are_refused():
    with pytest.raises(ValueError, match="unknown parts spep: choose from agreement"):
        next(gpu.run(options(only=["spep"])))


BARE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("monai", "mlflow", "ignite", "astra", "typer", "data_prep", "pydicom", "nibabel", "torchio"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from es_medical.benchmark.__main__ import main
parts = [word for name in ("epoch bf16", "ct bf16") for word in ("--only", name)]
main(["gpu", "--device", "cpu", "--tiny", "--repeats", "1", *parts, "--json", sys.argv[1]])
main(["step", "--size", "16", "--widths", "2,4", "--iterations", "1", "--repeats", "1"])
"""


def test_nothing_but_torch_deepinv_and_this_package_is_needed(tmp_path):
    path = tmp_path / "gpu.json"
    run = subprocess.run([sys.executable, "-c", BARE, str(path)], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    assert [(one["status"], one["error"]) for one in json.loads(path.read_text())["gpu"]] == 2 * [("done", "")]


def test_frozen_draws_would_be_seen(monkeypatch):
    """The check of compiled steps: equal losses in all steps do not pass as new draws."""
    outputs = iter([*range(1, 9), *[1.0] * 8])
    monkeypatch.setattr(gpu_parts, "losses", lambda *_: torch.tensor([float(next(outputs)) for _ in range(8)]))
    here = context()
    gpu_parts.compiled_agreement(here)
    assert here.found == {"compiled": {"gap": 7 / 8, "agrees": False, "draws_differ": False}}
