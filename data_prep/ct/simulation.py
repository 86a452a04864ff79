"""Turn slices in [0, 1] into stored records: simulate the sinogram of each once, several slices per matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from data_prep.ct.slice import OFFSET, SCALE, Prepared
from es_medical.data import SliceHeader, SliceRecord
from es_medical.randomness import item_generator

if TYPE_CHECKING:
    from es_medical.physics.ct import CT
    from es_medical.physics.transmission import Transmission

BATCH = 16  # slices per sparse matrix product: four times as fast as one by one
ALIKE = 8  # slices that a product rounds alike: batches are filled up to it, so that no slice depends on its neighbours


class Labelled(NamedTuple):
    """A slice with its salted hashes, its split and its index in the series."""

    prepared: Prepared
    id: str
    subject: str
    split: str
    number: int
    volume: str


@dataclass(frozen=True)
class Scanner:
    """The simulated scanner that all slices of a file share: parallel beam, of unit norm.

    Attributes:
        size: rows and columns of the image.
        views: number of views, evenly spaced over 180 degrees.
        sigma: standard deviation of the noise on each sample of the sinogram, for images in [0, 1].
        seed: seed of the noise.
        with_image: False stores no ground truth.
        photons: photons on a ray through air: sinograms are then logarithms of Poisson counts, and sigma is not used.
    """

    size: int
    views: int
    sigma: float
    seed: int
    with_image: bool = True
    photons: float | None = None

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: another process makes the operator sooner than it would receive it."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def physics(self) -> CT:
        """The operator A / |A|."""
        from es_medical.physics.ct import CT
        from es_medical.physics.ct_matrix import ParallelBeam

        return CT(ParallelBeam((self.size, self.size), n_views=self.views))

    @property
    def shape(self) -> tuple[int, int]:
        """Views and detectors of a sinogram."""
        return self.physics.geometry.shape

    @cached_property
    def transmission(self) -> Transmission | None:
        """The model of photon counts; None if `photons` is None."""
        from es_medical.physics.transmission import Transmission

        return None if self.photons is None else Transmission.of_field(self.photons, float(self.physics.norm), self.size)

    def header(self) -> SliceHeader:
        """The header of the file."""
        return SliceHeader(
            sigma=self.sigma if self.transmission is None else math.nan,
            mask=torch.ones(self.shape[0], dtype=torch.bool),
            seed=self.seed,
            modality="CT",
            operator=self.physics.geometry.to_dict() | self._counted(),
        )

    def records(self, slices: Sequence[Labelled]) -> Iterator[SliceRecord]:
        """Simulate y = A x + noise for several slices at once; the noise of each depends on (seed, id) alone."""
        filled = [*slices, *[slices[-1]] * (-len(slices) % ALIKE)]
        images = torch.stack([item.prepared.image for item in filled])  # (B, 1, H, W)
        generators = [item_generator(self.seed, item.id, "acquisition") for item in filled]
        sinograms, levels = self._scan(images, generators)
        for item, image, sinogram, level in zip(slices, images, sinograms, levels, strict=False):
            place = item.prepared.place
            yield SliceRecord(
                measurement=sinogram,
                image=image if self.with_image else None,
                id=item.id,
                subject=item.subject,
                split=item.split,
                scale=SCALE,
                offset=OFFSET,
                spacing=place.spacing,
                data_range=1.0 if self.with_image else math.nan,
                slice=item.number,
                position=place.position,
                orientation=place.orientation,
                slice_spacing=place.slice_spacing,
                volume=item.volume,
                sigma=level,
                clipped=item.prepared.clipped,
            )

    def _counted(self) -> dict[str, object]:
        """What the file stores about photons, in addition to the geometry."""
        from es_medical.physics.transmission import COUNTED

        return {} if self.transmission is None else {COUNTED: self.transmission.to_dict()}

    def _scan(self, images: Tensor, generators: list[torch.Generator]) -> tuple[Tensor, list[float]]:
        """Sinograms (B, 1, V, D) of images (B, 1, H, W), and the noise level of each (NaN if it is that of the file)."""
        from es_medical.physics import measure

        if self.transmission is None:
            return measure(self.physics, images, self.sigma, generators), [math.nan] * len(images)
        clean = self.physics.A(images.double())  # in single precision, rounding depends on the batch and could change a count
        counts = self.transmission.sample(clean, generators)
        return self.transmission.post_log(counts), self.transmission.noise_level(counts).tolist()
