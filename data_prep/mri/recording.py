"""Turn recorded k-space into a stored slice: one grid, one mask, the noise level, and a scale that needs no ground truth.

A stored measurement uses nothing that an undersampled scan lacks: the scale, the coil compression and the sensitivity maps
come from the central lines that the mask measures (the ACS block).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_prep.mri.coils import apply, combine, compression_matrix, rss, sensitivity_maps
from data_prep.mri.noise import estimate_sigma, noise_covariance, whitening_matrix
from data_prep.mri.recorded import RawVolume, RecordedVolume, leaves_out, open_raw
from data_prep.mri.resample import Regrid
from data_prep.mri.sampling import Extent, measured_extent
from data_prep.run.manifest import PrepError
from data_prep.run.store import local
from es_medical.data import SliceHeader, SliceRecord
from es_medical.data.geometry import Geometry
from es_medical.physics.masks import center_block, line_counts
from es_medical.randomness import item_generator, normal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_prep.run.manifest import Pseudonyms

PER_COIL = (256, 128, 64)  # samples per coil for a covariance: fewer where signal extends far from the centre
UPPER_BOUND = "noise level of undersampled k-space is that of its edge, an upper bound: give --sigma if you know it"
PURE = 1.05  # largest ratio of the level of these samples to that of the noise; above it they hold signal


class Slice(NamedTuple):
    """One slice on its recorded grid, after prewhitening.

    Attributes:
        kspace: (H, W) or (C, H, W) complex64.
        sigma: standard deviation of the noise on each real and imaginary part.
        notes: what a user should know.
    """

    kspace: NDArray[np.complexfloating]
    sigma: float
    notes: tuple[str, ...]


class OnGrid(NamedTuple):
    """One slice on the grid of the file: k-space, image and sensitivity maps, (H, W) or (C, H, W), and the noise level."""

    kspace: NDArray[np.complexfloating]
    image: NDArray[np.complexfloating]
    sigma: float
    maps: NDArray[np.complexfloating] | None


@dataclass(frozen=True)
class Recording:
    """The preparation that all recorded slices of a file share.

    Attributes:
        size: (H, W) of the file's grid.
        mask: (W,) bool, the measured columns, or (H, W), the measured samples.
        acceleration: encoded columns / measured columns.
        center_fraction: share of the encoded columns in the fully sampled centre.
        encoded_lines: number of encoded columns.
        coils: virtual coils kept, 0 for single-coil data.
        seed: of the added noise.
        sigma: noise on each real and imaginary part of a recorded sample, in the file's units; None estimates it.
        added_noise: standard deviation of further noise on each part, in stored units.
        whiten: remove the noise correlation between coils (prewhitening).
        with_image: False stores no ground truth, and no number derived from it.
        target_rss: multi-coil ground truth by root sum of squares in place of the coil-combined image.
        fields: digest of a volume -> (h, w) recorded pixels that cover the file's grid; `size` for the others.
    """

    size: tuple[int, int]
    mask: Tensor
    acceleration: float
    center_fraction: float
    encoded_lines: int
    coils: int
    seed: int
    sigma: float | None = None
    added_noise: float = 0.0
    whiten: bool = True
    with_image: bool = True
    target_rss: bool = False
    fields: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def header(self) -> SliceHeader:
        """The header of the file; the noise level is stored with each slice."""
        return SliceHeader(
            sigma=math.nan,
            mask=self.mask,
            acceleration=self.acceleration,
            center_fraction=self.center_fraction,
            seed=self.seed,
            encoded_lines=self.encoded_lines,
        )

    @cached_property
    def center(self) -> tuple[int, int]:
        """Rows and columns of the block around zero frequency that is fully measured."""
        if self.mask.ndim == 2:
            return center_block(self.mask)
        return self.size[0], line_counts(self.encoded_lines, self.acceleration, self.center_fraction)[1]

    def regrid(self, volume: RecordedVolume) -> Regrid:
        """How slices of a volume come to the grid of the file."""
        return Regrid(volume.recorded, self.fields.get(volume.digest, self.size), self.size)

    def records(
        self, volume: RecordedVolume, indices: Sequence[int], split: str, pseudonyms: Pseudonyms
    ) -> Iterator[tuple[SliceRecord | None, tuple[str, ...]]]:
        """Read and prepare some slices of a volume, one at a time: a record (None for a blank slice) and notes.

        Raises:
            PrepError: a slice cannot be used; the message names it.
        """
        with local(volume.path, volume.digest) as path, open_raw(path, volume.layout) as raw:
            for i in indices:
                k = raw.kspace(i)
                if not k.any():
                    yield None, ("blank slices left out",)
                    continue
                extent = self._check(k, raw, volume, i)
                whitened = self._whitened(k, raw, extent)
                yield self._record(whitened, raw, volume, i, split, pseudonyms), whitened.notes

    def _check(self, k: NDArray, raw: RawVolume, volume: RecordedVolume, index: int) -> Extent:
        extent = measured_extent(k, raw.encoding.measured, raw.mask, index)
        if (extent.columns.start, extent.columns.stop) != volume.encoded:
            found, wanted = (f"{a} to {b - 1}" for a, b in (extent.columns, volume.encoded))
            raise PrepError(f"slice {index} was measured in columns {found}, the middle slice in {wanted}")
        if extent.rows.start > volume.rows[0] or extent.rows.stop < volume.rows[1]:
            raise PrepError(
                f"slice {index} was measured in rows {extent.rows.start} to {extent.rows.stop - 1}, the middle slice in "
                f"{volume.rows[0]} to {volume.rows[1] - 1}"
            )
        return extent

    def _whitened(self, k: NDArray[np.complexfloating], raw: RawVolume, extent: Extent) -> Slice:
        """Prewhiten the coils if their noise covariance is known or can be estimated, and find the noise level."""
        notes = []
        if raw.coils and self.whiten:
            try:
                k = apply(whitening_matrix(_covariance(k, raw, extent)), k).astype(k.dtype)
            except PrepError as error:
                notes.append(f"coils not whitened: {error}")
        if self.sigma is not None:
            return Slice(k, self.sigma, tuple(notes))
        estimate = estimate_sigma(k, extent)
        note = estimate.note or (UPPER_BOUND if leaves_out(raw.mask, extent.columns) else "")
        return Slice(k, estimate.sigma, (*notes, *([note] if note else [])))

    def _on_grid(self, whitened: Slice, regrid: Regrid) -> OnGrid:
        sigma = regrid.sigma(whitened.sigma)
        kspace, image = regrid.apply(whitened.kspace)
        if not self.coils:
            return OnGrid(kspace, image, sigma, None)
        n_center = self.center[1] if self.mask.ndim == 1 else min(self.center)
        matrix = compression_matrix(self._seen(kspace), self.coils, n_center)
        kspace, image = apply(matrix, kspace), apply(matrix, image)
        return OnGrid(kspace, image, sigma, sensitivity_maps(self._seen(kspace), n_center, sigma))

    def _seen(self, kspace: NDArray[np.complexfloating]) -> NDArray[np.complexfloating]:
        """K-space without what a mask of samples leaves out; a mask of lines measures all of the central columns."""
        return kspace * self.mask.numpy() if self.mask.ndim == 2 else kspace

    def _record(
        self, whitened: Slice, raw: RawVolume, volume: RecordedVolume, index: int, split: str, pseudonyms: Pseudonyms
    ) -> SliceRecord:
        regrid = self.regrid(volume)
        grid = self._on_grid(whitened, regrid)
        scale = self.scale(grid.kspace)
        key = pseudonyms.of("slice", volume.digest, index)
        measured = _channels(grid.kspace).mul_(self.mask / scale)
        if self.added_noise:
            measured += (
                self.added_noise
                * normal(tuple(measured.shape), item_generator(self.seed, key, "acquisition"), "cpu")
                * self.mask
            )
        target = self._target(grid) if self.with_image else None
        image = None if target is None else _channels(target).div_(scale)
        plane = raw.geometry(index) or Geometry(spacing=raw.encoding.pixel, slice_spacing=raw.encoding.slice_thickness)
        plane = regrid.plane(plane)
        return SliceRecord(
            measurement=measured,
            image=image,
            id=key,
            subject=pseudonyms.of("subject", volume.subject),
            split=split,
            scale=scale,
            spacing=plane.spacing,
            slice=index,
            maps=None if grid.maps is None else _channels(grid.maps),
            sigma=math.hypot(grid.sigma / scale, self.added_noise),
            peak=1.0 if target is None else float(torch.hypot(*_channels(target[_nearly_largest(target)]) / scale).max()),
            position=plane.position,
            orientation=plane.orientation,
            slice_spacing=plane.slice_spacing,
            volume=pseudonyms.of("volume", volume.digest),
        )

    def scale(self, kspace: NDArray[np.complexfloating]) -> float:
        """Maximum of the image of the fully measured centre alone (root sum of squares over coils): raw = stored * scale.

        Raises:
            PrepError: the centre is zero.
        """
        top, left = (n // 2 - own // 2 for n, own in zip(self.size, self.center, strict=True))
        block = torch.from_numpy(kspace[..., top : top + self.center[0], left + np.arange(self.center[1])])
        low = torch.fft.ifft(block, n=self.size[0], dim=-2, norm="ortho")  # shifts of k-space only change the phase here
        low = torch.fft.ifft(low, n=self.size[1], dim=-1, norm="ortho")
        if self.coils:  # squares could underflow or overflow in single precision
            value = float(torch.linalg.vector_norm(low.abs().double(), dim=0).max())
        else:
            value = float(low[torch.from_numpy(_nearly_largest(low.numpy()))].abs().max())
        if not 0 < value < math.inf:
            raise PrepError(f"the image of the central lines has the maximum {value:g}: it cannot be used as the scale")
        return value

    def _target(self, grid: OnGrid) -> NDArray:
        if grid.maps is None:
            return grid.image
        return rss(grid.image) if self.target_rss else combine(grid.image, grid.maps)


def _covariance(k: NDArray[np.complexfloating], raw: RawVolume, extent: Extent) -> NDArray[np.complexfloating]:
    """Noise covariance between coils: from a noise scan, else from the edge of k-space if that holds only noise."""
    if raw.noise_covariance is not None:
        return raw.noise_covariance
    estimate = estimate_sigma(k, extent)
    for per_coil in PER_COIL if estimate.reliable else ():
        covariance = noise_covariance(k, extent, per_coil)
        if math.sqrt(np.trace(covariance).real / len(k)) <= PURE * estimate.sigma:
            return covariance
    raise PrepError("no noise scan, and the edge of k-space holds more than noise")


def _nearly_largest(x: NDArray) -> NDArray[np.bool_]:
    """Where the modulus is nearly the largest one, or that one: torch's moduli, which are exact, take ten times as long."""
    moduli = np.abs(x)
    largest = moduli.max()
    return moduli >= largest * (1 - 1e-5) if np.isfinite(largest) else np.ones(x.shape, bool)


def _channels(x: NDArray) -> Tensor:
    """(..., H, W) complex or real to (2, ..., H, W) float32: real and imaginary part."""
    parts = torch.from_numpy(x)
    return torch.stack([parts.real, parts.imag] if x.dtype.kind == "c" else [parts, torch.zeros_like(parts)]).float()
