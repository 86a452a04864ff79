"""Read the MATLAB files of the Helsinki tomography data sets: `CtDataFull` (or `CtDataLimited`) with its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from data_prep.run.manifest import PrepError
from data_prep.sinogram.beam import Beam
from data_prep.sinogram.scan import Raw, Scan

NAMES = ("CtDataFull", "CtDataLimited", "CtData")
LENGTHS = ("distanceSourceOrigin", "distanceSourceDetector", "pixelSizePost")


def helsinki_data(variables: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The structure with sinogram and parameters among the variables of a .mat file, if there is one."""
    found = next((variables[name] for name in NAMES if name in variables), None)
    return found if isinstance(found, Mapping) and {"sinogram", "parameters"} <= found.keys() else None


def helsinki_scan(data: Mapping[str, Any]) -> Scan:
    """The central slice of a cone-beam scan: a fan beam with a flat, centred detector, line integrals.

    Views turn counter-clockwise with the source below at angle 0 and bins from left to right: of the four possibilities these
    two signs fit the rays measured from both sides, and the image has the orientation of the organisers' reconstructions.

    Raises:
        PrepError: a parameter is missing or no number, or the angles do not fit the sinogram.
    """
    parameters, sinogram = data["parameters"], np.asarray(data["sinogram"])
    if sinogram.ndim != 2 or not np.issubdtype(sinogram.dtype, np.floating):
        raise PrepError(f"sinogram of shape {sinogram.shape}, {sinogram.dtype}: expected (views, bins) of real numbers")
    try:
        lengths = {name: float(parameters[name]) for name in LENGTHS}
        angles = np.atleast_1d(np.asarray(parameters["angles"], float))
    except (KeyError, TypeError, ValueError) as error:
        raise PrepError(f"parameter {error} of the Helsinki data is missing or no number") from error
    if parameters.get("distanceUnit", "mm") != "mm":
        raise PrepError(f"lengths in {str(parameters['distanceUnit'])[:20]}: expected mm")
    if angles.shape != sinogram.shape[:1]:
        raise PrepError(f"{angles.size} angles for a sinogram of {sinogram.shape[0]} views")
    beam = Beam(
        kind="fan",
        angles=tuple(angles.tolist()),
        bins=sinogram.shape[1],
        bin_width=lengths["pixelSizePost"],
        centre=(sinogram.shape[1] - 1) / 2,
        source_origin=lengths["distanceSourceOrigin"],
        source_detector=lengths["distanceSourceDetector"],
    )
    return Scan(beam, 1, "attenuation", lambda _: Raw(sinogram.astype(float)))
