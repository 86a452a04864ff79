import pytest
from tiny import database


@pytest.fixture(scope="session")
def workflow_uri(tmp_path_factory):
    return database(tmp_path_factory.getbasetemp())
