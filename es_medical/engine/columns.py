"""What a slice file says of the slices that are reconstructed: arrays by name, slices along the first axis."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from es_medical.data.geometry import Geometry

GEOMETRY = {"spacing": (2,), "position": (3,), "orientation": (6,), "slice_spacing": ()}


def read_columns(path: str | Path, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """What the slice file says of its rows; NaN for what an older file does not hold."""
    with h5py.File(path, "r") as file:
        columns = {name: file[name][()][rows] for name in ("id", "subject", "slice", "scale")}
        columns["volume"] = file["volume"][()][rows] if "volume" in file else np.full(len(rows), b"")
        for name, shape in GEOMETRY.items():
            columns[name] = file[name][()][rows] if name in file else np.full((len(rows), *shape), np.nan)
    return columns


def by_id(columns: dict[str, Any]) -> dict[str, npt.NDArray[np.int64]]:
    """Name of each image -> its row."""
    return {one.decode(): np.array([row]) for row, one in enumerate(columns["id"])}


def recorded_planes(columns: dict[str, Any], rows: npt.NDArray[np.int64]) -> list[Geometry]:
    """Planes as the slice file states them, NaN where unknown; the shortest decimal numbers that mean the stored ones."""

    def number(name: str, row: int) -> Any:  # noqa: ANN401 - one number or a tuple of them
        values = tuple(float(str(value)) for value in np.ravel(columns[name][row]))
        return values if GEOMETRY[name] else values[0]

    order = ("position", "orientation", "spacing", "slice_spacing")
    return [Geometry(*(number(name, int(row)) for name in order)) for row in rows]
