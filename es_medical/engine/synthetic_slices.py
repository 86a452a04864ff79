"""Slices of synthetic images, measured as those of a given slice file: same operator, masks, coils, sizes and noise levels."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from es_medical.data import Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter, read_header
from es_medical.engine.operators import operator_of
from es_medical.physics import Operator
from es_medical.physics.base import measure
from es_medical.physics.transmission import COUNTED, Transmission
from es_medical.randomness import item_generator
from es_medical.synthetic import KINDS, draw
from es_medical.synthetic.kinds import block_size

SYNTHETIC = "synthetic_images"
"""Entry of a slice file's configuration that marks its images as synthetic: their kind."""

HOUNSFIELD = (2000.0, -1000.0)
"""Scale and offset of synthetic images of CT: raw values, in Hounsfield units, = stored * scale + offset."""


@dataclass(frozen=True)
class Likeness:
    """A slice file whose acquisition synthetic slices share. Its images and measurements are never read.

    Attributes:
        path: the slice file.
        header: its header.
        kind: kind of the synthetic images (see `es_medical.synthetic`).
        seed: seed of images and noise.
        sigma: noise level that is assumed, in place of that of each slice of the file (or of its photon counts); None for none.
        sigma_factor: factor that multiplies the noise level.
    """

    path: Path
    header: SliceHeader
    kind: str
    seed: int
    sigma: float | None = None
    sigma_factor: float = 1.0

    @classmethod
    def of(
        cls, path: str | Path, kind: str = "auto", seed: int = 0, sigma: float | None = None, sigma_factor: float = 1.0
    ) -> "Likeness":
        """Read the header of a slice file.

        Args:
            path: the slice file.
            kind: kind of the synthetic images; "auto" chooses it by modality and operator (see `kind_for`).
            seed: seed of images and noise.
            sigma: noise level that is assumed; None for that of the file.
            sigma_factor: factor that multiplies it.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: not a slice file, an unknown kind, or one whose images the operator can't measure.
        """
        header = read_header(path)
        chosen = checked_kind(kind_for(header) if kind == "auto" else kind, header)
        return cls(Path(path), header, chosen, seed, sigma, float(sigma_factor))

    @property
    def knows_noise(self) -> bool:
        """Whether the noise is that of the file, and no other one is assumed."""
        return self.sigma is None and self.sigma_factor == 1

    @cached_property
    def physics(self) -> Operator:
        """The operator of the file, on the CPU."""
        return operator_of(str(self.path))

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

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that decides the synthetic slices: acquisition of the training slices, kind, seed, and the images.

        Two files that differ only in their images and measurements have the same digest; so have two of other noise levels
        where one is assumed.
        """
        header, acquired = self.header, self._acquired()
        digest = hashlib.sha256()
        facts = [self.kind, self.seed, header.modality, dict(header.operator), list(header.size), header.coils, header.channels]
        facts += [] if self.knows_noise else [self.sigma, self.sigma_factor]
        digest.update(json.dumps(facts, sort_keys=True).encode())
        tensors = [header.mask.to(torch.uint8), torch.empty(0) if header.matrix is None else header.matrix]
        tensors.append(draw(self.kind, 8, header.size, self.seed))  # another version may draw other images
        for tensor in (*tensors, *(one for i in range(len(acquired)) for one in self._acquisition(acquired, i).values())):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def synthetic_header(self, n: int) -> SliceHeader:
        """Return the header of a file of n synthetic slices: that of the file, marked as synthetic, without its sources."""
        configuration = dict(self.header.configuration) | {SYNTHETIC: self.kind, "synthetic_seed": self.seed, "n": n}
        header = replace(self.header, configuration=configuration, source_digests={}, digest="", seed=self.seed)
        return header if self.knows_noise else replace(header, sigma=float("nan"))  # each slice has its own

    def records(self, n: int, first: int = 0, split: str = "train") -> Iterator[SliceRecord]:
        """Make the synthetic slices first ... first + n - 1; a slice depends on the file, kind, seed and its number alone."""
        acquired, step = self._acquired(), block_size(self.header.size)
        for start in range(first, first + n, step):
            yield from self._block(acquired, start, min(step, first + n - start), split)

    def _acquired(self) -> SliceDataset:
        """Open the training slices of the file, or all slices of a file without training slices; their images are not read."""
        return SliceDataset(self.path, "train" if self.header.splits.get("train") else None, with_image=False)

    def _block(self, acquired: SliceDataset, first: int, n: int, split: str) -> Iterator[SliceRecord]:
        """Make a block of slices; each has noise level and coil maps of a slice of the file."""
        images = draw(self.kind, n, self.header.size, self.seed, first)
        numbers = range(first, first + n)
        batch = default_collate([self._drawn(acquired, number) for number in numbers])
        physics = self.physics.of(batch)
        generators = [item_generator(self.seed, str(number), "synthetic noise") for number in numbers]
        y, sigma = self._measure(physics, images, batch["sigma"], generators)
        scale, offset = HOUNSFIELD if self.header.unit == "HU" else (float(self.header.measured.get("scale", 1)), 0.0)
        for i, number in enumerate(numbers):
            yield SliceRecord(
                measurement=y[i],
                image=images[i],
                id=f"synthetic-{self.kind}-{self.seed}-{number}",
                subject=f"synthetic-{self.seed}-{number}",
                split=split,
                scale=scale,
                offset=offset,
                data_range=1.0,
                maps=batch["maps"][i] if self.header.coils else None,
                sigma=float(sigma[i]),
            )

    def _drawn(self, acquired: SliceDataset, number: int) -> dict[str, Any]:
        """Return noise level and coil maps of a slice of the file, drawn for the synthetic slice `number`."""
        drawn = torch.randint(len(acquired), (1,), generator=item_generator(self.seed, str(number), "acquisition"))
        return self._acquisition(acquired, int(drawn))

    def _acquisition(self, acquired: SliceDataset, index: int) -> dict[str, Any]:
        """Return the noise level, assumed or that of the file, and coil maps of a slice of the file."""
        found = acquired.acquisition(index)
        sigma = found["sigma"] if self.sigma is None else torch.tensor(self.sigma, dtype=torch.float32)
        return found | {"sigma": self.sigma_factor * sigma}

    def _measure(
        self, physics: Operator, images: Tensor, sigma: Tensor, generators: list[torch.Generator]
    ) -> tuple[Tensor, Tensor]:
        """Simulate measurements, with noise of level sigma (B,) or of photon counting; return them and their noise levels."""
        counted = self.header.operator.get(COUNTED)
        if counted is None or not self.knows_noise:
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

    Recorded k-space has a phase, simulated k-space of real images has none. CT without Hounsfield units is taken for technical
    parts. A file of synthetic images has a kind.

    >>> kind_for(SliceHeader(0.1, torch.ones(4), modality="CT")), kind_for(SliceHeader(0.1, torch.ones(4), channels=2))
    ('ct', 'mr')
    """
    if SYNTHETIC in header.configuration:
        return str(header.configuration[SYNTHETIC])
    if header.modality == "MR":
        recorded = header.coils or header.configuration.get("measurements") == "real"
        return "mr_phase" if recorded else "mr"
    if header.modality == "CT":
        return "ct" if header.unit == "HU" else "part"
    if header.matrix is not None:
        return "digit"
    return "photograph" if header.channels == 3 else "leaves"


def checked_kind(kind: str, header: SliceHeader) -> str:
    """Return the kind; raise ValueError for an unknown one, or one whose images have other channels than those of a file."""
    fitting = [name for name, one in KINDS.items() if one.channels == header.channels]
    if kind in fitting:
        return kind
    found = f"has {KINDS[kind].channels} channels, the data {header.channels}" if kind in KINDS else "is unknown"
    choices = f"choose auto or {', '.join(fitting)}" if fitting else "no kind has as many: set warm_images to 0"
    raise ValueError(f"kind {kind!r} of synthetic images {found}: {choices}")
