import doctest
import importlib

import pytest

MODULES = ["data.geometry", "data.stack", "groups.dihedral", "metrics.image", "physics.line_masks", "physics.mri", "randomness"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    result = doctest.testmod(importlib.import_module(f"es_medical.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
