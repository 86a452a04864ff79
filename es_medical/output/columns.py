"""The columns of a slice file that images are saved with, and the rows of a volume or image in them."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from es_medical.data.geometry import Geometry
from es_medical.output.volume import Columns, volume_names

Rows = npt.NDArray[np.int64]
GEOMETRY = {"spacing": (2,), "position": (3,), "orientation": (6,), "slice_spacing": ()}


def read_columns(path: str | Path, rows: Rows) -> Columns:
    """Columns of the slice file at these rows; NaN for a column that an older file lacks."""
    with h5py.File(path, "r") as file:
        columns = {name: file[name][()][rows] for name in ("id", "subject", "slice", "scale")}
        columns["volume"] = file["volume"][()][rows] if "volume" in file else np.full(len(rows), b"")
        columns["clipped"] = file["clipped"][()][rows] if "clipped" in file else np.zeros(len(rows), np.int64)
        for name, shape in GEOMETRY.items():
            columns[name] = file[name][()][rows] if name in file else np.full((len(rows), *shape), np.nan)
    return columns


def by_id(columns: Columns) -> dict[str, Rows]:
    """Name of each image -> its row."""
    return {key.decode(): np.array([row]) for row, key in enumerate(columns["id"])}


def recorded_planes(columns: Columns, rows: Rows) -> list[Geometry]:
    """Planes as stored in the slice file, NaN where unknown; numbers are the shortest decimals that give the stored ones."""

    def number(name: str, row: int) -> Any:  # noqa: ANN401 - one number or a tuple of them
        values = tuple(float(str(value)) for value in np.ravel(columns[name][row]))
        return values if GEOMETRY[name] else values[0]

    order = ("position", "orientation", "spacing", "slice_spacing")
    return [Geometry(*(number(name, int(row)) for name in order)) for row in rows]


def by_volume(columns: Columns) -> dict[str, Rows]:
    """Name of each volume -> its rows, in the order of the slice numbers."""
    subjects, volumes = ([key.decode() for key in columns[name]] for name in ("subject", "volume"))
    names = np.array(volumes if all(volumes) else volume_names(subjects, columns["slice"].tolist()))
    chosen = {str(name): np.flatnonzero(names == name) for name in sorted(set(names))}
    return {name: rows[np.argsort(columns["slice"][rows], kind="stable")] for name, rows in chosen.items()}
