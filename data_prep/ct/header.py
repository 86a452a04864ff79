"""Read the header of one CT image: its series, its plane, and how its pixels are stored."""

from __future__ import annotations

import math
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydicom import Dataset, dcmread, uid
from pydicom.uid import UID

from data_prep.ct.encoding import OVERLAYS, Encoding, pixel_encodings
from data_prep.run.manifest import PrepError, SkipError
from es_medical.data.dicom.elements import numbers, tag_of, text, values
from es_medical.data.dicom.files import Content, is_directory, is_scout, sop_class
from es_medical.data.dicom.frames import CT_FRAMES, OWN, SHARED, frames_of, plane_of
from es_medical.data.dicom.volumes import IDENTIFYING, Identity, identity_of

HEAD = 2**15  # bytes that hold nearly every header
ASKED = (
    *IDENTIFYING,
    *("SOPClassUID", "Modality", "SOPInstanceUID", SHARED, OWN, "RealWorldValueMappingSequence", "BurnedInAnnotation"),
    "MultienergyCTAcquisition",
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SpacingBetweenSlices", "GantryDetectorTilt"),
    *("SliceThickness", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "RescaleType", "RescaleSlope", "RescaleIntercept"),
    *("ModalityLUTSequence", "PixelPaddingValue", "PixelPaddingRangeLimit", "MediaStorageSOPClassUID", "TransferSyntaxUID"),
)
SHARED_FIELDS = ("patient", "study", "frame", "series", "orientation")
TAGS = [*map(tag_of, ASKED), *OVERLAYS]
MODALITIES = {"CR", "DX", "MR", "PT", "US", "NM", "XA", "RF", "MG", "OT", "SC", "SR", "SEG", "RTSTRUCT", "RTDOSE", "RTPLAN"}


class CTFile(NamedTuple):
    """The header of one CT image, or of one frame of an enhanced one. Only `name` is shown, and no field is stored as it is.

    Attributes:
        name: path below the source folder.
        frame: number of the frame of an enhanced image, from 1; 0 for a classic image.
        identity: what decides to which volume the image belongs.
        instance: SOPInstanceUID, or "".
        number: InstanceNumber, NaN where unknown.
        spacing: of rows and columns in mm, or ().
        thickness: SpacingBetweenSlices, else SliceThickness, in mm; NaN where unknown.
        secondary: whether it was derived from other images after the scan (image type SECONDARY).
        encoding: how the pixels are stored; None where `problem` or `left_out` says why they cannot be used.
        offset: byte offset of uncompressed pixels in the file, or -1.
        problem: why the image cannot be used, or "".
        left_out: why this frame is not meant for this data set, or "".
        notes: what a user should know.
    """

    name: str
    frame: int
    identity: Identity
    instance: str
    number: float
    spacing: tuple[float, ...]
    thickness: float
    secondary: bool
    encoding: Encoding | None
    offset: int
    problem: str
    left_out: str
    notes: tuple[str, ...]

    @property
    def label(self) -> str:
        """Its name, with the number of the frame."""
        return f"{self.name} frame {self.frame}" if self.frame else self.name


def read_ct(path: Path, name: str, content: Content, burned_in: bool = False) -> list[CTFile]:
    """Read the header of a DICOM file: one entry, or one for each frame of an enhanced image.

    Args:
        path: the file.
        name: its path below the source folder.
        content: `bare` for a data set without preamble.
        burned_in: whether to take images with annotations in their pixels.

    Raises:
        SkipError: not an image of a CT slice.
        PrepError: the header cannot be read. Any other fault is reported in `CTFile.problem`.
    """
    with path.open("rb") as file:
        data, at = _header(file, content)
        _check_image(data, content, burned_in)
        try:
            frames = frames_of(data)
        except ValueError as error:
            raise PrepError(f"several frames that cannot be told apart: {error}") from None
        multiple = frames[0] is not data
        described = [_described(frame, name, content, multiple) for frame in frames]
        try:
            encodings, start = pixel_encodings(data, frames, file, at)
        except SkipError:
            raise
        except PrepError as error:
            return [one._replace(problem=str(error)) for one in described]
    return [_with_pixels(one, found, start, k) for k, (one, found) in enumerate(zip(described, encodings, strict=True))]


def _with_pixels(image: CTFile, found: Encoding | PrepError, start: int, index: int) -> CTFile:
    """The header with the encoding of its pixels, or with the reason why they cannot be used."""
    if isinstance(found, Encoding):
        offset = start + index * found.length if start >= 0 else -1
        return image._replace(encoding=_shared(found), offset=offset)
    return image._replace(left_out=str(found)) if isinstance(found, SkipError) else image._replace(problem=str(found))


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


def _check_image(data: Dataset, content: Content, burned_in: bool) -> None:
    """Raise SkipError unless SOP class, modality and image type say that this is a CT slice."""
    sop, modality = sop_class(data), text(data, "Modality")
    if not sop and not modality:
        raise PrepError("the DICOM header has neither SOP class nor modality" if content == "dicom" else "not a DICOM file")
    if is_directory(data):
        raise SkipError("a DICOMDIR, not an image")
    if sop not in {"", uid.CTImageStorage, *CT_FRAMES}:
        raise SkipError(f"not a CT image: {_class_name(sop)}")
    if modality not in {"", "CT"} or not (sop or modality):
        known = modality if modality in MODALITIES else "another"
        raise SkipError(f"not a CT image: modality {known}")
    if is_scout(data):
        raise SkipError("a localizer (scout), not a slice")
    if text(data, "BurnedInAnnotation").upper() == "YES" and not burned_in:
        raise SkipError(
            "burned-in annotation: its pixels may show who it is (taken with --burned-in, at inference --burned_in true)"
        )


def _class_name(sop: str) -> str:
    """The standard's name of a UID; a private UID is not shown, since it could identify the patient or the site."""
    return UID(sop).name if sop in uid.UID_dictionary else "a private or unknown SOP class"


def _described(frame: Dataset, name: str, content: Content, multiple: bool) -> CTFile:
    """All fields but those on the pixels."""
    plane, identity = plane_of(frame), identity_of(frame)
    kinds = values(frame, "ImageType")
    notes = ["read without DICOM preamble"] * (content == "bare") + ["pixel spacing unknown"] * math.isnan(plane.spacing[0])
    number = next(iter(numbers(frame, "InstanceNumber", 1)), math.nan)
    return CTFile(
        name=name,
        frame=int(number) if multiple else 0,
        identity=identity._replace(**{key: _shared(getattr(identity, key)) for key in SHARED_FIELDS}),
        instance=text(frame, "SOPInstanceUID"),
        number=number,
        spacing=_shared(() if math.isnan(plane.spacing[0]) else plane.spacing),
        thickness=plane.slice_spacing,
        secondary=len(kinds) > 1 and kinds[1] == "SECONDARY",
        encoding=None,
        offset=-1,
        problem="",
        left_out="a localizer (scout), not a slice" if is_scout(frame) else "",
        notes=_shared(tuple(notes)),
    )


@lru_cache(maxsize=4096)
def _shared(value: Any) -> Any:  # noqa: ANN401
    """Return one shared object for equal values, to save memory: most headers of a series repeat each other."""
    return value
