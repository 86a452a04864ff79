"""Read geometry, encoding, scanner and patient from an ISMRMRD header (XML)."""

from __future__ import annotations

from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

NAN = float("nan")
NARROWEST, WIDEST = 1e-3, 1e3  # mm: no scanner has other pixels, so their size is unknown


class Encoding(NamedTuple):
    """What the ISMRMRD header says about one encoding space.

    Rows are the readout (ISMRMRD x, with its oversampling), columns the phase encoding (y).

    Attributes:
        spacing: row and column spacing in mm of the reconstruction, NaN where unknown.
        size: (H, W) of the reconstruction, or None.
        measured: first and one past the last k-space column inside the encoding limits, or None.
        pixel: row and column spacing in mm of the recorded grid (encoded field of view / encoded matrix), NaN where unknown.
        slice_thickness: encoded field of view in mm across the slice, or across a partition in 3-D; NaN where unknown.
        recorded: (H, W) of the recorded grid (encoded matrix), or None.
        partitions: number of encoded partitions (z); 1 in 2-D, also where unknown.
        kept: number of slices inside the reconstructed field of view, without slice oversampling; 1 in 2-D.
        partition_center: encoding step in z at k = 0, or None.
        center: encoding step at k = 0, or None.
        trajectory: ``cartesian``, ``epi``, ``radial``, ...; empty if the header does not give it.
        calibration: calibration mode of parallel imaging: ``embedded``, ``separate``, ...; empty if not given.
        slices: number of slices according to the encoding limits, or None.
    """

    spacing: tuple[float, float] = (NAN, NAN)
    size: tuple[int, int] | None = None
    measured: tuple[int, int] | None = None
    pixel: tuple[float, float] = (NAN, NAN)
    slice_thickness: float = NAN
    recorded: tuple[int, int] | None = None
    partitions: int = 1
    kept: int = 1
    partition_center: int | None = None
    center: int | None = None
    trajectory: str = ""
    calibration: str = ""
    slices: int | None = None


class Scan(NamedTuple):
    """What the ISMRMRD header says about scanner and patient.

    Attributes:
        vendor: name of the scanner's manufacturer, lower case; empty if unknown.
        noise_bandwidth: noise bandwidth / receiver bandwidth (relativeReceiverNoiseBandwidth), NaN where unknown.
        patient: patient identifier, else the patient's name, else empty. Never stored as it is.
    """

    vendor: str = ""
    noise_bandwidth: float = NAN
    patient: str = ""


def parse_header(xml: bytes | str, space: int = 0) -> Encoding:
    """Read encoding space number `space`; missing or malformed values stay unknown.

    A header with a document type declaration is not parsed: its entities could expand without bound.

    >>> parse_header("not xml").size is None
    True
    """
    root = _parse(xml)
    spaces = [] if root is None else root.findall("{*}encoding")
    if space >= len(spaces):
        return Encoding()
    node = spaces[space]
    size, spacing = _grid(node, "reconSpace")
    recorded, pixel = _grid(node, "encodedSpace")
    center = _number(node, "encodingLimits/kspace_encoding_step_1/center", NAN)
    partitions = max(int(_number(node, "encodedSpace/matrixSize/z", 1)), 1)
    slab, covered = (_number(node, f"{space}/fieldOfView_mm/z", NAN) for space in ("encodedSpace", "reconSpace"))
    kept = round(partitions * covered / slab) if slab > 0 and covered > 0 else partitions
    middle = _number(node, "encodingLimits/kspace_encoding_step_2/center", NAN)
    slices = _number(node, "encodingLimits/slice/maximum", NAN)
    return Encoding(
        spacing=spacing,
        size=size,
        measured=_measured(node),
        pixel=pixel,
        slice_thickness=slab / partitions if slab > 0 else NAN,
        recorded=recorded,
        partitions=partitions,
        kept=min(max(kept, 1), partitions),
        partition_center=None if np.isnan(middle) else int(middle),
        center=None if np.isnan(center) else int(center),
        trajectory=_text(node, "trajectory").lower(),
        calibration=_text(node, "parallelImaging/calibrationMode").lower(),
        slices=None if np.isnan(slices) else int(slices) + 1,
    )


def parse_scan(xml: bytes | str) -> Scan:
    """Read scanner and patient from the header; missing or malformed values stay unknown.

    >>> parse_scan("<a><subjectInformation><patientID> 7 </patientID></subjectInformation></a>").patient
    '7'
    """
    root = _parse(xml)
    if root is None:
        return Scan()
    system, subject = "acquisitionSystemInformation", "subjectInformation"
    bandwidth = _number(root, f"{system}/relativeReceiverNoiseBandwidth", NAN)
    patient = _text(root, f"{subject}/patientID") or _text(root, f"{subject}/patientName")
    return Scan(_text(root, f"{system}/systemVendor").lower(), bandwidth, patient)


def _parse(xml: bytes | str) -> ElementTree.Element | None:
    text = xml.decode("utf-8", "replace") if isinstance(xml, bytes) else str(xml)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        return ElementTree.fromstring(text.encode())
    except ElementTree.ParseError:
        return None


def _grid(space: ElementTree.Element, name: str) -> tuple[tuple[int, int] | None, tuple[float, float]]:
    """(rows, columns) and pixel size in mm of ``reconSpace`` or ``encodedSpace``."""
    size = _numbers(space, f"{name}/matrixSize", ("x", "y"))
    field = _numbers(space, f"{name}/fieldOfView_mm", ("x", "y"))
    if not size or min(size) < 1:
        return None, (NAN, NAN)
    pixel = (field[0] / size[0], field[1] / size[1]) if field else (NAN, NAN)
    known = all(NARROWEST <= width <= WIDEST for width in pixel)
    return (int(size[0]), int(size[1])), pixel if known else (NAN, NAN)


def _measured(space: ElementTree.Element) -> tuple[int, int] | None:
    steps = "encodingLimits/kspace_encoding_step_1"
    encoded = _number(space, "encodedSpace/matrixSize/y", NAN)
    limits = _numbers(space, steps, ("center", "maximum"))
    if np.isnan(encoded) or not limits:
        return None
    left = int(encoded) // 2 - int(limits[0])
    return max(left + int(_number(space, f"{steps}/minimum", 0)), 0), left + int(limits[1]) + 1


def _path(path: str) -> str:
    return "/".join("{*}" + part for part in path.split("/"))


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(_path(path)) or "").strip()


def _number(node: ElementTree.Element, path: str, unknown: float) -> float:
    """The finite number at a path, or `unknown`."""
    try:
        value = float(_text(node, path))
    except ValueError:
        return unknown
    return value if np.isfinite(value) else unknown


def _numbers(node: ElementTree.Element, path: str, names: tuple[str, ...]) -> list[float] | None:
    """The finite numbers below a path, or None if any is missing."""
    values = [_number(node, f"{path}/{name}", NAN) for name in names]
    return None if np.isnan(values).any() else values
