"""Recognise DICOM files by their content, and the kind of object by their headers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydicom import Dataset
from pydicom.uid import MediaStorageDirectoryStorage

from es_medical.data.dicom.elements import text, values

Content = Literal["dicom", "bare", "archive", "other"]

PREAMBLE = 128  # bytes before the letters DICM
PACKED = (b"PK\x03\x04", b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"BZh")
BARE = {b"\x08\x00", b"\x02\x00", b"\x00\x08", b"\x00\x02"}  # groups 0008 and 0002, little and big endian
SCOUTS = frozenset({"LOCALIZER", "SCOUT", "TOPOGRAM"})  # values of ImageType in scout images, which plan a CT scan


def content_of(path: Path) -> Content:
    """Kind of a file from its first bytes: DICOM, a DICOM data set without preamble, a packed archive, or something else.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(PREAMBLE + 4)
    if head[PREAMBLE:] == b"DICM":
        return "dicom"
    if head.startswith(PACKED):
        return "archive"
    return "bare" if head[:2] in BARE and _is_element(head, path.stat().st_size) else "other"


def _is_element(head: bytes, size: int) -> bool:
    """Whether the bytes can begin with a data element: an explicit value representation, or a length that fits the file."""
    if len(head) < 8:
        return False
    if head[4:6].isalpha() and head[4:6].isupper():
        return True
    return int.from_bytes(head[4:8], "big" if head[0] == 0 else "little") < size


def sop_class(data: Dataset) -> str:
    """SOP class UID from the data set, else from the file meta information; "" if neither has it."""
    return text(data, "SOPClassUID") or text(data.file_meta, "MediaStorageSOPClassUID")


def is_directory(data: Dataset) -> bool:
    """Whether it is a DICOMDIR rather than an image."""
    return sop_class(data) == MediaStorageDirectoryStorage


def is_scout(data: Dataset) -> bool:
    """Whether it is a scout image, which plans a CT scan, rather than a slice."""
    return not SCOUTS.isdisjoint(values(data, "ImageType"))
