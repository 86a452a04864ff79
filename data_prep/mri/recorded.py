"""Recorded k-space (`--measurements real`): which volumes of a folder can be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from data_prep.mri.fastmri_file import FASTMRI_SIZE, Chosen, Coils, open_volume
from data_prep.mri.ismrmrd_file import is_ismrmrd, open_ismrmrd
from data_prep.mri.sampling import measured_extent
from data_prep.mri.volume import FastMRIVolume
from data_prep.run.manifest import PrepError, SkipError

if TYPE_CHECKING:
    from data_prep.mri.raw_volume import RawVolume

RecordedTarget = Literal["auto", "rss"]


@contextmanager
def open_raw(path: Path) -> Iterator[RawVolume]:
    """Opens a file in fastMRI's layout or an ISMRMRD raw file.

    Raises:
        SkipError: a slice file of es_medical.
        PrepError: the file can't be read, or is neither.
    """
    with open_volume(path) as file:
        if "schema" in file.attrs and "measurement" in file:
            raise SkipError("a slice file of es_medical, not raw data")
        raw = is_ismrmrd(path)
        if not raw:
            yield FastMRIVolume(file)
    if raw:
        with open_ismrmrd(path) as volume:
            yield volume


@dataclass(frozen=True)
class RecordedVolume:
    """A volume of recorded k-space that passed the checks of its header and its middle slice.

    Attributes:
        path: the file.
        name: its path below the source folder.
        digest: SHA-256 of its bytes.
        subject: patient identifier when the file has one, else the digest. Never stored as it is.
        slices: indices of the chosen slices.
        whole: whether these are all of the volume.
        recorded: (H, W) of the k-space grid.
        size: (H, W) of its reconstruction.
        coils: number of coils, 0 without a coil axis.
        encoded: first and one past the last column that was encoded; the others are zero-padded.
        mask: (W,) columns that were measured, or None for all that were encoded.
        target: what the ground truth is.
        note: what a user should know.
    """

    path: Path
    name: str
    digest: str
    subject: str
    slices: tuple[int, ...]
    whole: bool
    recorded: tuple[int, int]
    size: tuple[int, int]
    coils: int
    encoded: tuple[int, int]
    mask: tuple[bool, ...] | None
    target: str
    note: str = ""


def inspect_recorded(
    path: Path, name: str, digest: str, coils: Coils, chosen: Chosen, target: RecordedTarget
) -> RecordedVolume:
    """Checks a file by its header and its middle slice; the other slices are checked when they are taken.

    Raises:
        SkipError: a slice file of es_medical.
        PrepError: whatever keeps the file from being used.
    """
    with open_raw(path) as volume:
        _check_coils(volume, coils)
        middle = volume.n_slices // 2
        columns = measured_extent(volume.kspace(middle), volume.encoding.measured, volume.mask, middle).columns
        mask = volume.mask
        undersampled = mask is not None and not bool(np.all(mask[columns.start : columns.stop]))
        return RecordedVolume(
            path=path,
            name=name,
            digest=digest,
            subject=volume.subject or digest,
            slices=(middle,) if chosen == "middle" else tuple(range(volume.n_slices)),
            whole=chosen == "all" or volume.n_slices == 1,
            recorded=volume.size,
            size=volume.encoding.size or FASTMRI_SIZE,
            coils=volume.coils,
            encoded=(columns.start, columns.stop),
            mask=tuple(bool(one) for one in mask) if mask is not None and undersampled else None,
            target="none (undersampled)" if undersampled else _target(volume.coils, target),
            note=volume.note,
        )


def _check_coils(volume: RawVolume, coils: Coils) -> None:
    if bool(volume.coils) != (coils == "multi"):
        found, other = (f"multi-coil ({volume.coils} coils)", "multi") if volume.coils else ("single-coil", "single")
        raise PrepError(f"kspace is {found}, expected {coils}-coil: give --coils {other} for such files")


def _target(coils: int, target: RecordedTarget) -> str:
    """Name of the ground truth, always made from the recorded k-space."""
    if not coils:
        return "image of kspace"
    return "rss of kspace" if target == "rss" else "coil-combined image of kspace"
