"""Turn a magnitude image into a stored slice: crop or pad, normalise, and simulate its k-space once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from data_prep.mri.options import Normalisation
from data_prep.run.manifest import PrepError
from es_medical.data import SliceHeader, SliceRecord
from es_medical.data.geometry import Geometry
from es_medical.physics import MRI, MultiCoilMRI, gaussian_line_mask, measure
from es_medical.randomness import item_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray


def crop_or_pad(x: NDArray, size: tuple[int, int]) -> NDArray:
    """Crop or zero-pad an image (..., H, W) about its origin: index n//2 maps to N//2 of each axis.

    >>> crop_or_pad(np.arange(5.0)[None], (1, 3))
    array([[1., 2., 3.]])
    >>> crop_or_pad(np.arange(3.0)[None], (1, 5))
    array([[0., 0., 1., 2., 0.]])
    """
    y = np.zeros((*x.shape[:-2], *size), x.dtype)
    (rows_y, rows_x), (columns_y, columns_x) = (_overlap(n, m) for n, m in zip(x.shape[-2:], size, strict=True))
    y[..., rows_y, columns_y] = x[..., rows_x, columns_x]
    return y


def _overlap(n: int, m: int) -> tuple[slice, slice]:
    """Overlap of an axis of length n with one of length m, origins aligned, as (slice of m, slice of n)."""
    start = n // 2 - m // 2  # index of x that lands on index 0 of y
    length = min(n, m, n - start, m + start)
    return slice(max(-start, 0), max(-start, 0) + length), slice(max(start, 0), max(start, 0) + length)


@dataclass(frozen=True)
class VolumeRange:
    """Smallest and largest value of a volume, in its raw units."""

    minimum: float
    maximum: float


def normalise(x: NDArray, volume: VolumeRange, by: Normalisation) -> tuple[NDArray, float, float]:
    """Min-max normalisation to [0, 1]: stored = (x - offset) / scale, so x = stored * scale + offset.

    Args:
        x: magnitude image in raw units.
        volume: range of its volume.
        by: ``slice`` (the paper's data) or ``volume``.

    Returns:
        stored image in double precision, scale, offset.

    Raises:
        PrepError: the image is constant, so its range is zero.

    >>> normalise(np.array([[2e-5, 4e-5]]), VolumeRange(0.0, 4e-5), "slice")
    (array([[0., 1.]]), 2e-05, 2e-05)
    """
    x = x.astype(np.float64)
    low, high = (x.min(), x.max()) if by == "slice" else (volume.minimum, volume.maximum)
    if not high > low:
        raise PrepError(f"constant image (every value is {low:g})")
    return (x - low) / (high - low), float(high - low), float(low)


@dataclass(frozen=True)
class Acquisition:
    """The simulated acquisition that all slices of a file share.

    Attributes:
        size: (H, W) of the images.
        acceleration: width / number of measured lines.
        center_fraction: fraction of the lines that are measured in the centre.
        sigma: standard deviation of the noise on each real and imaginary part, for images in [0, 1].
        seed: seed of the noise, and of the mask where `mask_seed` is None.
        with_image: False stores no ground truth, and no number derived from it but the scale.
        mask_seed: seed of the mask.
    """

    size: tuple[int, int]
    acceleration: float
    center_fraction: float
    sigma: float
    seed: int
    with_image: bool = True
    mask_seed: int | None = None
    mask: Tensor = field(init=False, compare=False)

    def __post_init__(self) -> None:
        mask_seed = self.seed if self.mask_seed is None else self.mask_seed
        mask = gaussian_line_mask(self.size[1], self.acceleration, self.center_fraction, mask_seed)
        object.__setattr__(self, "mask", mask)

    def header(self) -> SliceHeader:
        """The header of a slice file with this acquisition."""
        return SliceHeader(
            sigma=self.sigma,
            mask=self.mask,
            acceleration=self.acceleration,
            center_fraction=self.center_fraction,
            seed=self.seed,
        )

    def record(
        self,
        x: NDArray,
        volume: VolumeRange,
        by: Normalisation,
        key: str,
        subject: str,
        split: str,
        place: Geometry,
        index: int,
        phase: NDArray | None = None,
        maps: Tensor | None = None,
    ) -> SliceRecord:
        """Normalise a magnitude image and simulate y = M F x + noise; the noise depends on (seed, key) alone.

        `phase` (H, W) in radians makes the image complex; with sensitivity `maps` (2, C, H, W) each coil sees S_c x.

        Raises:
            PrepError: the image is constant.
        """
        stored, scale, offset = normalise(x, volume, by)
        parts = (stored, np.zeros_like(stored)) if phase is None else (stored * np.cos(phase), stored * np.sin(phase))
        image = torch.from_numpy(np.stack(parts)).float()  # (2, H, W)
        physics = MRI(self.mask, self.size) if maps is None else MultiCoilMRI(self.mask, maps[None])
        generator = item_generator(self.seed, key, "acquisition")
        measurement = measure(physics, image[None], self.sigma, [generator])[0]  # (2, H, W) or (2, C, H, W)
        return SliceRecord(
            measurement=measurement,
            image=image if self.with_image else None,
            maps=maps,
            id=key,
            subject=subject,
            split=split,
            scale=scale,
            offset=offset,
            spacing=place.spacing,
            data_range=(volume.maximum - offset) / scale if self.with_image else float("nan"),
            slice=index,
            position=place.position,
            orientation=place.orientation,
            slice_spacing=place.slice_spacing,
        )
