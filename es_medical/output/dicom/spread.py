"""Write the spread as a DICOM Parametric Map: float pixels, and frames that refer to the derived series."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydicom import Dataset
from pydicom.uid import generate_uid

from es_medical import __version__
from es_medical.output.dicom.header import ImageKind
from es_medical.output.dicom.pixels import decimal_string
from es_medical.output.dicom.series import MAKER, MODEL, Derivation

TINY = float(np.finfo(np.float32).tiny)


def highdicom() -> Any:  # noqa: ANN401 - a module
    """Import the optional library that writes parametric maps.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import highdicom
    except ImportError as error:
        raise ImportError("a spread map as DICOM needs highdicom: pip install 'es_medical[dicom]'") from error
    return highdicom


def spread_map(values: npt.NDArray[np.float32], images: Sequence[Dataset], derivation: Derivation) -> Dataset:
    """A parametric map of the standard deviation of the reconstruction at each pixel.

    Args:
        values: (slices, H, W) in raw units, finite.
        images: the data sets of the derived series, in the same order: patient, study and geometry are theirs.
        derivation: how the images were made.

    Raises:
        ImportError: highdicom is not installed.
    """
    library = highdicom()
    values = np.ascontiguousarray(values, np.float32)
    low, high = float(values.min()), float(values.max())
    window = library.VOILUTTransformation(
        *(float(decimal_string(value)) for value in ((low + high) / 2, max(high - low, TINY))),
        voi_lut_function="LINEAR_EXACT",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*person name")  # pseudonyms have one component
        spread: Dataset = library.pm.ParametricMap(
            images,
            values,
            series_instance_uid=generate_uid(),
            series_number=int(images[0].SeriesNumber) + 1,
            sop_instance_uid=generate_uid(),
            instance_number=1,
            manufacturer=MAKER,
            manufacturer_model_name=MODEL,
            software_versions=__version__,
            device_serial_number="0",  # type 1; software has none
            contains_recognizable_visual_features=True,  # type 1; the cautious answer
            real_world_value_mappings=[_mapping(library, low, high, derivation.kind)],
            voi_lut_transformations=[window],
            content_label="SPREAD",
            content_description="Standard deviation of the reconstruction, research only",
            derived_pixel_contrast="STD_DEVIATION",
            series_description=f"{derivation.label} spread",
        )
    spread.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence = _measures(library, images[0])
    for name in ("BodyPartExamined", "Laterality", "ImageLaterality", "ImageComments", "DeidentificationMethodCodeSequence"):
        if name in images[0] and name not in spread:
            spread.add(copy.deepcopy(images[0][name]))
    return spread


def _mapping(library: Any, low: float, high: float, kind: ImageKind) -> Any:  # noqa: ANN401
    from pydicom.sr.codedict import codes

    return library.pm.RealWorldValueMapping(
        lut_label="SPREAD",
        lut_explanation="Standard deviation in the units of the reconstruction",
        unit=getattr(codes.UCUM, kind.unit),
        value_range=(low, high),
        slope=1.0,
        intercept=0.0,
    )


def _measures(library: Any, image: Dataset) -> Any:  # noqa: ANN401
    """Pixel measures with a slice thickness: highdicom copies that of the images, which may be empty, but it is type 1C."""
    between = image.get("SpacingBetweenSlices")
    thickness = image.get("SliceThickness") or between or 1.0
    return library.PixelMeasuresSequence(image.PixelSpacing, thickness, between)
