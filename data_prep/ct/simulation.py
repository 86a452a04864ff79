"""From slices in [0, 1] to stored records: the sinogram of each, simulated once, a few slices in one product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

BATCH = 16  # slices in one sparse product, which takes them at four times the speed of single ones


class Labelled(NamedTuple):
    """A slice with what identifies it: salted hashes and its place in its series."""

    prepared: Prepared
    id: str
    subject: str
    split: str
    number: int
    volume: str


@dataclass(frozen=True)
class Scanner:
    """The one scanner that all slices of a file go through: parallel beam, of unit norm.

    Attributes:
        size: rows and columns of the image.
        views: number of views, evenly spaced over 180 degrees.
        sigma: standard deviation of the noise on each sample of the sinogram, for images in [0, 1].
        seed: seed of the noise.
        with_image: False stores no ground truth.
        photons: on a ray through air: sinograms are then the logarithm of counts, in place of noise of level sigma.
    """

    size: int
    views: int
    sigma: float
    seed: int
    with_image: bool = True
    photons: float | None = None

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
        """How photons are counted; None where they are not."""
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
        """Simulates y = A x + noise for some slices at once, the noise of each drawn from (seed, id) alone."""
        images = torch.stack([one.prepared.image for one in slices])  # (B, 1, H, W)
        generators = [item_generator(self.seed, one.id, "acquisition") for one in slices]
        sinograms, levels = self._scan(images, generators)
        for one, image, sinogram, level in zip(slices, images, sinograms, levels, strict=True):
            place = one.prepared.place
            yield SliceRecord(
                measurement=sinogram,
                image=image if self.with_image else None,
                id=one.id,
                subject=one.subject,
                split=one.split,
                scale=SCALE,
                offset=OFFSET,
                spacing=place.spacing,
                data_range=1.0 if self.with_image else math.nan,
                slice=one.number,
                position=place.position,
                orientation=place.orientation,
                slice_spacing=place.slice_spacing,
                volume=one.volume,
                sigma=level,
            )

    def _counted(self) -> dict[str, object]:
        """What the file states on photons, besides the geometry."""
        from es_medical.physics.transmission import COUNTED

        return {} if self.transmission is None else {COUNTED: self.transmission.to_dict()}

    def _scan(self, images: Tensor, generators: list[torch.Generator]) -> tuple[Tensor, list[float]]:
        """Sinograms (B, 1, V, D) of images (B, 1, H, W), and the noise level of each where it has its own, else NaN."""
        from es_medical.physics import measure

        if self.transmission is None:
            return measure(self.physics, images, self.sigma, generators), [math.nan] * len(images)
        clean = self.physics.A(images.double())  # a last digit that depends on the batch could move a photon
        counts = self.transmission.sample(clean, generators)
        return self.transmission.post_log(counts), self.transmission.noise_level(counts).tolist()
