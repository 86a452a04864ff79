"""Save reconstructions: one HDF5 file; for MR and CT NIfTI volumes, and DICOM series on request; for images PNG."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from ignite.engine import Engine, Events

from es_medical.data import SliceDataset, SliceHeader
from es_medical.data.atomic import whole_or_not
from es_medical.data.geometry import Geometry
from es_medical.data.stack import volume_planes
from es_medical.metrics import magnitude
from es_medical.output.checks import check_planes, check_writable, cut_values, in_hounsfield_units
from es_medical.output.columns import Rows, by_id, by_volume, read_columns, recorded_planes
from es_medical.output.png import PngWriter, check_names
from es_medical.output.stored import ImageFile, StoredImages
from es_medical.output.volume import Columns, Volume, check_flag, flagged, interval_volume

if TYPE_CHECKING:
    from es_medical.output.dicom.writer import DicomWriter

logger = logging.getLogger(__name__)

RESULTS = "reconstructions.h5"
Array = npt.NDArray[np.float32]
Write = Callable[[], None]


class SaveReconstructions:
    """Handler of an `Evaluator` that writes its reconstructions.

    `reconstructions.h5`: `reconstruction` and `spread` (N, C, H, W) in stored units, `id`, `subject`, `slice`, `scale`
    (raw = stored * scale + offset), the geometry of the slice file and `heldout` (N,).

    `<volume>_reconstruction.nii.gz` and `<volume>_spread.nii.gz` (without a volume's hash: `<subject>`, `<subject>_2`):
    magnitudes in raw units (MR), Hounsfield units or 1/cm (CT), (W, H, slices) at the position given in the slice file, every
    slice at its index in the volume, NaN where one is missing. If position and orientation are unknown, nominal ones are used
    (`Geometry.nominal`: columns to the patient's left, rows to posterior) and the header says so; unknown spacings are 1 mm.

    With `dicom`: `dicom/<volume>/reconstruction/` and `dicom/<volume>/spread/` (see `DicomWriter`).

    Photographs and digits (modality IMAGE) have no position in a body: instead of NIfTI, `png/<id>_reconstruction.png` and
    `png/<id>_spread.png` are written (see `PngWriter`), and there is no DICOM.

    If the inferer makes intervals, their half-width and the pixels where it is wide (1, else 0) are written too, as `halfwidth`
    and `flagged` in the names of datasets and files; there is no DICOM of these.

    A volume or image that fails does not stop the others; at the end the failures are raised together, with their causes.

    Args:
        output_dir: folder for the files.
        dataset: the slices that are reconstructed.
        dicom: whether to write DICOM.
        source_dicom: DICOM file or folder of the series (of the slices' modality) that the slices belong to: patient, study and
            geometry are taken from it. The slices must be those of one volume.
        method: name of the reconstruction method, for the headers.
        spread_max: value in stored units that is white in `png/<id>_spread.png`.
        flag: fraction of the range of the volume, or photograph, above which the half-width of a pixel is wide.

    Raises:
        FileNotFoundError: no source DICOM.
        ImportError: DICOM is requested and highdicom is missing.
        OSError: nothing can be written to `output_dir`.
        ValueError: the source is not a single volume of the slices' modality, does not fit the slices, or is given without
            `dicom` or for CT in 1/cm; DICOM is requested for images that are neither MR nor CT; ids cannot name files.
    """

    def __init__(
        self,
        output_dir: str | Path,
        dataset: SliceDataset,
        dicom: bool = False,
        source_dicom: str | Path | None = None,
        method: str = "network",
        spread_max: float = 0.2,
        flag: float = 0.1,
    ) -> None:
        if dicom and dataset.header.modality == "IMAGE":
            raise ValueError("DICOM is for MR and CT, the slices are of modality IMAGE: set dicom to false")
        if source_dicom and not dicom:
            raise ValueError("source_dicom is given but dicom is off: set dicom to true, or leave source_dicom out")
        hounsfield = dicom and in_hounsfield_units(dataset.header, bool(source_dicom))
        self.folder, self.dataset, self.flag = Path(output_dir), dataset, check_flag(flag)
        self._results: ImageFile | None = None
        self._rows, self._heldout = list[int](), list[float]()
        self._dicom = self._dicom_writer(source_dicom, method) if hounsfield else None
        if dataset.header.modality != "IMAGE":
            self._check_volumes()
        check_writable(self.folder)
        self._png = self._png_writer(spread_max) if dataset.header.modality == "IMAGE" else None

    def attach(self, engine: Engine) -> None:
        """Write the images of each batch to the HDF5 file, and the volumes at the end."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._collect)
        engine.add_event_handler(Events.COMPLETED, self._write)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._abandon)

    def _dicom_writer(self, source_dicom: str | Path | None, method: str) -> DicomWriter:
        """Make the writer; all checks are done here, before hours of reconstruction."""
        from es_medical.output.dicom.header import image_kind
        from es_medical.output.dicom.series import Derivation
        from es_medical.output.dicom.source import read_source
        from es_medical.output.dicom.spread import highdicom
        from es_medical.output.dicom.writer import DicomWriter

        highdicom()
        header = self.dataset.header
        kind = image_kind(header.modality)
        source = read_source(source_dicom, kind) if source_dicom else None
        burned_in = bool(header.configuration.get("burned_in"))
        derivation = Derivation(method, header.acceleration, _views(header), kind, burned_in)
        writer = DicomWriter(self.folder / "dicom", derivation, source)
        if source is not None:
            columns = read_columns(self.dataset.path, self.dataset.rows)
            chosen = by_volume(columns)
            if len(chosen) > 1:
                raise ValueError(f"source_dicom is one series, the slices are of {len(chosen)} volumes: expected those of one")
            rows = next(iter(chosen.values()))
            recorded = recorded_planes(columns, rows)
            writer.rehearse(recorded, header.size, columns["slice"][rows].tolist())
            if not all(plane.known for plane in recorded):
                logger.warning("slice positions are unknown: slice 0 is matched with the first source slice along the normal")
        return writer

    def _check_volumes(self) -> None:
        """Warn of what the planes and values of the volumes do not allow, or do not say."""
        columns = read_columns(self.dataset.path, self.dataset.rows)
        for name, rows in by_volume(columns).items():
            check_planes(name, self._planes(columns, rows), columns["slice"][rows])
            cut_values(columns, rows, self._unit, name)

    @property
    def _unit(self) -> str:
        """Unit of raw values, with a space before it."""
        return f" {self.dataset.header.unit}".rstrip()

    def _planes(self, columns: Columns, rows: Rows) -> tuple[Geometry, ...]:
        """The planes in which a volume is written, but for DICOM with a source."""
        recorded, numbers, size = recorded_planes(columns, rows), columns["slice"][rows], self.dataset.header.size
        if self._dicom is not None and self._dicom.source is not None:
            return self._dicom.source.matched(recorded, size, numbers.tolist())[1]
        try:
            return volume_planes(recorded, numbers, size)
        except ValueError:
            return tuple(recorded)  # `regular_grid` says the same

    def _png_writer(self, spread_max: float) -> PngWriter:
        check_names([key.decode() for key in read_columns(self.dataset.path, self.dataset.rows)["id"]])
        return PngWriter(self.folder / "png", spread_max)

    def _collect(self, engine: Engine) -> None:
        result: Any = engine.state.output  # what Evaluator._iteration returns
        batch: Any = engine.state.batch
        if self._results is None:
            self._results, self._rows, self._heldout = ImageFile(self.folder / RESULTS), [], []
        kinds = {"reconstruction": "image", "spread": "spread", "halfwidth": "halfwidth"}
        found = {name: getattr(result, kind) for name, kind in kinds.items() if hasattr(result, kind)}
        self._results.append({name: images.cpu().numpy() for name, images in found.items()})
        self._rows += batch["index"].tolist()
        self._heldout += result.heldout.tolist()

    def _abandon(self, engine: Engine, error: Exception) -> None:
        if self._results is not None:
            self._results.close(error)
        self._results = None
        raise error

    def _write(self, engine: Engine) -> None:
        columns = self._complete()
        with h5py.File(self.folder / RESULTS) as file:
            columns |= {name: StoredImages(data) for name, data in file.items() if name not in columns}
            parts = dict(self._images(columns) if self._png else self._volumes(columns))
            failed = _write_all(parts, what := "image" if self._png else "volume")
        n = len(self._rows)
        found = f"{n} images" if self._png else f"{n} slices of {len(parts)} volumes"
        unit = f" in{self._unit}" * bool(self._unit)
        logger.info("%s reconstructed%s: see %s%s", found, unit, self.folder, f"; {self._png.report()}" if self._png else "")
        if failed:
            causes = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed.items())
            first = next(iter(failed.values()))
            raise RuntimeError(f"{len(failed)} of {len(parts)} {what}s were not written: {causes}") from first

    def _complete(self) -> Columns:
        """Complete the HDF5 file; return what it holds beside images."""
        assert self._results is not None
        results, order = self._results, np.argsort(self._rows, kind="stable")
        results.sort(order)
        columns: Columns = {"row": np.array(self._rows)[order], "heldout": np.array(self._heldout)[order]}
        columns |= read_columns(self.dataset.path, columns["row"])
        if "halfwidth" in results.file:
            images = {name: StoredImages(data) for name, data in results.file.items()}
            wide = results.create("flagged", images["halfwidth"].shape, np.uint8)
            columns["n_flagged"] = np.zeros(len(order), np.int64)
            parts = by_id(columns) if self._png else by_volume(columns)
            for rows, pixels in flagged(columns | images, parts, self.flag):
                columns["n_flagged"][rows] = pixels.sum((1, 2, 3), dtype=np.int64)
                for row, one in zip(rows, pixels, strict=True):
                    wide[row] = one
        for name, column in columns.items():
            results.file.create_dataset(name, data=column, fletcher32=column.dtype.kind != "O")  # HDF5 can't check free text
        results.close()
        self._results = None
        return columns

    def _volumes(self, columns: Columns) -> Iterator[tuple[str, list[Write]]]:
        writers = (self._write_nifti, self._dicom.write) if self._dicom else (self._write_nifti,)
        for name, chosen in by_volume(columns).items():
            yield name, [partial(self._write_volume, writer, name, columns, chosen) for writer in writers]

    def _write_volume(self, writer: Callable[[Volume], None], name: str, columns: Columns, chosen: Rows) -> None:
        writer(self._volume(name, columns, chosen))

    def _images(self, columns: Columns) -> Iterator[tuple[str, list[Write]]]:
        for name, (row,) in by_id(columns).items():
            writes = [self._write_png, self._write_wide] if "halfwidth" in columns else [self._write_png]
            yield name, [partial(write, name, columns, row) for write in writes]

    def _write_png(self, name: str, columns: Columns, row: int) -> None:
        assert self._png is not None
        self._png.write(name, (columns["reconstruction"][row], columns["spread"][row]), *columns["scale"][row])

    def _write_wide(self, name: str, columns: Columns, row: int) -> None:
        assert self._png is not None
        self._png.write_intervals(name, columns["halfwidth"][row], columns["flagged"][row], columns["scale"][row][0])

    def _volume(self, name: str, columns: Columns, chosen: Rows) -> Volume:
        """The volume of the rows `chosen`, which are in the order of slice numbers."""
        scale, offset = (column[:, None, None] for column in columns["scale"][chosen].T)
        images = {
            "reconstruction": (_magnitude(columns["reconstruction"][chosen]) * scale + offset).astype(np.float32),
            "spread": (_magnitude(columns["spread"][chosen]) * scale).astype(np.float32),  # a spread has no offset
        }
        images |= interval_volume(columns, chosen, scale)
        recorded, indices = recorded_planes(columns, chosen), columns["slice"][chosen]
        sourced = self._dicom is not None and self._dicom.source is not None
        placed = tuple(recorded) if sourced else volume_planes(recorded, indices, self.dataset.header.size)
        remarks = cut_values(columns, chosen, self._unit)
        return Volume(name, columns["subject"][chosen[0]].decode(), images, indices, placed, remarks)

    def _write_nifti(self, volume: Volume) -> None:
        placed = self._dicom.placed(volume) if self._dicom else volume
        places, affine = placed.grid()
        for name, values in placed.images.items():
            array = np.full((places.max() + 1, *placed.size), np.nan, np.float32)
            array[places] = values
            image = nib.Nifti1Image(array.transpose(2, 1, 0), affine)
            unscaled = any(plane.unscaled for plane in placed.geometries)
            image.header.set_xyzt_units("unknown" if unscaled and not placed.nominal else "mm")
            unit = f" in{self._unit}" if self._unit and name != "flagged" else ""
            assumed = (
                ", nominal orientation" + " and spacing" * unscaled if placed.nominal else ", pixel spacing unknown" * unscaled
            )
            if any(placed.remarks):
                said = [f"slice {k}: {text}" for k, text in zip(places, placed.remarks, strict=True) if text]
                image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", "\n".join(said).encode()))
            image.header["descrip"] = f"es_medical {name}{unit}, research only{assumed}"[:79]
            if not placed.nominal:
                image.set_sform(affine, code="scanner")
            with whole_or_not(self.folder / f"{volume.name}_{name}.nii.gz") as temporary:
                nib.save(image, temporary)


def _write_all(parts: Mapping[str, Sequence[Write]], what: str) -> dict[str, Exception]:
    """Write everything; return the parts that failed, each with its first error. A failure does not stop the others."""
    failed: dict[str, Exception] = {}
    for name, writes in parts.items():
        for write in writes:
            try:
                write()
            except Exception as error:  # of any kind
                logger.error("%s %s: %s", what, name, error)
                failed.setdefault(name, error)
    return failed


def _views(header: SliceHeader) -> int:
    """Number of views with any measured ray; 0 for k-space."""
    return int(header.mask.reshape(len(header.mask), -1).any(1).sum()) if header.modality == "CT" else 0


def _magnitude(images: Array) -> Array:
    return magnitude(torch.from_numpy(images))[:, 0].numpy()
