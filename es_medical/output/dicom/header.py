"""Make headers of derived MR and CT slices: patient, study, frame of reference and scan, from a source or a pseudonym."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pydicom import DataElement, Dataset
from pydicom.config import RAISE
from pydicom.datadict import dictionary_VR
from pydicom.uid import UID, CTImageStorage, MRImageStorage, generate_uid
from pydicom.valuerep import ISfloat, validate_value

from es_medical.data.dicom.frames import CT_FRAMES, MR_FRAMES
from es_medical.output.dicom.pixels import DS_LENGTH, Scaling, decimal_string, hounsfield_scaling, magnitude_scaling

logger = logging.getLogger(__name__)

CODE = re.compile("[A-Z0-9 _]{0,16}")  # PS3.5 6.2

IN_ORDER = (
    "Slices were matched with those of the source series in their order along the slice normal: the measurements do not "
    "state their positions."
)

# fmt: off
# patient and patient study modules, and whether they were de-identified
PATIENT = (
    "PatientName", "PatientID", "IssuerOfPatientID", "PatientBirthDate", "PatientSex", "OtherPatientIDsSequence",
    "PatientAge", "PatientSize", "PatientWeight", "PatientIdentityRemoved", "DeidentificationMethod",
    "DeidentificationMethodCodeSequence", "LongitudinalTemporalInformationModified",
)
# general study module
STUDY = (
    "StudyInstanceUID", "StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID", "AccessionNumber",
    "StudyDescription", "IssuerOfAccessionNumberSequence", "ProcedureCodeSequence",
)
# frame of reference, and position of the body
PLACE = (
    "FrameOfReferenceUID", "PositionReferenceIndicator", "PatientPosition", "BodyPartExamined", "Laterality",
    "ImageLaterality",
)
# MR image module: how the echoes were made
MR_SCAN = (
    "ScanningSequence", "SequenceVariant", "ScanOptions", "MRAcquisitionType", "SequenceName", "RepetitionTime", "EchoTime",
    "EchoTrainLength", "InversionTime", "MagneticFieldStrength", "ImagingFrequency", "ImagedNucleus", "FlipAngle",
    "NumberOfAverages", "EchoNumbers", "ProtocolName", "ContrastBolusAgent", "SliceThickness",
)
# CT image module: what determines the Hounsfield units, not how the source's pixels were made (kernel, dose, beam geometry);
# also lossy compression: a sinogram simulated from these pixels, and so the reconstruction, inherits its loss
CT_SCAN = (
    "ScanOptions", "KVP", "FilterType", "DataCollectionDiameter", "GantryDetectorTilt", "TableHeight", "ProtocolName",
    "ContrastBolusAgent", "ContrastBolusRoute", "SliceThickness", "LossyImageCompression", "LossyImageCompressionRatio",
    "LossyImageCompressionMethod",
)
# type 2: present, empty where unknown
TYPE_2 = (
    "PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "ReferringPhysicianName",
    "StudyID", "AccessionNumber", "PositionReferenceIndicator", "PatientPosition", "SliceThickness", "AcquisitionNumber",
    "Laterality",
)
MR_TYPE_2 = (*TYPE_2, "ScanOptions", "MRAcquisitionType", "RepetitionTime", "EchoTime", "EchoTrainLength")
CT_TYPE_2 = (*TYPE_2, "KVP")
# body parts that have no side (PS3.16 annex L), for which Laterality must be absent
UNPAIRED = frozenset({
    "ABDOMEN", "ABDOMENPELVIS", "AORTA", "BACK", "BLADDER", "BRAIN", "CHEST", "CHESTABDOMEN", "CHESTABDPELVIS",
    "CIRCLEOFWILLIS", "COCCYX", "COLON", "CSPINE", "CTSPINE", "DUODENUM", "ESOPHAGUS", "FACE", "GALLBLADDER", "HEAD",
    "HEADNECK", "HEART", "ILEUM", "JAW", "JEJUNUM", "LARYNX", "LIVER", "LSPINE", "LSSPINE", "MAXILLA", "MEDIASTINUM",
    "MOUTH", "NECK", "NECKCHEST", "NECKCHESTABDOMEN", "NECKCHESTABDPELV", "NOSE", "PANCREAS", "PELVIS", "PENIS", "PHARYNX",
    "PROSTATE", "RECTUM", "SCALP", "SKULL", "SPINE", "SPLEEN", "SSPINE", "STERNUM", "STOMACH", "THYMUS", "THYROID",
    "TLSPINE", "TONGUE", "TRACHEA", "TSPINE", "URETHRA", "UTERUS", "VAGINA", "VULVA", "WHOLEBODY",
})
# fmt: on
# value representations whose invalid values a writer refuses
CHECKED = {"CS": "code string", "SH": "text of 16 characters", "DA": "date", "TM": "time", "DT": "date and time", "AS": "age"}
# scan options that require a trigger time
GATING = frozenset({"CG", "PPG"})


def study_header(subject: str, study_uid: str, kind: ImageKind) -> Dataset:
    """Header for a subject known only by a pseudonym, with a new frame of reference.

    Args:
        subject: salted hash.
        study_uid: UID of the study that all series of the subject share.
        kind: image class of the series.
    """
    header = _empty(kind)
    header.PatientID, header.PatientName = subject[:64], f"{subject[:62]}^"
    header.PatientIdentityRemoved = "YES"
    header.DeidentificationMethod = "Made from pixels alone; the subject is a salted hash"
    header.StudyInstanceUID, header.FrameOfReferenceUID = study_uid, generate_uid()
    return header


def source_header(source: Dataset, kind: ImageKind) -> Dataset:
    """Header with the elements of a source slice that the tables above list, and no others: no private elements, no staff.

    Its text is always UTF-8: highdicom does not accept some character sets that scanners write.
    """
    header = _empty(kind)
    for name in ("SpecificCharacterSet", *PATIENT, *STUDY, *PLACE, *kind.scan):
        element = _element(source, name)
        if element is not None:
            header.add(element)
    stated = {"DeidentificationMethod", "DeidentificationMethodCodeSequence"} & set(header.dir())
    if header.get("PatientIdentityRemoved") == "YES" and not stated:
        header.DeidentificationMethod = "Not stated by the source"
    if "ImageLaterality" in header or (header.get("BodyPartExamined") in UNPAIRED and not header.Laterality):
        del header.Laterality  # type 2C of the General Series module (PS3.3 C.7.3.1)
    if "SpecificCharacterSet" in header:
        header.decode()
        header.SpecificCharacterSet = "ISO_IR 192"
    kind.complete(header, source)
    return header


def _empty(kind: ImageKind) -> Dataset:
    """Header with all elements of types 1 and 2, as if nothing were known."""
    header = Dataset()
    for name in kind.type_2:
        setattr(header, name, None if dictionary_VR(name) in ("DS", "IS") else "")
    for name, value in kind.type_1.items():
        setattr(header, name, value)
    return header


def _element(source: Dataset, name: str) -> DataElement | None:
    """A copy of an element with a valid value, decimal strings shortened to 16 characters; else None."""
    found = source[name] if source.get_item(name) else None
    if found is None or found.value is None or found.value == "":
        return None
    wanted = dictionary_VR(found.tag)  # some are of one VR or another, "US or SS"
    values = found.value if found.VM > 1 else [found.value]
    if found.VR not in wanted or (found.VR in CHECKED and not all(_is_valid(found.VR, value) for value in values)):
        shown = f"{name} {found.value}" if found.VR == "CS" else name  # a date may tell who it is
        logger.warning("source DICOM: %s is no valid %s and is left out", shown, CHECKED.get(wanted, wanted))
        return None
    element = copy.deepcopy(found)
    values = element.value if element.VM > 1 else [element.value]
    if element.VR not in ("DS", "IS"):
        return element
    if any(isinstance(value, str | ISfloat) for value in values):  # pydicom could not read it as a number of this VR
        logger.warning("source DICOM: %s %s is no valid number and is left out", name, element.value)
        return None
    if element.VR == "DS" and any(len(str(value)) > DS_LENGTH for value in values):
        return DataElement(element.tag, "DS", [decimal_string(value) for value in values])
    return element


def _is_valid(vr: str, value: object) -> bool:
    """Whether a value is valid in its value representation, as writers check it."""
    if vr == "CS":
        return bool(CODE.fullmatch(str(value)))
    try:
        validate_value(vr, str(value), RAISE)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class ImageKind:
    """One classic image class (PS3.3 A.3 for CT, A.4 for MR).

    Attributes:
        modality: modality of the slice file and of the series.
        sop_class: SOP class of the derived images and of a classic source.
        enhanced: SOP classes of an enhanced source.
        image_type: third value of ImageType.
        values: what the pixels are, in words.
        measured: what they were reconstructed from, in words.
        rescale_type: unit of rescaled values.
        unit: the same unit, as its name among pydicom's UCUM codes.
        scaling: chooses the storage from all pixels of a series.
        scan: attributes on the acquisition that a derived slice copies from its source slice.
        type_2: attributes that are present, empty if unknown.
        complete: sets the conditional attributes in the header of a derived slice, given its source.
        type_1: attributes that must have a value -> the value if nothing is known.
        scouts: whether a series may contain scout images, which are left out.
    """

    modality: str
    sop_class: UID
    enhanced: frozenset[UID]
    image_type: str
    values: str
    measured: str
    rescale_type: str
    unit: str
    scaling: Callable[[npt.NDArray[np.floating]], Scaling]
    scan: tuple[str, ...]
    type_2: tuple[str, ...]
    complete: Callable[[Dataset, Dataset], None]
    type_1: Mapping[str, str] = field(default_factory=dict)
    scouts: bool = False


def _echoes(header: Dataset, source: Dataset) -> None:
    """Type 2C of the MR Image module (PS3.3 C.8.3.1): inversion time and trigger time."""
    if "IR" not in _words(header.ScanningSequence) and "InversionTime" in header:
        del header.InversionTime
    if GATING & _words(header.ScanOptions):
        header.TriggerTime = source.get("TriggerTime")


def _contrast(header: Dataset, source: Dataset) -> None:
    """Type 2 of the Contrast/Bolus module (PS3.3 C.7.6.4): the agent, required if the source has any part of the module."""
    if any(name.startswith("ContrastBolus") for name in source.dir()) and "ContrastBolusAgent" not in header:
        header.ContrastBolusAgent = ""


def _words(value: object) -> set[str]:
    return {value} if isinstance(value, str) else {str(one) for one in (value or ())}  # type: ignore[attr-defined]


MR = ImageKind(
    modality="MR",
    sop_class=MRImageStorage,
    enhanced=MR_FRAMES,
    image_type="OTHER",
    values="Magnitude",
    measured="k-space",
    rescale_type="US",
    unit="NoUnits",
    scaling=magnitude_scaling,
    scan=MR_SCAN,
    type_2=MR_TYPE_2,
    complete=_echoes,
    type_1={"ScanningSequence": "RM", "SequenceVariant": "NONE"},
)
CT = ImageKind(
    modality="CT",
    sop_class=CTImageStorage,
    enhanced=CT_FRAMES,
    image_type="AXIAL",
    values="Hounsfield units",
    measured="a sinogram",
    rescale_type="HU",
    unit="HounsfieldUnit",
    scaling=hounsfield_scaling,
    scan=CT_SCAN,
    type_2=CT_TYPE_2,
    complete=_contrast,
    scouts=True,
)


def image_kind(modality: str) -> ImageKind:
    """The image class for the modality of a slice file.

    Raises:
        ValueError: neither MR nor CT.
    """
    kinds = {kind.modality: kind for kind in (MR, CT)}
    if modality not in kinds:
        raise ValueError(f"modality {modality!r} has no DICOM output: expected one of {', '.join(kinds)}")
    return kinds[modality]
