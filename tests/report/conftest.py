"""An MLflow store for each test."""

import shutil

import pytest
from report_store import Store

from es_medical.tracking.server import connect


@pytest.fixture
def store(empty_database, tmp_path):
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return Store(connect(uri), uri, tmp_path)
