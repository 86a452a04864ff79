"""Make derived MR and CT series: one classic Image Storage data set per slice (PS3.3 A.4, A.3)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.pixels import set_pixel_data
from pydicom.uid import UID, ExplicitVRLittleEndian, generate_uid

from es_medical import __version__
from es_medical.data.dicom.elements import text, whole
from es_medical.data.dicom.frames import CT_FRAMES, MR_FRAMES
from es_medical.data.geometry import Geometry
from es_medical.output.dicom.header import MR, ImageKind
from es_medical.output.dicom.pixels import Scaling, decimal_string, to_stored

Floats = npt.NDArray[np.float32]

MAKER, MODEL = "es_medical developers", "es_medical"
NOMINAL = "Position and orientation are nominal (axial, supine, head first): the source of the pixels does not state them."
NO_SPACING = "The pixel spacing is unknown; the 1 mm that stands in its place is none: do not measure lengths in the plane."
UNSCALED = " So are spacings of 1 mm: do not measure lengths."


@dataclass(frozen=True)
class Derivation:
    """How the images were made, for their headers.

    Attributes:
        method: name of the reconstruction method.
        acceleration: nominal acceleration factor; NaN where unknown.
        views: measured views of a sinogram, stated in place of the acceleration; 0 for k-space.
        kind: image class of the series.
        burned_in: whether the pixels may hold burned-in annotations.
    """

    method: str = "network"
    acceleration: float = float("nan")
    views: int = 0
    kind: ImageKind = MR
    burned_in: bool = False

    @property
    def label(self) -> str:
        """Short text for the list of series."""
        factor = "" if np.isnan(self.acceleration) else f" x{self.acceleration:.3g}"
        sampling = f" {self.views} views" if self.views else factor
        return f"es_medical {self.method}{sampling}".replace("\\", "/")[:48]  # a backslash would separate two values

    @property
    def description(self) -> str:
        """Text of DerivationDescription."""
        factor = "an unknown factor" if np.isnan(self.acceleration) else f"{self.acceleration:.3g}"
        sampling = f"of {self.views} views" if self.views else f"accelerated by {factor}"
        return (
            f"{self.kind.values} reconstructed by a network (method: {self.method}) from {self.kind.measured} {sampling}, "
            f"es_medical {__version__}, research only"
        )[:1024]


def derived_series(
    values: Floats,
    planes: Sequence[Geometry],
    headers: Sequence[Dataset],
    sources: Sequence[Dataset] | None,
    derivation: Derivation,
    remarks: Sequence[str] = (),
) -> list[Dataset]:
    """The data sets of a new derived series, numbered in the given order.

    Args:
        values: (slices, H, W) in raw units, finite.
        planes: plane of each slice, ascending along the normal.
        headers: header of each slice, from `source_header` or `study_header`.
        sources: the source slice of each, or None.
        derivation: how the images were made.
        remarks: what a reader of each slice should know; "" or none where there is nothing.
    """
    used, series_uid = derivation.kind.scaling(values), generate_uid()
    images = []
    for i, header in enumerate(headers):
        image = copy.deepcopy(header)
        _describe(image, derivation, series_uid, i + 1)
        _place(image, planes[i])
        _pixels(image, values[i], used, derivation.kind.rescale_type)
        if sources is not None:
            image.SourceImageSequence = [_reference(sources[i])]
            image.SeriesNumber = 1000 + whole(sources[i], "SeriesNumber") % 2**30
            if text(sources[i], "BurnedInAnnotation").upper() == "YES":
                image.BurnedInAnnotation = "YES"
        if any(said := [*remarks[i : i + 1], _unknown(planes[i])]):
            image.ImageComments = " ".join(filter(None, said))
        images.append(image)
    return images


def _describe(image: Dataset, derivation: Derivation, series_uid: str, number: int) -> None:
    image.SOPClassUID, image.SOPInstanceUID = derivation.kind.sop_class, generate_uid()
    image.SeriesInstanceUID, image.SeriesNumber, image.InstanceNumber = series_uid, 1, number
    image.Modality = derivation.kind.modality
    image.ImageType = ["DERIVED", "SECONDARY", derivation.kind.image_type]
    image.SeriesDescription, image.DerivationDescription = derivation.label, derivation.description
    image.Manufacturer, image.ManufacturerModelName, image.SoftwareVersions = MAKER, MODEL, __version__
    image.BurnedInAnnotation = "YES" if derivation.burned_in else "NO"
    image.file_meta = file_meta(derivation.kind.sop_class, image.SOPInstanceUID)


def _place(image: Dataset, plane: Geometry) -> None:
    image.ImagePositionPatient = [decimal_string(value) for value in plane.position]
    image.ImageOrientationPatient = [decimal_string(value) for value in plane.orientation]
    image.PixelSpacing = [decimal_string(value) for value in plane.spacing]
    if np.isfinite(plane.slice_spacing):
        image.SpacingBetweenSlices = decimal_string(plane.slice_spacing)
    image.SliceLocation = decimal_string(float(plane.normal @ plane.position))


def _unknown(plane: Geometry) -> str:
    """What the source of the pixels does not state about their place, or ""."""
    if plane.assumed:
        return NOMINAL + UNSCALED * plane.unscaled
    return NO_SPACING if plane.unscaled else ""


def _pixels(image: Dataset, values: Floats, used: Scaling, rescale_type: str) -> None:
    set_pixel_data(image, to_stored(values, used), "MONOCHROME2", 16, generate_instance_uid=False)
    image.RescaleSlope, image.RescaleIntercept, image.RescaleType = used.slope, used.intercept, rescale_type
    centers, widths, names = zip(*used.windows, strict=True)
    image.WindowCenter, image.WindowWidth = list(centers), list(widths)
    if any(names):
        image.WindowCenterWidthExplanation = list(names)
    image.VOILUTFunction = "LINEAR_EXACT"  # LINEAR requires a width of at least 1, in any unit


def _reference(source: Dataset) -> Dataset:
    purpose, item = Dataset(), Dataset()
    purpose.CodeValue, purpose.CodingSchemeDesignator = "121322", "DCM"
    purpose.CodeMeaning = "Source image for image processing operation"
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = source.SOPClassUID, source.SOPInstanceUID
    if source.SOPClassUID in CT_FRAMES | MR_FRAMES:
        item.ReferencedFrameNumber = source.InstanceNumber  # see `frames_of`
    item.PurposeOfReferenceCodeSequence = [purpose]
    return item


def file_meta(sop_class: UID, sop_instance: UID) -> FileMetaDataset:
    """File meta information with the identifiers of the data set."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = sop_class, sop_instance
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return meta
