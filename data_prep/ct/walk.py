"""Which files of an archive are looked at: all of them, since DICOM files often have no suffix, and what each is by content."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from data_prep.run.folders import Source
from data_prep.run.manifest import Outcome

Kind = Literal["dicom", "bare", "archive", "other"]

PREAMBLE = 128  # bytes before the letters DICM
DICOM_SUFFIXES = {".dcm", ".dicom", ".ima"}
PACKED = (b"PK\x03\x04", b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"BZh")
BARE = {b"\x08\x00", b"\x02\x00", b"\x00\x08", b"\x00\x02"}  # groups 0008 and 0002, little and big endian


def kind_of(path: Path) -> Kind:
    """What a file is by its first bytes: DICOM, a DICOM data set without preamble, a packed archive, or something else.

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


def not_dicom(source: Source, kind: Kind) -> Outcome:
    """What becomes of a file that is no DICOM: an error only where its name says that it should be."""
    if kind == "archive":
        return Outcome(source.name, "skipped", "a packed file: unpack it where it holds DICOM")
    if source.path.suffix.lower() in DICOM_SUFFIXES:
        return Outcome(source.name, "failed", "not a DICOM file, in spite of its suffix")
    return Outcome(source.name, "skipped", "not a DICOM file")
