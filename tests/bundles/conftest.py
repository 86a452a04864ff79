"""What the tests of bundles share: tiny data files and finished trainings, each made once in a session."""

import functools

import pytest
from tiny import execute, workflow, write_slices_for


@pytest.fixture(scope="session")
def data_file(tmp_path_factory):
    """Returns the data file of one of CASES."""

    @functools.cache
    def file(case):
        return write_slices_for(case, tmp_path_factory.mktemp(case) / "slices.h5")

    return file


@pytest.fixture(scope="session")
def trained(tmp_path_factory, data_file, workflow_uri):
    """Returns the folder of a finished training of a case: two epochs of two steps, with overlays where some are given."""

    @functools.cache
    def folder(case, *overlays):
        place = tmp_path_factory.mktemp(f"trained-{case}")
        execute(workflow(["train.yaml", *overlays], place, data_file(case), workflow_uri, case), check=True)
        return place

    return folder


@pytest.fixture
def train(data_file, workflow_uri):
    """Trains a case into a folder with the knobs that are given; returns the workflow."""

    def run(case, folder, *overlays, source=None, **knobs):
        files = ["train.yaml", *overlays]
        return execute(workflow(files, folder, source or data_file(case), workflow_uri, case, **knobs))

    return run


@pytest.fixture
def built(data_file, tmp_path):
    """Initialises the training of a case, nothing is run; returns what gives its parts."""

    def build(case, *overlays, source=None, **knobs):
        files = ["train.yaml", *overlays]
        one = workflow(files, tmp_path, source or data_file(case), "sqlite:///none.db", case, **knobs)
        one.initialize()
        return one.parser.get_parsed_content

    return build
