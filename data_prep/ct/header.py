"""One CT image by its header alone: which series it belongs to, where it stands, and how its pixels are stored."""

from __future__ import annotations

import math
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydicom import Dataset, dcmread, uid
from pydicom.uid import UID

from data_prep.ct.elements import ASKED, Vector, numbers, text, values
from data_prep.ct.encoding import Encoding, pixel_encoding
from data_prep.ct.walk import Kind
from data_prep.run.manifest import PrepError, SkipError

SCOUTS = {"LOCALIZER", "SCOUT", "TOPOGRAM"}
HEAD = 2**15  # bytes that hold nearly every header


class CTFile(NamedTuple):
    """What the header of one CT image says. No field but `name` is ever shown, and none is stored as it is.

    Attributes:
        name: path below the source folder.
        series: SeriesInstanceUID, or "" without one.
        study: StudyInstanceUID, or "".
        patient: PatientID, or "".
        instance: SOPInstanceUID, or "".
        number: InstanceNumber, NaN where unknown.
        position: ImagePositionPatient, or () where unknown.
        orientation: ImageOrientationPatient, or ().
        spacing: of rows and columns in mm, or ().
        thickness: SpacingBetweenSlices, else SliceThickness, in mm; NaN where unknown.
        secondary: made from other images after the scan.
        encoding: how the pixels are stored; None where `problem` says why they cannot be used.
        offset: where the bytes of uncompressed pixels begin in the file, or -1.
        problem: why the image cannot be used, or "".
        notes: what a user should know.
    """

    name: str
    series: str
    study: str
    patient: str
    instance: str
    number: float
    position: Vector
    orientation: Vector
    spacing: Vector
    thickness: float
    secondary: bool
    encoding: Encoding | None
    offset: int
    problem: str
    notes: tuple[str, ...]


def read_ct(path: Path, name: str, kind: Kind) -> CTFile:
    """Reads the header of a DICOM file.

    Args:
        path: the file.
        name: its path below the source folder.
        kind: `bare` for a data set without preamble.

    Raises:
        SkipError: not an image of a CT slice.
        PrepError: the header cannot be read. Whatever else is wrong stands in `CTFile.problem`.
    """
    with path.open("rb") as file:
        data, at = _header(file, kind)
        _check_kind(data, kind)
        try:
            encoding, offset = pixel_encoding(data, file, at)
            problem = ""
        except SkipError:
            raise
        except PrepError as error:
            encoding, offset, problem = None, -1, str(error)
    return _described(data, name, kind)._replace(encoding=encoding and _shared(encoding), offset=offset, problem=problem)


def _header(file: BinaryIO, kind: Kind) -> tuple[Dataset, int]:
    """The elements before the pixels that are asked for, and where they end; from the first bytes where these suffice.

    Raises:
        PrepError: they cannot be read.
    """
    head = file.read(HEAD)
    for source in (BytesIO(head), file):
        source.seek(0)
        try:
            data = dcmread(source, stop_before_pixels=True, force=kind == "bare", specific_tags=ASKED)
        except Exception as error:  # pydicom raises whatever the broken bytes lead to, with what stands in them
            if source is file or len(head) < HEAD:
                raise PrepError(f"the DICOM header cannot be read ({type(error).__name__})") from None
            continue
        if len(head) < HEAD or source.tell() + 12 <= len(head):
            break
    return data, source.tell()


def _check_kind(data: Dataset, kind: Kind) -> None:
    """Refuses whatever is no image of a CT slice, by SOP class, modality and image type."""
    sop, modality = text(data, "SOPClassUID") or text(data.file_meta, "MediaStorageSOPClassUID"), text(data, "Modality")
    if not sop and not modality:
        raise PrepError("the DICOM header says neither SOP class nor modality" if kind == "dicom" else "not a DICOM file")
    if sop == uid.MediaStorageDirectoryStorage:
        raise SkipError("a DICOMDIR, no image")
    if sop in {uid.EnhancedCTImageStorage, uid.LegacyConvertedEnhancedCTImageStorage}:
        raise SkipError("enhanced multi-frame CT: not read, convert it to one file for each slice")
    if sop not in {"", uid.CTImageStorage}:
        raise SkipError(f"not a CT image: {_named(sop)}")
    if modality not in {"", "CT"} or not (sop or modality):
        known = modality if modality in MODALITIES else "another"
        raise SkipError(f"not a CT image: modality {known}")
    if SCOUTS & set(values(data, "ImageType")):
        raise SkipError("localizer, no slice")


MODALITIES = {"CR", "DX", "MR", "PT", "US", "NM", "XA", "RF", "MG", "OT", "SC", "SR", "SEG", "RTSTRUCT", "RTDOSE", "RTPLAN"}


def _named(sop: str) -> str:
    """The standard's name of a UID; one that stands in no dictionary could be anything."""
    return UID(sop).name if sop in uid.UID_dictionary else "a private or unknown SOP class"


def _described(data: Dataset, name: str, kind: Kind) -> CTFile:
    """The header but for the pixels."""
    spacing = numbers(data, "PixelSpacing", 2)
    spacing = spacing if spacing and min(spacing) > 0 else ()
    between = [abs(value) for key in ("SpacingBetweenSlices", "SliceThickness") for value in numbers(data, key, 1)]
    kinds = values(data, "ImageType")
    notes = ("read without DICOM preamble",) if kind == "bare" else ()
    orientation = numbers(data, "ImageOrientationPatient", 6)
    return CTFile(
        name=name,
        series=_shared(text(data, "SeriesInstanceUID")),
        study=_shared(text(data, "StudyInstanceUID")),
        patient=_shared(text(data, "PatientID")),
        instance=text(data, "SOPInstanceUID"),
        number=next(iter(numbers(data, "InstanceNumber", 1)), math.nan),
        position=numbers(data, "ImagePositionPatient", 3),
        orientation=_shared(orientation if _is_orientation(orientation) else ()),
        spacing=_shared(spacing),
        thickness=next((value for value in between if value > 0), math.nan),
        secondary=len(kinds) > 1 and kinds[1] == "SECONDARY",
        encoding=None,
        offset=-1,
        problem="",
        notes=_shared(notes),
    )


def _is_orientation(values: Vector) -> bool:
    """Two perpendicular directions of length 1."""
    if not values:
        return False
    a, b = values[:3], values[3:]
    products = [sum(x * y for x, y in zip(one, other, strict=True)) for one, other in ((a, a), (b, b), (a, b))]
    return all(abs(found - wanted) < 1e-3 for found, wanted in zip(products, (1, 1, 0), strict=True))


@lru_cache(maxsize=4096)
def _shared(value: Any) -> Any:  # noqa: ANN401
    """The same object for equal values: most headers of a series repeat each other."""
    return value
