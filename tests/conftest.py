"""Check annotated shapes while the tests run; use one thread, so that timings and sums don't depend on the machine."""

import functools
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import config, install_import_hook

CHECKED = ["diagnostics", "groups", "inferers", "losses", "metrics", "networks", "physics", "splits", "uncertainty"]
install_import_hook([f"es_medical.{name}" for name in CHECKED], "typechecking.check")
torch.set_num_threads(1)


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
def workflow_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of one MLflow store for all trainings of the session: creating its tables takes seconds.

    The list of installed packages, which MLflow makes anew four times for each model that it logs, is made once.
    """
    from mlflow.utils import requirements_utils
    from tiny import database  # loads MLflow and MONAI

    with pytest.MonkeyPatch.context() as patch:
        name = "_init_packages_to_modules_map"
        patch.setattr(requirements_utils, name, functools.cache(getattr(requirements_utils, name)))
        yield database(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module", autouse=True)
def quick_trainings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spare whole trainings what other tests check: the shapes of each call, and equivariance for all elements of a group.

    Together they take a third of the time of a CT training.
    """
    if request.path.parent.name not in ("bundles", "jobs"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("es_medical.metrics.equivariance"), "_elements", lambda group, _: group.elements()[1:3])
        config.update("jaxtyping_disable", True)
        yield
        config.update("jaxtyping_disable", False)


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
