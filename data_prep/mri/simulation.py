"""Prepare the paper's synthetic setting: magnitude ground truth, and k-space simulated once with one mask.

The ground truth is the magnitude reconstruction, min-max normalised, with zero imaginary part; the measurement is its
undersampled k-space plus noise (paper, "Details about the experiments").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from data_prep.mri.coils import rss
from data_prep.mri.fastmri_file import (
    COILS_OF_RANK,
    RECONSTRUCTIONS,
    CheckedVolume,
    check_not_empty,
    kspace_shape,
    named,
    open_volume,
    patient,
    read_kspace,
    read_numbers,
    reconstructed_size,
    scalar,
    shape_of,
)
from data_prep.mri.ismrmrd_header import Encoding, parse_header
from data_prep.mri.normalisation import Acquisition, VolumeRange, crop_or_pad
from data_prep.mri.options import Chosen, Coils, Normalisation, Target
from data_prep.mri.resample import Regrid
from data_prep.mri.sampling import check_fully_sampled
from data_prep.run.manifest import PrepError, SkipError
from data_prep.run.store import local
from es_medical.data import SliceRecord
from es_medical.data.geometry import Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_prep.run.manifest import Pseudonyms

COMPUTED = {"single": "ifft(kspace)", "multi": "rss(ifft(kspace))"}


@dataclass(frozen=True)
class Wanted:
    """What each file is expected to hold, and which slices to take."""

    coils: Coils = "single"
    target: Target = "auto"
    slices: Chosen = "middle"


@dataclass(frozen=True, kw_only=True)
class Volume(CheckedVolume):
    """A volume whose ground truth is a magnitude image.

    Attributes:
        range: smallest and largest value of the whole target volume, in raw units.
        spacing: row and column spacing in mm, NaN where unknown.
    """

    range: VolumeRange
    spacing: tuple[float, float]


@dataclass(frozen=True)
class Simulation(Acquisition):
    """The simulated acquisition that all slices of a file share.

    Attributes:
        by: whether images are normalised by the range of the slice or of the volume.
        fields: digest of a volume -> (h, w) of its pixels that cover an image; `size` for the others.
    """

    by: Normalisation = "slice"
    fields: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    coils = 0

    def records(
        self, volume: Volume, indices: Sequence[int], split: str, pseudonyms: Pseudonyms
    ) -> Iterator[tuple[SliceRecord, tuple[str, ...]]]:
        """Normalise some slices of a volume and simulate their measurements, one at a time.

        Raises:
            PrepError: a slice cannot be used; the message names it.
        """
        subject = pseudonyms.of("subject", volume.subject)
        regrid = Regrid(volume.size, self.fields.get(volume.digest, self.size), self.size)
        with local(volume.path, volume.digest) as path, open_volume(path) as file:
            for i in indices:
                x = self._image(read_target(file, volume.target, i, volume.size), regrid)
                key = pseudonyms.of("slice", volume.digest, i)
                place = regrid.plane(Geometry(spacing=volume.spacing))
                record = self.record(x, volume.range, self.by, key, subject, split, place, i)
                yield record._replace(volume=pseudonyms.of("volume", volume.digest)), ()

    def _image(self, x: NDArray[np.floating], regrid: Regrid) -> NDArray[np.floating]:
        """The magnitude image on the grid of the file; other pixels are resampled through k-space."""
        if regrid.field == regrid.size:
            return crop_or_pad(x, regrid.size)
        wrapped = np.fft.fft2(np.fft.ifftshift(x, (-2, -1)).astype(np.complex128), norm="ortho")
        return np.abs(regrid.apply(np.fft.fftshift(wrapped, (-2, -1))).image)


def inspect(path: Path, name: str, digest: str, wanted: Wanted) -> Volume:
    """Check a file slice by slice and decide what will be taken from it; one slice is in memory at a time.

    Raises:
        SkipError: the mask is undersampled and there is no reconstruction, or it is a slice file of es_medical.
        PrepError: the file cannot be used for any other reason.
    """
    with open_volume(path) as file:
        n = _check_kspace(file, wanted.coils)
        encoding = parse_header(scalar(file, "ismrmrd_header"))
        target = _target(file, wanted)
        if encoding.partitions > 1 and target not in RECONSTRUCTIONS:
            raise PrepError(f"3-D with {encoding.partitions} partitions and no reconstruction: give --measurements real")
        size = _check_target(file, target, n, encoding)
        extremes = [_extremes(file, target, i, size) for i in range(n)]
        nearest = min(range(n), key=lambda i: (not extremes[i][1] > extremes[i][0], abs(i - n // 2), i))
        chosen = (nearest,) if wanted.slices == "middle" else tuple(range(n))
        padding = _check_samples(file, target, n, chosen, encoding)
        subject = patient(file) or digest
    varied = tuple(i for i in chosen if extremes[i][1] > extremes[i][0])
    if not varied:
        raise PrepError(f"every chosen slice is constant (slice {chosen[0]}: {extremes[chosen[0]][0]:g})")
    low, high = min(e[0] for e in extremes), max(e[1] for e in extremes)
    left_out = f"{len(chosen) - len(varied)} constant slices left out" if len(varied) < len(chosen) else ""
    if wanted.slices == "middle" and nearest != n // 2:
        left_out = f"middle slice {n // 2} is constant: slice {nearest} is taken"
    note = "; ".join(part for part in (left_out, padding) if part)
    return Volume(
        path=path,
        name=name,
        digest=digest,
        subject=subject,
        slices=varied,
        size=size,
        target=target,
        note=note,
        range=VolumeRange(low, high),
        spacing=encoding.spacing,
    )


def _extremes(file: h5py.File, target: str, index: int, size: tuple[int, int]) -> tuple[float, float]:
    x = read_target(file, target, index, size)
    return float(x.min()), float(x.max())


def _target(file: h5py.File, wanted: Wanted) -> str:
    keys = RECONSTRUCTIONS if wanted.target == "auto" else (f"reconstruction_{wanted.target}",)
    for key in keys:
        if key in file:
            return key
    if wanted.target != "auto":
        raise PrepError(f"no dataset {keys[0]} (found: {named(file)})")
    if "mask" in file and not (read_numbers(file, "mask") == 1).all():
        raise SkipError("undersampled (stored mask, no reconstruction): no ground truth to simulate measurements from")
    return COMPUTED[wanted.coils]


def _check_target(file: h5py.File, target: str, n: int, encoding: Encoding) -> tuple[int, int]:
    """(H, W) of a stored target; for a computed one the size in the header, else fastMRI's 320 x 320."""
    if target not in RECONSTRUCTIONS:
        return reconstructed_size(encoding, shape_of(file, "kspace")[-2:])
    shape = shape_of(file, target)
    if len(shape) != 3 or shape[0] != n or 0 in shape:
        raise PrepError(f"{target} has shape {shape}, expected (slices, rows, columns) with {n} slices as kspace")
    return int(shape[1]), int(shape[2])


