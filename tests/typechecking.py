"""The run-time type checker of the tests: beartype, which accepts integers for floats, as mypy does.

A check costs more than a small operator, and thousands of iterations took most of the time of the suite, so the first calls
of each test are checked.
"""

import functools
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import config

CALLS = 500  # of all functions together; each counts when it is called and when it returns
budget = {"left": CALLS}


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check arguments and result of a function; the last call to check switches the checks off."""
    checked = beartype(function, conf=BeartypeConf(is_pep484_tower=True))

    @functools.wraps(checked)
    def counted(*args: Any, **options: Any) -> Any:
        budget["left"] -= 1
        if budget["left"] == 0:
            config.update("jaxtyping_disable", True)
        return checked(*args, **options)

    return counted


def check_again() -> None:
    """Check the first calls of the next test."""
    if budget["left"] <= 0:
        config.update("jaxtyping_disable", False)
    budget["left"] = CALLS
