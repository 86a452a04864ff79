import subprocess
import sys

import pytest


@pytest.mark.parametrize("arguments", [[], ["fastmri"], ["demo"], ["demo", "mri"]])
def test_help(prep, arguments):
    assert "Usage" in prep(*arguments, "--help").stdout


@pytest.mark.parametrize("wrong", ["--slices first", "--acceleration 0.5", "--acelleration 8", "--workers 0"])
def test_wrong_option_is_refused(tmp_path, prep, wrong):
    assert wrong.split()[0] in prep("fastmri", tmp_path, tmp_path / "out.h5", *wrong.split(), code=2).stderr


@pytest.mark.parametrize("command", ["div2k", "mnist", "fastmri", "demo natural", "demo digits"])
def test_seeds_that_torch_would_cut_are_refused(tmp_path, prep, command):
    source = [] if command.startswith("demo") else [tmp_path]
    assert "--seed" in prep(*command.split(), *source, tmp_path / "out.h5", "--seed", str(2**32), code=2).stderr


def test_command_line_loads_nothing_heavy():
    code = "import sys, data_prep.__main__; sys.exit(bool({'torch', 'h5py', 'numpy', 'deepinv'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
