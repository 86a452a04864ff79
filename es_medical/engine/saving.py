"""Reconstructions on the disk: one HDF5 file, and a NIfTI volume for each subject."""

import logging
import os
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np
import numpy.typing as npt
import torch
from ignite.engine import Engine, Events

from es_medical.data import SliceDataset
from es_medical.metrics import magnitude

logger = logging.getLogger(__name__)

Array = npt.NDArray[np.float32]


class SaveReconstructions:
    """Handler of an `Evaluator` that writes what it reconstructs.

    `reconstructions.h5`: `reconstruction` and `spread` (N, 2, H, W) in stored units, `id`, `subject`, `slice`, `scale`
    (raw = stored * scale + offset) and `heldout` (N,). `<subject>_reconstruction.nii.gz` and `<subject>_spread.nii.gz`:
    magnitudes in raw units (W, H, slices) with the pixel spacing of the source; the orientation of the patient is not in
    a slice file, so x runs along the columns to the left and y along the rows to the back.

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
        subjects = np.array([subject.decode() for subject in columns["subject"]])
        for subject in np.unique(subjects):
            chosen = np.flatnonzero(subjects == subject)
            self._write_nifti(subject, {name: column[chosen] for name, column in columns.items()})
        logger.info("%d slices of %d volumes reconstructed: see %s", len(rows), len(np.unique(subjects)), self.folder)

    def _write_hdf5(self, columns: dict[str, Any]) -> None:
        target = self.folder / "reconstructions.h5"
        temporary = target.with_name(f".{target.name}.partial")
        with h5py.File(temporary, "w") as file:
            for name, column in columns.items():
                file[name] = column
        os.replace(temporary, target)  # noqa: PTH105 - the atomic rename

    def _write_nifti(self, subject: str, columns: dict[str, Any]) -> None:
        order = np.argsort(columns["slice"], kind="stable")
        scale, offset = columns["scale"][order].T
        row_spacing, column_spacing = np.nan_to_num(columns["spacing"][0], nan=1.0)
        affine = np.diag([-column_spacing, -row_spacing, 1.0, 1.0])
        for name, shift in (("reconstruction", offset), ("spread", np.zeros_like(offset))):
            volume = _magnitude(columns[name][order]) * scale[:, None, None] + shift[:, None, None]
            target = self.folder / f"{subject}_{name}.nii.gz"
            temporary = target.with_name(f".partial_{target.name}")
            nib.save(nib.Nifti1Image(volume.astype(np.float32).transpose(2, 1, 0), affine), temporary)
            os.replace(temporary, target)  # noqa: PTH105


def _magnitude(images: Array) -> Array:
    return magnitude(torch.from_numpy(images))[:, 0].numpy()
