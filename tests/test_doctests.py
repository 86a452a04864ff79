import doctest
import importlib

import pytest

MODULES = [
    *("data.geometry", "data.stack", "metrics.image", "networks.shift_equivariant", "randomness"),
    *(f"groups.{name}" for name in ("dihedral", "interpolated", "rotations", "shifts")),
    *(
        f"physics.{name}"
        for name in ("compressed_sensing", "conjugate_gradient", "ct", "ct_geometry", "estimates.differences", "fbp", "gram")
    ),
    *(f"physics.{name}" for name in ("masked", "masks", "mri", "multicoil", "noise", "pixels", "sparse", "transmission")),
    *("synthetic.kinds", "synthetic.leaves"),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    result = doctest.testmod(importlib.import_module(f"es_medical.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
