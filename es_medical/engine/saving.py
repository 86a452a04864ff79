"""Reconstructions on the disk: one HDF5 file, and a NIfTI volume for each subject."""

import logging
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from ignite.engine import Engine, Events

from es_medical.data import SliceDataset
from es_medical.data.atomic import whole_or_not
from es_medical.metrics import magnitude

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.float32]


class SaveReconstructions:
    """Handler of an `Evaluator` that writes what it reconstructs.

    `reconstructions.h5`: `reconstruction` and `spread` (N, 2, H, W) in stored units, `id`, `subject`, `slice`, `scale`
    (raw = stored * scale + offset) and `heldout` (N,). `<subject>_reconstruction.nii.gz` and `<subject>_spread.nii.gz`
    (a second volume of a subject: `<subject>_2_...`): magnitudes in raw units (W, H, slices) with the pixel spacing of the
    source, every slice at its index in the volume, NaN where one is missing. Orientation and slice spacing are not in a
    slice file: x runs along the columns to the right (as in the demo), y along the rows to the back, slices are 1 mm apart.

    Args:
        output_dir: folder for the files.
        dataset: the slices that are reconstructed.
    """

    def __init__(self, output_dir: str | Path, dataset: SliceDataset) -> None:
        self.folder, self.dataset = Path(output_dir), dataset
        self._rows: list[dict[str, Any]] = []

    def attach(self, engine: Engine) -> None:
        """Collect each batch and write at the end."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._collect)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _collect(self, engine: Engine) -> None:
        result: Any = engine.state.output  # what Evaluator._iteration returns
        batch: Any = engine.state.batch
        for i, row in enumerate(batch["index"].tolist()):
            images = {"reconstruction": result.image[i], "spread": result.spread[i]}
            arrays = {name: image.cpu().numpy() for name, image in images.items()}
            self._rows.append({"row": row, "heldout": float(result.heldout[i])} | arrays)

    def _write(self, engine: Engine) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        rows, self._rows = sorted(self._rows, key=lambda one: one["row"]), []
        columns = {name: np.stack([one[name] for one in rows]) for name in rows[0]}
        with h5py.File(self.dataset.path, "r") as file:
            for name in ("id", "subject", "slice", "scale", "spacing"):
                columns[name] = file[name][()][columns["row"]]
        self._write_hdf5(columns)
        volumes = volume_names([one.decode() for one in columns["subject"]], columns["slice"].tolist())
        for name in sorted(set(volumes)):
            chosen = np.flatnonzero(np.array(volumes) == name)
            self._write_nifti(name, {key: column[chosen] for key, column in columns.items()})
        logger.info(
            "%d slices of %d volumes reconstructed: see %s (NIfTI slices are 1 mm apart: slice files hold no slice spacing)",
            *(len(rows), len(set(volumes)), self.folder),
        )

    def _write_hdf5(self, columns: dict[str, Any]) -> None:
        with whole_or_not(self.folder / "reconstructions.h5") as temporary, h5py.File(temporary, "w") as file:
            for name, column in columns.items():
                file[name] = column

    def _write_nifti(self, volume_name: str, columns: dict[str, Any]) -> None:
        scale, offset = (column[:, None, None] for column in columns["scale"].T)
        positions = columns["slice"] - columns["slice"].min()
        row_spacing, column_spacing = np.nan_to_num(columns["spacing"][0], nan=1.0)
        affine = np.diag([column_spacing, -row_spacing, 1.0, 1.0])
        for name, shift in (("reconstruction", offset), ("spread", np.zeros_like(offset))):
            values = _magnitude(columns[name]) * scale + shift
            volume = np.full((positions.max() + 1, *values.shape[1:]), np.nan, np.float32)
            volume[positions] = values
            image = nib.Nifti1Image(volume.transpose(2, 1, 0), affine)
            image.header.set_xyzt_units("mm")
            image.header["descrip"] = f"es_medical {name}, research only"
            with whole_or_not(self.folder / f"{volume_name}_{name}.nii.gz") as temporary:
                nib.save(image, temporary)


def volume_names(subjects: list[str], slices: list[int]) -> list[str]:
    """Name the volume of each slice: its subject, and a number from the second volume of a subject on.

    Another volume of a subject begins where an index comes again.

    >>> volume_names(["a", "a", "b", "a", "a"], [3, 4, 3, 3, 4])
    ['a', 'a', 'b', 'a_2', 'a_2']
    """
    counts: dict[str, int] = {}
    seen: dict[str, set[int]] = {}
    names = []
    for subject, index in zip(subjects, slices, strict=True):
        if subject not in seen or index in seen[subject]:
            counts[subject], seen[subject] = counts.get(subject, 0) + 1, set()
        seen[subject].add(index)
        names.append(subject if counts[subject] == 1 else f"{subject}_{counts[subject]}")
    return names


def _magnitude(images: Array) -> Array:
    return magnitude(torch.from_numpy(images))[:, 0].numpy()
