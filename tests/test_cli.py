"""`es-medical`: what it prints is what it runs, and what a user types without a clone."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from es_medical.cli import app

ROOT = Path(__file__).parents[1]


def said(*arguments, code=0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_demo_makes_its_data_once_and_runs_the_readmes_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = map(shlex.split, said("train", "fastmri_synthetic", "--demo", "--dry-run", "--epochs", "3").splitlines())
    assert first == ["python", "-m", "data_prep", "demo", "mri", "demo.h5"]
    configs = ROOT / "bundles" / "fastmri_synthetic" / "configs"
    files = str([str(configs / "train.yaml"), str(configs / "demo.yaml")])
    assert second[2:] == ["monai.bundle", "run", "--config_file", files, "--bundle_root", "fastmri_synthetic", "--epochs", "3"]
    (tmp_path / "demo.h5").touch()
    assert len(said("train", "fastmri_synthetic", "--demo", "--dry-run").splitlines()) == 1
    (tmp_path / "demo.h5").unlink()
    assert len(said("train", "fastmri_synthetic", "--demo", "--dry-run", "--data_file=my.h5").splitlines()) == 1


def test_demo_reconstructs_by_the_weights_that_come_with_the_bundle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = str(ROOT / "bundles" / "fastmri_synthetic" / "models" / "demo")
    made, command = map(shlex.split, said("reconstruct", "fastmri_synthetic", "--demo", "--dry-run").splitlines())
    assert made[2:] == ["data_prep", "demo", "mri", "demo.h5"]
    assert command[2:] == [
        "es_medical.reconstruct",
        weights,
        "demo.h5",
        "fastmri_synthetic/demo",
        *("--data_split", "test", "--dataset#limit", "20", "--n_samples", "3", "--dicom", "false"),
    ]
    own = shlex.split(said("reconstruct", "fastmri_synthetic", "--demo", "SCAN.h5", "out", "--n_samples", "3", "--dry-run"))
    assert own[2:] == ["es_medical.reconstruct", weights, "SCAN.h5", "out", "--n_samples", "3"]
    assert "es-medical train mnist_cs --demo" in said("reconstruct", "mnist_cs", "--demo", "--dry-run", code=2)


def test_a_bundles_own_folder_keeps_its_results(monkeypatch):
    monkeypatch.chdir(ROOT)
    options = shlex.split(said("evaluate", "bundles/lidc_ct", "--overlay", "photons", "--dry-run"))
    assert str([f"bundles/lidc_ct/configs/{name}.yaml" for name in ("train", "photons", "evaluate")]) in options
    assert options[options.index("--bundle_root") + 1] == str(ROOT / "bundles" / "lidc_ct")
    given = shlex.split(said("train", "lidc_ct", "--dry-run", "--bundle-root", "out"))
    assert given[-2:] == ["--bundle-root", "out"]
    assert "--bundle_root" not in given


def test_several_processes_take_the_launcher_and_its_overlay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = shlex.split(said("train", "mnist_cs", "--processes", "2", "--dry-run"))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--max-restarts=3", "-m"]
    assert options[1:7] == launcher
    assert "multi_gpu_train.yaml" in options[10]


def test_ctrl_c_ends_several_processes_without_the_launchers_traceback():
    code = (
        "import subprocess, sys; from es_medical.cli import _launch; "
        "subprocess.Popen(['sleep', '600'], start_new_session=True); "  # as one that torchrun was just starting
        "sys.exit(_launch(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "--standalone", "--nproc_per_node=2", "--no-python"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "sh", "-c", "echo Serving; exec sleep 600"], start_new_session=True, **pipes) as launcher:
        assert all("Serving" in launcher.stdout.readline() for _ in range(2))  # both processes
        os.killpg(launcher.pid, signal.SIGINT)
        said = launcher.communicate(timeout=60)[1]
    assert launcher.returncode == 130
    assert "Traceback" not in said


def test_every_bundle_is_listed_and_every_demo_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = [line.split(":")[0] for line in said("bundles").splitlines()[:-1]]
    assert listed == ["div2k_inpainting", "fastmri_real", "fastmri_synthetic", "lidc_ct", "mnist_cs"]
    for name in listed:
        assert "data_prep demo" in said("diagnose", name, "--demo", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "mri", "--dry-run"), "no bundle 'mri': give its folder, or one of div2k_inpainting, fastmri_real"),
        (("train", "mnist_cs", "--overlay", "photons", "--dry-run"), "mnist_cs has no photons.yaml"),
    ],
)
def test_wrong_names_are_said_in_one_line(arguments, message):
    assert message in said(*arguments, code=2)
