"""What the ISMRMRD header of an acquisition says about geometry and encoding."""

from __future__ import annotations

from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

NAN = float("nan")


class Encoding(NamedTuple):
    """What the ISMRMRD header says.

    Attributes:
        spacing: row and column spacing in mm, NaN where unknown.
        size: (H, W) of the reconstruction, or None.
        measured: first and one past the last k-space column inside the encoding limits, or None.
    """

    spacing: tuple[float, float] = (NAN, NAN)
    size: tuple[int, int] | None = None
    measured: tuple[int, int] | None = None


def parse_header(xml: bytes | str) -> Encoding:
    """Reads spacing, reconstructed size and encoding limits; what is missing or malformed stays unknown.

    Rows are the readout (ISMRMRD x), columns the phase encoding (y). A header with a document type is not parsed:
    entities could make it expand without bound.

    >>> parse_header("not xml")
    Encoding(spacing=(nan, nan), size=None, measured=None)
    """
    text = xml.decode("utf-8", "replace") if isinstance(xml, bytes) else str(xml)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return Encoding()
    try:
        root = ElementTree.fromstring(text.encode())
    except ElementTree.ParseError:
        return Encoding()
    size = _numbers(root, "reconSpace/matrixSize", ("x", "y"))
    field = _numbers(root, "reconSpace/fieldOfView_mm", ("x", "y"))
    encoded = _numbers(root, "encodedSpace/matrixSize", ("y",))
    limits = _numbers(root, "encodingLimits/kspace_encoding_step_1", ("center", "maximum"))
    spacing = (field[0] / size[0], field[1] / size[1]) if size and field and min(size) > 0 else (NAN, NAN)
    left = int(encoded[0]) // 2 - int(limits[0]) if encoded and limits else 0
    return Encoding(
        spacing=spacing,
        size=(int(size[0]), int(size[1])) if size and min(size) >= 1 else None,
        measured=(max(left, 0), left + int(limits[1]) + 1) if encoded and limits else None,
    )


def _numbers(root: ElementTree.Element, path: str, names: tuple[str, ...]) -> list[float] | None:
    parent = "{*}encoding/" + "/".join("{*}" + part for part in path.split("/"))
    try:
        values = [float(root.findtext(f"{parent}/{{*}}{name}", "")) for name in names]
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None
