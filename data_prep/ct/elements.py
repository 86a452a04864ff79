"""Elements of a DICOM header, read without a word of what stands in them when they are invalid."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydicom import Dataset, config
from pydicom.tag import BaseTag, Tag

Vector = tuple[float, ...]

OVERLAYS = tuple(Tag(0x60000102 + (i << 17)) for i in range(16))  # OverlayBitPosition
KEYWORDS = (
    *("SOPClassUID", "Modality", "ImageType", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "PatientID"),
    *("InstanceNumber", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SpacingBetweenSlices"),
    *("SliceThickness", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "RescaleType", "RescaleSlope", "RescaleIntercept"),
    *("ModalityLUTSequence", "PixelPaddingValue", "PixelPaddingRangeLimit", "MediaStorageSOPClassUID", "TransferSyntaxUID"),
)
TAGS = {key: Tag(key) for key in KEYWORDS}  # by tag the look-up of an absent element is fast
ASKED: list[BaseTag] = [*TAGS.values(), *OVERLAYS]


@contextmanager
def quiet_pydicom() -> Iterator[None]:
    """Invalid values in elements that nobody asks for are no matter, and no warning shows what stands inside a file."""
    settings, log = config.settings, logging.getLogger("pydicom")
    mode, disabled = settings.reading_validation_mode, log.disabled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings.reading_validation_mode, log.disabled = config.IGNORE, True
        try:
            yield
        finally:
            settings.reading_validation_mode, log.disabled = mode, disabled


def raw(data: Dataset, key: str) -> Any:  # noqa: ANN401
    """The value of an element, None where it is absent or invalid."""
    tag = TAGS[key]
    try:
        return data[tag].value if tag in data else None
    except Exception:  # an invalid value counts as absent, and its text is not ours to show
        return None


def text(data: Dataset, key: str) -> str:
    """The text of an element, "" where it is absent."""
    value = raw(data, key)
    return "" if value is None else str(value).strip().strip("\0")


def values(data: Dataset, key: str) -> list[str]:
    """The texts of an element of several values, in capitals."""
    value = raw(data, key)
    several = [] if value is None else [value] if isinstance(value, str) else list(value)
    return [str(one).strip().upper() for one in several]


def numbers(data: Dataset, key: str, n: int) -> Vector:
    """The n finite numbers of an element, or () when it is absent or holds something else."""
    value = raw(data, key)
    try:
        several = [float(value)] if isinstance(value, (int, float, str)) else [float(one) for one in value or ()]
    except (TypeError, ValueError):
        return ()
    return tuple(several) if len(several) == n and all(map(math.isfinite, several)) else ()


def number(data: Dataset, key: str) -> float:
    """A number, NaN where the element is absent.

    Raises:
        ValueError: it is there and no number.
    """
    if text(data, key) == "" and not (TAGS[key] in data and data.get_item(TAGS[key]).value):
        return math.nan
    for value in numbers(data, key, 1):
        return value
    raise ValueError(f"{key} is no number")


def whole(data: Dataset, key: str, default: int = 0) -> int:
    """A whole number, `default` where the element is absent or holds something else."""
    return int(next(iter(numbers(data, key, 1)), default))
