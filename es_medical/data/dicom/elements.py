"""Read elements of a DICOM header; an invalid element counts as absent, and its text is never shown."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from pydicom import Dataset, config
from pydicom.tag import BaseTag, Tag

Vector = tuple[float, ...]

tag_of = lru_cache(Tag)  # looking up an element by tag is fast, by keyword it is slow


@contextmanager
def quiet_pydicom() -> Iterator[None]:
    """Ignore invalid values in elements that are not needed, and keep the content of a file out of warnings and logs."""
    settings, log = config.settings, logging.getLogger("pydicom")
    mode, disabled = settings.reading_validation_mode, log.disabled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings.reading_validation_mode, log.disabled = config.IGNORE, True
        try:
            yield
        finally:
            settings.reading_validation_mode, log.disabled = mode, disabled


def raw(data: Dataset, key: str | BaseTag) -> Any:  # noqa: ANN401
    """The value of an element, None where it is absent or invalid."""
    try:
        return data[tag_of(key)].value  # to ask first whether it is there takes as long
    except Exception:  # it is not there; and broken bytes can raise any exception in pydicom
        return None


def text(data: Dataset, key: str) -> str:
    """The text of an element, "" where it is absent."""
    value = raw(data, key)
    return "" if value is None else str(value).strip().strip("\0")


def values(data: Dataset, key: str) -> list[str]:
    """The texts of a multi-valued element, in upper case."""
    value = raw(data, key)
    several = [] if value is None else [value] if isinstance(value, str) else list(value)
    return [str(item).strip().upper() for item in several]


def numbers(data: Dataset, key: str, n: int) -> Vector:
    """The n finite numbers of an element, or () if it is absent or holds something else."""
    value = raw(data, key)
    try:
        several = [float(value)] if isinstance(value, (int, float, str)) else [float(item) for item in value or ()]
    except (TypeError, ValueError):
        return ()
    return tuple(several) if len(several) == n and all(map(math.isfinite, several)) else ()


def number(data: Dataset, key: str) -> float:
    """A number, NaN where the element is absent.

    Raises:
        ValueError: it is present but not a number.
    """
    tag = tag_of(key)
    if text(data, key) == "" and not (tag in data and data.get_item(tag).value):
        return math.nan
    for value in numbers(data, key, 1):
        return value
    raise ValueError(f"{key} is not a number")


def whole(data: Dataset, key: str, default: int = 0) -> int:
    """A whole number, `default` where the element is absent or holds something else."""
    return int(next(iter(numbers(data, key, 1)), default))
