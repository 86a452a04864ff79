"""Whose images they are: patient, study, frame of reference and scan, of a source slice or of a pseudonym."""

from __future__ import annotations

import copy
import logging
import re

from pydicom import DataElement, Dataset
from pydicom.datadict import dictionary_VR
from pydicom.uid import generate_uid
from pydicom.valuerep import ISfloat

from es_medical.engine.dicom_kind import Kind
from es_medical.engine.dicom_pixels import DS_LENGTH, decimal_string
from es_medical.engine.dicom_tags import PATIENT, PLACE, STUDY, UNPAIRED

logger = logging.getLogger(__name__)

CODE = re.compile("[A-Z0-9 _]{0,16}")  # PS3.5 6.2

IN_ORDER = (
    "Slices were matched with those of the source series in their order along the slice normal: the measurements do not "
    "state their positions."
)


def study_header(subject: str, study_uid: str, kind: Kind) -> Dataset:
    """Header of a subject known by a pseudonym alone, in a frame of reference of its own.

    Args:
        subject: salted hash.
        study_uid: of the study that all series of the subject share.
        kind: of the series.
    """
    header = _empty(kind)
    header.PatientID, header.PatientName = subject[:64], f"{subject[:62]}^"
    header.PatientIdentityRemoved = "YES"
    header.DeidentificationMethod = "Made from pixels alone; the subject is a salted hash"
    header.StudyInstanceUID, header.FrameOfReferenceUID = study_uid, generate_uid()
    return header


def source_header(source: Dataset, kind: Kind) -> Dataset:
    """Header with what `dicom_tags` lists of a source slice, and nothing else of it: no private element, no staff.

    Its text is UTF-8, whatever the source's is: highdicom refuses some character sets that scanners write.
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


def _empty(kind: Kind) -> Dataset:
    """What type 1 and 2 ask for, where nothing is known."""
    header = Dataset()
    for name in kind.type_2:
        setattr(header, name, None if dictionary_VR(name) in ("DS", "IS") else "")
    for name, value in kind.type_1.items():
        setattr(header, name, value)
    return header


def _element(source: Dataset, name: str) -> DataElement | None:
    """A copy of an element that has a valid value, decimal strings cut to 16 characters; None otherwise."""
    element = source.get_item(name) and copy.deepcopy(source[name])
    if element is None or element.value is None or element.value == "":
        return None
    values = element.value if element.VM > 1 else [element.value]
    if element.VR == "CS" and not all(CODE.fullmatch(one) for one in values):
        logger.warning("source DICOM: %s %s is no valid code string and is left out", name, element.value)
        return None
    if element.VR not in ("DS", "IS"):
        return element
    if any(isinstance(one, str | ISfloat) for one in values):  # what pydicom could not read as a number of its kind
        logger.warning("source DICOM: %s %s is no valid number and is left out", name, element.value)
        return None
    if element.VR == "DS" and any(len(str(one)) > DS_LENGTH for one in values):
        return DataElement(element.tag, "DS", [decimal_string(one) for one in values])
    return element
