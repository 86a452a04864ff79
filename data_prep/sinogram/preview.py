"""A picture of slices in a file of sinograms, reconstructed without a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from es_medical.data import SliceDataset
from es_medical.data.atomic import whole_or_not
from es_medical.data.schema import MEASURED
from es_medical.output.pictures import Panel, side_by_side

SHOWN = 4  # slices
WINDOW = (0.0, 1.2)  # of stored values


def write_preview(slices: Path) -> Path:
    """Write filtered back-projection, smooth least squares and the reference of up to four slices as PNG beside their file."""
    from PIL import Image

    from es_medical.physics.ct import CT
    from es_medical.physics.ct_geometry import geometry_from_dict

    data, rows = SliceDataset(slices, limit=SHOWN), []
    operator = {name: value for name, value in data.header.operator.items() if name != MEASURED}
    scanner = CT(geometry_from_dict(operator), data.header.mask)
    for item in (data[index] for index in range(len(data))):
        y = item["measurement"][None]
        panels = [Panel("FBP", scanner.fbp(y, "hann")[0], WINDOW), Panel("smooth", scanner.estimate(y)[0], WINDOW)]
        panels += [Panel("reference", item["image"], WINDOW)] if "image" in item else []
        rows.append(side_by_side(panels, smallest=256))
    path = slices.with_suffix(".preview.png")
    with whole_or_not(path) as temporary:
        Image.fromarray(np.vstack(rows)).save(temporary, format="PNG")
    return path
