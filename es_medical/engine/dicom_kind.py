"""What differs between derived MR and CT series: everything else of the DICOM output is shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pydicom import Dataset
from pydicom.uid import UID, CTImageStorage, MRImageStorage

from es_medical.engine.dicom_pixels import Scaling, hounsfield_scaling, magnitude_scaling
from es_medical.engine.dicom_tags import CT_SCAN, CT_TYPE_2, GATING, MR_SCAN, MR_TYPE_2, SCOUTS


@dataclass(frozen=True)
class Kind:
    """One classic image class (PS3.3 A.3 for CT, A.4 for MR).

    Attributes:
        modality: of the slice file and of the series.
        sop_class: of the derived images and of the source's.
        image_type: third value of ImageType.
        values: what the pixels are, in words.
        measured: what they were reconstructed from, in words.
        rescale_type: unit of rescaled values.
        unit: the same, as its name among pydicom's UCUM codes.
        scaling: from all pixels of a series to their storage.
        scan: attributes of a source slice that say how it was scanned and that a derived slice keeps.
        type_2: attributes that are present, empty where unknown.
        complete: puts right what is due under a condition, in the header of a derived slice, given its source.
        type_1: attributes that hold a value, and the one where nothing is known.
        scouts: values of ImageType whose images are no slices of the series that they come with.
    """

    modality: str
    sop_class: UID
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
    scouts: frozenset[str] = frozenset()


def _echoes(header: Dataset, source: Dataset) -> None:
    """Type 2C of the MR Image module (PS3.3 C.8.3.1): inversion time and trigger time."""
    if "IR" not in _words(header.ScanningSequence) and "InversionTime" in header:
        del header.InversionTime
    if GATING & _words(header.ScanOptions):
        header.TriggerTime = source.get("TriggerTime")


def _contrast(header: Dataset, source: Dataset) -> None:
    """The agent is type 2 of the Contrast/Bolus module (PS3.3 C.7.6.4), due wherever the source tells of one."""
    if any(name.startswith("ContrastBolus") for name in source.dir()) and "ContrastBolusAgent" not in header:
        header.ContrastBolusAgent = ""


def _words(value: object) -> set[str]:
    return {value} if isinstance(value, str) else {str(one) for one in (value or ())}  # type: ignore[attr-defined]


MR = Kind(
    modality="MR",
    sop_class=MRImageStorage,
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
CT = Kind(
    modality="CT",
    sop_class=CTImageStorage,
    image_type="AXIAL",
    values="Hounsfield units",
    measured="a sinogram",
    rescale_type="HU",
    unit="HounsfieldUnit",
    scaling=hounsfield_scaling,
    scan=CT_SCAN,
    type_2=CT_TYPE_2,
    complete=_contrast,
    scouts=SCOUTS,
)


def kind_of(modality: str) -> Kind:
    """The kind of a slice file's modality.

    Raises:
        ValueError: neither MR nor CT.
    """
    kinds = {kind.modality: kind for kind in (MR, CT)}
    if modality not in kinds:
        raise ValueError(f"modality {modality!r} has no DICOM output: expected one of {', '.join(kinds)}")
    return kinds[modality]
