"""The fault campaign is a command of its own (python -m tests.endurance); here, only that it finds what it disturbs."""

import pytest
from endurance.child import found
from endurance.kills import STAGES


@pytest.mark.parametrize("function", sorted({name for stage in STAGES for name, _ in stage.functions}))
def test_functions_in_which_commands_are_killed_exist(function):
    place, name = found(function)
    assert callable(getattr(place, name))
