"""An MLflow store for each test: a copy of one empty database, because making one takes seconds."""

import shutil

import pytest
from report_store import Store

from es_medical.tracking.server import connect


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def store(empty_database, tmp_path):
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return Store(connect(uri), uri, tmp_path)
