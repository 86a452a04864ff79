"""Check annotated shapes while the tests run; use one thread, so that timings and sums don't depend on the machine."""

import functools
import gc
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import typechecking
from jaxtyping import config, install_import_hook

import_module("deepinv")  # first: what checked modules import while they load is compiled anew each time, without its .pyc file
CHECKED = ["diagnostics", "groups", "inferers", "losses", "metrics", "networks", "physics", "splits", "uncertainty"]
install_import_hook([f"es_medical.{name}" for name in CHECKED], "typechecking.check")
TRAINING = ("test_training_data.py", "test_settings.py", "test_bundle_intervals.py", "test_tutorials.py")
"""Files elsewhere that train by bundles."""
torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at all that is loaded by now, again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def first_calls_checked() -> Iterator[None]:
    """Check the shapes of the first calls of each test."""
    yield
    typechecking.check_again()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn the shape checks off, to test what a user without them sees for a wrong shape."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session", autouse=True)
def matrix_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cache the tests' system matrices in a temporary folder for the session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_MEDICAL_CACHE", str(tmp_path_factory.mktemp("matrices")))
        yield


@pytest.fixture(scope="session", autouse=True)
def pickled_models() -> Iterator[None]:
    """Pickle the models that trainings log: an export takes seconds, and has a test of its own."""
    from es_medical.tracking import artifacts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifacts, "EXPORT", False)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real images that some tests use if available."""
    path = Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"the folder of real images, {path}, is not here")
    return path


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new MLflow database, to be copied: making its tables takes seconds."""
    from es_medical.tracking.server import connect

    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def workflow_uri(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[str]:
    """URI of one MLflow store for all trainings of the session.

    The list of installed packages, which MLflow makes anew four times for each model that it logs, is made once.
    """
    from mlflow.utils import requirements_utils

    store = shutil.copy(empty_database, tmp_path_factory.mktemp("workflows"))
    with pytest.MonkeyPatch.context() as patch:
        name = "_init_packages_to_modules_map"
        patch.setattr(requirements_utils, name, functools.cache(getattr(requirements_utils, name)))
        yield f"sqlite:///{store}"


@pytest.fixture(scope="module", autouse=True)
def quick_trainings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spare whole trainings what other tests check: the shapes of each call, and EQUIV of a whole group.

    Together they take half of the time of a CT training.
    """
    if request.path.parent.name not in ("bundles", "jobs") and request.path.name not in TRAINING:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        from tiny import shorten

        shorten(patch)
        config.update("jaxtyping_disable", True)
        yield
        config.update("jaxtyping_disable", False)


@pytest.fixture
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings without MLflow, which takes most of the time of a short one."""
    from es_medical.jobs.record import Record
    from es_medical.tracking.tracker import NullTracker

    monkeypatch.setattr(Record, "tracker", lambda *_: NullTracker())


@pytest.fixture(scope="session")
def client(workflow_uri: str) -> Any:
    """Reads what trainings logged there."""
    from es_medical.tracking.server import connect

    return connect(workflow_uri)


@pytest.fixture(scope="session")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slices of synthetic k-space, which nobody changes."""
    from tiny import write_slices

    return write_slices(tmp_path_factory.mktemp("shared") / "slices.h5")
