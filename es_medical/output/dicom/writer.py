"""Write a volume as DICOM: a folder with a derived MR or CT series, and one with the parametric map of its spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
from pydicom import Dataset, dcmwrite
from pydicom.uid import generate_uid

from es_medical.data.atomic import whole_folder_or_not
from es_medical.data.geometry import Geometry, Size
from es_medical.output.dicom.header import IN_ORDER, source_header, study_header
from es_medical.output.dicom.series import Derivation, Floats, derived_series
from es_medical.output.dicom.source import SourceSeries
from es_medical.output.dicom.spread import spread_map
from es_medical.output.volume import Volume


class DicomWriter:
    """Write volumes below a folder: `<volume>/reconstruction/0001.dcm`, ... and `<volume>/spread/0001.dcm`.

    Without a source, all volumes of a subject that one writer writes share a study.

    Args:
        folder: folder of the volumes.
        derivation: how the images were made.
        source: the series that the (single) volume belongs to.
    """

    def __init__(self, folder: str | Path, derivation: Derivation, source: SourceSeries | None = None) -> None:
        self.folder, self.derivation, self.source = Path(folder), derivation, source
        self._studies: dict[str, str] = {}

    def placed(self, volume: Volume) -> Volume:
        """The volume in the geometry of the source, if there is one.

        Raises:
            ValueError: the volume does not fit the source.
        """
        if self.source is None:
            return volume
        return replace(volume, geometries=self.source.matched(volume.geometries, volume.size, volume.indices.tolist())[1])

    def write(self, volume: Volume) -> None:
        """Write both series, each folder atomically; slices that are NaN everywhere are left out.

        Args:
            volume: the volume before `placed`.

        Raises:
            ValueError: the volume does not fit the source, no slice holds numbers, or some pixels of a slice are not finite.
        """
        sources, planes = None, volume.geometries
        if self.source is not None:
            sources, planes = self.source.matched(volume.geometries, volume.size, volume.indices.tolist())
        rows = _ordered(planes, _present(volume))
        chosen = [sources[i] for i in rows] if sources else None
        values = {name: image[rows] for name, image in volume.images.items()}
        in_order = sources is not None and not all(plane.known for plane in volume.geometries)
        remarks = [" ".join(filter(None, [IN_ORDER * in_order, *volume.remarks[i : i + 1]])) for i in rows]
        made = self._made(volume.subject, values, [planes[i] for i in rows], chosen, remarks)
        self.folder.joinpath(volume.name).mkdir(parents=True, exist_ok=True)
        for name, series in made.items():
            with whole_folder_or_not(self.folder / volume.name / name) as temporary:
                for number, data in enumerate(series, start=1):
                    dcmwrite(temporary / f"{number:04d}.dcm", data, enforce_file_format=True)

    def rehearse(self, wanted: Sequence[Geometry], size: Size, numbers: Sequence[int]) -> None:
        """Match a volume with the source and make all its files, of a few black pixels, in memory.

        Whatever the source's elements hold that a writer refuses shows before anything is reconstructed.

        Args:
            wanted: the volume's own planes; NaN where unknown.
            size: its rows and columns.
            numbers: number of each slice.

        Raises:
            ValueError: the volume does not fit the source, or no file can be made of its headers.
        """
        assert self.source is not None
        sources, planes = self.source.matched(wanted, size, numbers)
        rows = _ordered(planes, range(len(planes)))
        black = dict.fromkeys(("reconstruction", "spread"), np.zeros((len(rows), 2, 2), np.float32))
        try:
            made = self._made("", black, [planes[i] for i in rows], [sources[i] for i in rows], ())
            for data in (data for series in made.values() for data in series):
                dcmwrite(BytesIO(), data, enforce_file_format=True)
        except Exception as error:  # pydicom and highdicom raise many kinds
            raise ValueError(f"no DICOM can be made of the headers of the source: {error}") from error

    def _made(
        self,
        subject: str,
        values: Mapping[str, Floats],
        planes: Sequence[Geometry],
        sources: Sequence[Dataset] | None,
        remarks: Sequence[str],
    ) -> dict[str, list[Dataset]]:
        """The data sets of both series, of slices in the order of their positions."""
        headers = self._headers(subject, sources, len(planes))
        images = derived_series(values["reconstruction"], planes, headers, sources, self.derivation, remarks)
        return {"reconstruction": images, "spread": [spread_map(values["spread"], images, self.derivation)]}

    def _headers(self, subject: str, sources: Sequence[Dataset] | None, n: int) -> list[Dataset]:
        if sources is not None:
            return [source_header(source, self.derivation.kind) for source in sources]
        study = self._studies.setdefault(subject, generate_uid())
        return [study_header(subject, study, self.derivation.kind)] * n


def _present(volume: Volume) -> list[int]:
    """Indices of the slices that hold numbers; raises ValueError for slices that are only partly finite."""
    rows = []
    for i, index in enumerate(volume.indices):
        finite = [np.isfinite(image[i]) for image in volume.images.values()]
        if all(valid.all() for valid in finite):
            rows.append(i)
        elif any(valid.any() for valid in finite):
            raise ValueError(f"slice {index} of the volume holds NaN or infinite values: DICOM cannot store them")
    if not rows:
        raise ValueError("no slice of the volume holds numbers: no DICOM series is written")
    return rows


def _ordered(planes: Sequence[Geometry], rows: Sequence[int]) -> list[int]:
    normal = planes[0].normal
    return sorted(rows, key=lambda i: float(normal @ planes[i].position))
