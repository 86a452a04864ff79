"""Slices of synthetic images, measured as those of a given slice file: same operator, masks, coils, sizes and noise levels."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from es_medical.data import Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter, file_digest, read_header
from es_medical.engine.operators import operator_of
from es_medical.physics import Operator
from es_medical.physics.base import measure
from es_medical.physics.transmission import COUNTED, Transmission
from es_medical.randomness import item_generator
from es_medical.synthetic import draw

BLOCK = 32  # slices made at a time; what a slice holds does not depend on it
SYNTHETIC = "synthetic_images"
"""Entry of a slice file's configuration that marks its images as synthetic: their kind."""


@dataclass(frozen=True)
class Likeness:
    """A slice file whose acquisition synthetic slices share.

    Attributes:
        path: the slice file.
        header: its header.
        physics: its operator.
        kind: kind of the synthetic images (see `es_medical.synthetic`).
        seed: seed of images and noise.
    """

    path: Path
    header: SliceHeader
    physics: Operator
    kind: str
    seed: int

    @classmethod
    def of(cls, path: str | Path, kind: str = "auto", seed: int = 0) -> "Likeness":
        """Read a slice file.

        Args:
            path: the slice file; its images, if any, are not read.
            kind: kind of the synthetic images; "auto" chooses it by modality and operator (see `kind_for`).
            seed: seed of images and noise.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: not a slice file, or an unknown kind of operator.
        """
        header = read_header(path)
        return cls(Path(path), header, operator_of(str(path)), kind_for(header) if kind == "auto" else kind, seed)

    @property
    def shapes(self) -> Shapes:
        """Shapes of a measurement, an image and the mask: those of the file."""
        header = self.header
        if header.modality == "MR":
            return Shapes.kspace(header.size, header.coils)
        if header.modality == "CT":
            return Shapes.sinogram(header.size, self.physics.grid)  # type: ignore[arg-type]  # (views, detectors)
        if header.matrix is not None:
            return Shapes.rows(header.size, len(header.matrix))
        return Shapes.pixels(header.size, header.channels)

    def synthetic_header(self, n: int) -> SliceHeader:
        """Return the header of a file of n synthetic slices: that of the file, marked as synthetic, without its sources."""
        configuration = dict(self.header.configuration) | {SYNTHETIC: self.kind, "synthetic_seed": self.seed, "n": n}
        digests = {"like": file_digest(self.path)}
        return replace(self.header, configuration=configuration, source_digests=digests, digest="", seed=self.seed)

    def records(self, n: int, first: int = 0, split: str = "train") -> Iterator[SliceRecord]:
        """Make the synthetic slices first ... first + n - 1; a slice depends on the file, kind, seed and its number alone."""
        acquired = SliceDataset(self.path, _training_split(self.header), with_image=False)
        for start in range(first, first + n, BLOCK):
            yield from self._block(acquired, start, min(BLOCK, first + n - start), split)

    def _block(self, acquired: SliceDataset, first: int, n: int, split: str) -> Iterator[SliceRecord]:
        """Make a block of slices; each has noise level and coil maps of a slice of the file."""
        images = draw(self.kind, n, self.header.size, self.seed, first)
        numbers = range(first, first + n)
        batch = default_collate([_acquisition(acquired, number, self.seed) for number in numbers])
        physics = self.physics.of(batch)
        generators = [item_generator(self.seed, str(number), "synthetic noise") for number in numbers]
        y, sigma = self._measure(physics, images, batch["sigma"], generators)
        for i, number in enumerate(numbers):
            yield SliceRecord(
                measurement=y[i],
                image=images[i],
                id=f"synthetic-{self.kind}-{self.seed}-{number}",
                subject=f"synthetic-{self.seed}-{number}",
                split=split,
                data_range=1.0,
                maps=batch["maps"][i] if self.header.coils else None,
                sigma=float(sigma[i]) if math.isnan(self.header.sigma) else math.nan,
            )

    def _measure(
        self, physics: Operator, images: Tensor, sigma: Tensor, generators: list[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Simulate measurements, with noise of level sigma (B,) or of photon counting; return them and their noise levels."""
        counted = self.header.operator.get(COUNTED)
        if counted is None:
            return measure(physics, images, sigma, generators), sigma
        transmission = Transmission.from_dict(counted)
        counts = transmission.sample(physics.A(images), generators)
        return transmission.post_log(counts), transmission.noise_level(counts)


def write_synthetic(like: Likeness, out: str | Path, n: int) -> None:
    """Write a slice file of n synthetic slices, all in the split "train"; a reader sees all of it or nothing."""
    with SliceWriter(out, like.synthetic_header(n), like.header.size, True, like.header.coils, like.shapes) as writer:
        for record in like.records(n):
            writer.append(record)


def synthetic_kind(path: str | Path) -> str:
    """Return the kind of the synthetic images of a slice file; "" for a file of other images."""
    return str(read_header(path).configuration.get(SYNTHETIC, ""))


def kind_for(header: SliceHeader) -> str:
    """Choose the kind of synthetic images that resemble what a slice file was measured from, by its header alone.

    Recorded k-space has a phase, simulated k-space of real images has none.

    >>> kind_for(SliceHeader(0.1, torch.ones(4), modality="CT")), kind_for(SliceHeader(0.1, torch.ones(4), channels=2))
    ('ct', 'mr')
    """
    if header.modality == "MR":
        recorded = header.coils or header.configuration.get("measurements") == "real"
        return "mr_phase" if recorded else "mr"
    if header.modality == "CT":
        return "ct"
    if header.matrix is not None:
        return "digit"
    return "photograph" if header.channels == 3 else "leaves"


def _training_split(header: SliceHeader) -> str | None:
    """Return "train", or None (all slices) for a file without training slices."""
    return "train" if header.splits.get("train") else None


def _acquisition(acquired: SliceDataset, number: int, seed: int) -> Mapping[str, Any]:
    """Return noise level and coil maps of a slice of the file, drawn for the synthetic slice `number`."""
    drawn = torch.randint(len(acquired), (1,), generator=item_generator(seed, str(number), "acquisition"))
    return acquired.acquisition(int(drawn))
