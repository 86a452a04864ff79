"""The command line, as a user runs it."""

import subprocess
import sys

import pytest
from report_store import BUNDLES, items
from typer.testing import CliRunner

from es_medical.report.__main__ import app


@pytest.fixture
def run(store, tmp_path):
    def invoke(*arguments, uri=store.uri):
        return CliRunner().invoke(app, ["tables", "--tracking-uri", uri, "--out", str(tmp_path / "out"), *arguments])

    return invoke


def test_tables_writes_a_report_and_says_where(store, run, tmp_path):
    store.log("es", items(28))
    store.log("ei", items(24), status="RUNNING")
    store.log("es", items(28), experiment="other")
    result = run("--experiment", "other", "--experiment", "fastmri_synthetic_demo")
    assert result.exit_code == 0, result.output
    assert "1 run not finished (RUNNING)" in result.output
    assert str(tmp_path / "out" / "report.html") in result.output
    assert "2 runs, 2 sections" in result.output  # nothing of the paper's that was not asked for
    assert run("--experiment", "other").exit_code == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "fastmri\\_synthetic\\_demo" not in text
    assert "no runs yet" not in text


def test_an_empty_store_ends_with_an_error_and_the_first_command_and_an_absent_one_with_an_error(run, tmp_path):
    result = run("--scale", "demo")
    assert result.exit_code == 1
    assert "python -m data_prep demo mri demo.h5" in result.output
    absent = run(uri=f"sqlite:///{tmp_path / 'none.db'}")
    assert absent.exit_code == 1
    assert "there is no MLflow database" in absent.output
    assert not (tmp_path / "out").exists()


def reproduction(tmp_path, *arguments):
    places = ["--tracking-uri", f"sqlite:///{tmp_path / 'new.db'}", "--work", str(tmp_path / "work"), "--bundles", str(BUNDLES)]
    return CliRunner().invoke(app, ["reproduce", *places, *arguments])


def test_a_dry_run_prints_the_commands_and_takes_the_earlier_name_of_a_method(tmp_path):
    result = reproduction(tmp_path, "--only", "mri_x8", "--method", "ei_lot", "--set", "widths=[4,8]", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "0 of 1 runs are there, 1 to make" in result.output
    for part in ("python -m data_prep demo mri demo.h5", "--method ei_alternating", "--widths '[4,8]'", "--scale demo"):
        assert part in result.output
    assert list(tmp_path.iterdir()) == []  # no database either


def test_what_a_user_mistypes_ends_with_an_error(tmp_path):
    for arguments, words in (
        (["--only", "mri"], "unknown experiment mri: choose from ct, div2k_inpainting, fastmri_real, "),
        (["--method", "dip"], "unknown method dip: choose from biharmonic, ei, "),
        (["--set", "widths"], "--set takes NAME=VALUE, got widths"),
        (["--bundles", str(tmp_path)], "give the folder of the bundles as --bundles"),
    ):
        result = reproduction(tmp_path, *arguments)
        assert result.exit_code == 1
        assert words in result.output


def test_help_is_quick_because_heavy_imports_stand_inside_the_command():
    heavy = "{'mlflow', 'torch', 'matplotlib', 'monai', 'pandas', 'jinja2', 'scipy'}"
    code = f"import sys, es_medical.report.__main__; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
