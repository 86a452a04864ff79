"""Read the header of one CT image: its series, its plane, and how its pixels are stored."""

from __future__ import annotations

import math
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydicom import Dataset, dcmread, uid
from pydicom.uid import UID

from data_prep.ct.encoding import OVERLAYS, Encoding, pixel_encoding
from data_prep.run.manifest import PrepError, SkipError
from es_medical.data.dicom.elements import Vector, numbers, tag_of, text, values
from es_medical.data.dicom.files import Content, is_directory, is_scout, sop_class
from es_medical.data.geometry import is_orientation

HEAD = 2**15  # bytes that hold nearly every header
ASKED = (
    *("SOPClassUID", "Modality", "ImageType", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "PatientID"),
    *("InstanceNumber", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SpacingBetweenSlices"),
    *("SliceThickness", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "RescaleType", "RescaleSlope", "RescaleIntercept"),
    *("ModalityLUTSequence", "PixelPaddingValue", "PixelPaddingRangeLimit", "MediaStorageSOPClassUID", "TransferSyntaxUID"),
)
TAGS = [*map(tag_of, ASKED), *OVERLAYS]
MODALITIES = {"CR", "DX", "MR", "PT", "US", "NM", "XA", "RF", "MG", "OT", "SC", "SR", "SEG", "RTSTRUCT", "RTDOSE", "RTPLAN"}


class CTFile(NamedTuple):
    """The header of one CT image. Only `name` is shown to the user, and no field is stored as it is.

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
        secondary: whether it was derived from other images after the scan (image type SECONDARY).
        encoding: how the pixels are stored; None where `problem` says why they cannot be used.
        offset: byte offset of uncompressed pixels in the file, or -1.
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


def read_ct(path: Path, name: str, content: Content) -> CTFile:
    """Read the header of a DICOM file.

    Args:
        path: the file.
        name: its path below the source folder.
        content: `bare` for a data set without preamble.

    Raises:
        SkipError: not an image of a CT slice.
        PrepError: the header cannot be read. Any other fault is reported in `CTFile.problem`.
    """
    with path.open("rb") as file:
        data, at = _header(file, content)
        _check_image(data, content)
        try:
            encoding, offset = pixel_encoding(data, file, at)
            problem = ""
        except SkipError:
            raise
        except PrepError as error:
            encoding, offset, problem = None, -1, str(error)
    return _described(data, name, content)._replace(encoding=encoding and _shared(encoding), offset=offset, problem=problem)


def _header(file: BinaryIO, content: Content) -> tuple[Dataset, int]:
    """The needed elements before the pixel data, and where these end; only the first bytes are read if they suffice.

    Raises:
        PrepError: they cannot be read.
    """
    head = file.read(HEAD)
    for source in (BytesIO(head), file):
        source.seek(0)
        try:
            data = dcmread(source, stop_before_pixels=True, force=content == "bare", specific_tags=TAGS)
        except Exception as error:  # broken bytes can raise any exception, and pydicom's messages quote them
            if source is file or len(head) < HEAD:
                raise PrepError(f"the DICOM header cannot be read ({type(error).__name__})") from None
            continue
        if len(head) < HEAD or source.tell() + 12 <= len(head):
            break
    return data, source.tell()


def _check_image(data: Dataset, content: Content) -> None:
    """Raise SkipError unless SOP class, modality and image type say that this is a CT slice."""
    sop, modality = sop_class(data), text(data, "Modality")
    if not sop and not modality:
        raise PrepError("the DICOM header has neither SOP class nor modality" if content == "dicom" else "not a DICOM file")
    if is_directory(data):
        raise SkipError("a DICOMDIR, not an image")
    if sop in {uid.EnhancedCTImageStorage, uid.LegacyConvertedEnhancedCTImageStorage}:
        raise SkipError("enhanced multi-frame CT: not read, convert it to one file for each slice")
    if sop not in {"", uid.CTImageStorage}:
        raise SkipError(f"not a CT image: {_class_name(sop)}")
    if modality not in {"", "CT"} or not (sop or modality):
        known = modality if modality in MODALITIES else "another"
        raise SkipError(f"not a CT image: modality {known}")
    if is_scout(data):
        raise SkipError("a localizer (scout), not a slice")


def _class_name(sop: str) -> str:
    """The standard's name of a UID; a private UID is not shown, since it could identify the patient or the site."""
    return UID(sop).name if sop in uid.UID_dictionary else "a private or unknown SOP class"


def _described(data: Dataset, name: str, content: Content) -> CTFile:
    """All fields but those on the pixels."""
    spacing = numbers(data, "PixelSpacing", 2)
    spacing = spacing if spacing and min(spacing) > 0 else ()
    between = [abs(value) for key in ("SpacingBetweenSlices", "SliceThickness") for value in numbers(data, key, 1)]
    kinds = values(data, "ImageType")
    notes = ("read without DICOM preamble",) if content == "bare" else ()
    orientation = numbers(data, "ImageOrientationPatient", 6)
    return CTFile(
        name=name,
        series=_shared(text(data, "SeriesInstanceUID")),
        study=_shared(text(data, "StudyInstanceUID")),
        patient=_shared(text(data, "PatientID")),
        instance=text(data, "SOPInstanceUID"),
        number=next(iter(numbers(data, "InstanceNumber", 1)), math.nan),
        position=numbers(data, "ImagePositionPatient", 3),
        orientation=_shared(orientation if orientation and is_orientation(orientation) else ()),
        spacing=_shared(spacing),
        thickness=next((value for value in between if value > 0), math.nan),
        secondary=len(kinds) > 1 and kinds[1] == "SECONDARY",
        encoding=None,
        offset=-1,
        problem="",
        notes=_shared(notes),
    )


@lru_cache(maxsize=4096)
def _shared(value: Any) -> Any:  # noqa: ANN401
    """Return one shared object for equal values, to save memory: most headers of a series repeat each other."""
    return value
