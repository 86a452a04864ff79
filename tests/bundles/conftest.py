import pytest

from es_medical.tracking.server import connect


@pytest.fixture(scope="session")
def client(workflow_uri):
    return connect(workflow_uri)