def _check_samples(file: h5py.File, target: str, n: int, chosen: tuple[int, ...], encoding: Encoding) -> str:
    """Raise PrepError for k-space with NaN, or undersampled k-space as ground truth; return a note on padding."""
    if target not in RECONSTRUCTIONS:
        return check_fully_sampled((read_kspace(file, i) for i in range(n)), encoding.measured)
    for i in chosen:
        read_kspace(file, i)
    return ""


def _check_kspace(file: h5py.File, coils: Coils) -> int:
    """Number of slices; raises PrepError if the rank of k-space does not match `coils`."""
    shape = kspace_shape(file)
    kind = COILS_OF_RANK.get(len(shape))
    if kind != coils:
        found, hint = (f"{kind}-coil", f": give --coils {kind} for such files") if kind else (f"rank {len(shape)}", "")
        raise PrepError(f"kspace of shape {shape} is {found}, expected {coils}-coil{hint}")
    check_not_empty(shape)
    return int(shape[0])


def read_target(file: h5py.File, target: str, index: int, size: tuple[int, int]) -> NDArray[np.floating]:
    """One slice of the ground truth, (H, W), in raw units, cropped or padded to `size` in the image domain."""
    if target not in RECONSTRUCTIONS:
        return crop_or_pad(magnitude(read_kspace(file, index)), size)
    x = read_numbers(file, target, index)
    if np.iscomplexobj(x):
        x = np.abs(x)
    if x.min() < 0:
        raise PrepError(f"{target} slice {index} has negative values (down to {x.min():g}): not a magnitude image")
    return crop_or_pad(x, size)


def magnitude(k: NDArray[np.complexfloating]) -> NDArray[np.floating]:
    """|F^-1 k|, root sum of squares over coils if there are any; F centred and orthonormal, origin n//2.

    >>> round(float(magnitude(np.full((4, 6), 1 / np.sqrt(24), np.complex64))[2, 3]), 6)
    1.0
    """
    axes = (-2, -1)
    x = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(k, axes), axes=axes, norm="ortho"), axes)  # (..., H, W)
    return np.abs(x) if x.ndim == 2 else rss(x)
