import functools

import h5py
import numpy as np
import pytest
from raw import HEADER, kspace_of, phantom
from typer import testing

from data_prep.__main__ import app


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """A folder for each of `prep_commands.COMMANDS`, with what its tests share."""
    return functools.cache(lambda name: tmp_path_factory.mktemp("kept") / name)


@pytest.fixture(scope="session")
def make_volume():
    """Writes a file in fastMRI's layout: k-space of 64 x 48, target of 32 x 32."""

    def make(path, seed=0, n=3, width=48, scale=1.0, keys=("reconstruction_esc",), patient=None, header=True, **extra):
        path.parent.mkdir(parents=True, exist_ok=True)
        x = scale * phantom((n, 64, width), seed)
        with h5py.File(path, "w") as file:
            file["kspace"] = extra.pop("kspace", kspace_of(x))
            left = width // 2 - 16
            for key in keys:
                file[key] = np.abs(x[:, 16:48, left : left + 32]).astype(np.float32)
            if header:
                file["ismrmrd_header"] = HEADER.format(width=width, maximum=width - 1, center=width // 2)
            if patient is not None:
                file.attrs["patient_id"] = patient
            for name, value in extra.items():
                file[name] = value
        return path

    return make


@pytest.fixture(scope="session")
def prep():
    """Runs the command line in this process, which is to end with an exit code; returns what it printed."""

    def run(*arguments, code=0):
        result = testing.CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    with pytest.MonkeyPatch.context() as patch:  # a third of the time of a tiny run
        patch.setattr(testing, "_get_command", functools.cache(testing._get_command))
        yield run
