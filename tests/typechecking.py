"""The run-time type checker of the tests: beartype, which accepts integers for floats, as mypy does.

The checks cost far more than a small operator: those of thousands of iterations took most of the time of the suite. So the
first calls of each test are checked; those after them are of the same functions.
"""

import functools
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import config

CALLS = 500  # of all functions together; each is checked when it is called and when it returns
beartyped = beartype(conf=BeartypeConf(is_pep484_tower=True))


class Left:
    """What is left of the calls to check."""

    calls = CALLS


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check the arguments and the result of a function, and switch all checks off after the last call to check."""
    checked = beartyped(function)

    @functools.wraps(checked)
    def counted(*args: Any, **options: Any) -> Any:
        Left.calls -= 1
        if Left.calls == 0:
            config.update("jaxtyping_disable", True)
        return checked(*args, **options)

    return counted


def check_again() -> None:
    """Check the first calls of the next test."""
    if Left.calls <= 0:
        config.update("jaxtyping_disable", False)
    Left.calls = CALLS
