import pytest
from tiny import database

from es_medical.engine.tracking.server import connect


@pytest.fixture(scope="session")
def workflow_uri(tmp_path_factory):
    return database(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def client(workflow_uri):
    return connect(workflow_uri)
