"""Turn digits into stored records: simulate the product of each with one random matrix, many digits per product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from data_prep.run.manifest import PrepError
from data_prep.run.plan import Made, Plan, Task, image_outcomes
from es_medical.data import Shapes, SliceHeader, SliceRecord
from es_medical.randomness import item_generator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from es_medical.physics.compressed_sensing import CompressedSensing

BATCH = 1024  # digits in one product, about 4 MB
SCALE = 255.0  # raw grey values = stored * SCALE
MOST_PIXELS = 128 * 128  # a dense matrix of larger images would take gigabytes


class Digit(NamedTuple):
    """An image with its salted hash, its split and its index in its file."""

    pixels: NDArray[np.uint8]  # (H, W)
    id: str
    split: str
    number: int


def describe(header: SliceHeader) -> str:
    """Describe the matrix in one line."""
    m, n = header.mask.numel(), math.prod(header.size)
    return f"{m} measurements of {n} pixels (ratio {m / n:.3g}) by one Gaussian matrix"


def tasks(source: str, digits: Sequence[Digit]) -> list[Task[Sequence[Digit]]]:
    """Split the digits of a source into tasks of one product each."""
    return [Task(source, digits[start : start + BATCH]) for start in range(0, len(digits), BATCH)]


@dataclass(frozen=True)
class Sensing:
    """The random matrix that measures all images of a file; its entries are drawn from N(0, 1/m).

    Attributes:
        size: (H, W) of the images, n = H W pixels.
        ratio: measurements for each pixel, m / n; m is rounded.
        sigma: standard deviation of the noise on each measurement, for images in [0, 1].
        seed: seed of the noise.
        matrix_seed: seed of the matrix, None takes `seed`.
        with_image: False stores no ground truth.

    Raises:
        PrepError: a ratio that gives no measurement or more than there are pixels, or images too large for a dense matrix.
    """

    size: tuple[int, int]
    ratio: float
    sigma: float
    seed: int
    matrix_seed: int | None = None
    with_image: bool = True

    def __post_init__(self) -> None:
        pixels = math.prod(self.size)
        if pixels > MOST_PIXELS:
            raise PrepError(f"images of {self.size[0]} x {self.size[1]}: a dense matrix is for at most {MOST_PIXELS} pixels")
        if not 1 <= self.m <= pixels:
            raise PrepError(f"ratio {self.ratio:g} of {pixels} pixels is {self.m} measurements: expected 1 to {pixels}")

    @property
    def m(self) -> int:
        """Number of measurements of an image."""
        return round(self.ratio * math.prod(self.size))

    @property
    def shapes(self) -> Shapes:
        """Shapes of a stored measurement and image."""
        return Shapes.rows(self.size, self.m)

    @cached_property
    def matrix(self) -> Tensor:
        """A, (m, n)."""
        from es_medical.physics.compressed_sensing import gaussian_matrix

        return gaussian_matrix(self.m, math.prod(self.size), self.seed if self.matrix_seed is None else self.matrix_seed)

    @cached_property
    def physics(self) -> CompressedSensing:
        """The operator x -> A x."""
        from es_medical.physics.compressed_sensing import CompressedSensing

        return CompressedSensing(self.matrix, self.size)

    def header(self) -> SliceHeader:
        """The header of the file."""
        seed = self.seed if self.matrix_seed is None else self.matrix_seed
        return SliceHeader(
            sigma=self.sigma,
            mask=torch.ones(self.m, dtype=torch.bool),
            seed=self.seed,
            modality="IMAGE",
            operator={"kind": "compressed_sensing", "ratio": self.ratio, "seed": seed},
            matrix=self.matrix,
        )

    def make(self, work: Sequence[Digit]) -> Made:
        """The records of some digits, made in one product."""
        return Made(list(self.records(work)))

    def records(self, digits: Sequence[Digit]) -> Iterator[SliceRecord]:
        """Simulate y = A x + noise; the noise of each digit depends on (seed, id) alone."""
        from es_medical.physics.base import measure

        pixels = torch.stack([torch.from_numpy(digit.pixels.copy()) for digit in digits])  # (B, H, W)
        images = pixels[:, None].to(torch.float32) / SCALE  # (B, 1, H, W) in [0, 1]
        if self.sigma:
            generators = [item_generator(self.seed, digit.id, "acquisition") for digit in digits]
            measurements = measure(self.physics, images, self.sigma, generators)  # (B, m)
        else:
            measurements = self.physics.A(images)
        for digit, image, measurement in zip(digits, images, measurements, strict=True):
            yield SliceRecord(
                measurement=measurement,
                image=image if self.with_image else None,
                id=digit.id,
                subject=digit.id,
                split=digit.split,
                scale=SCALE,
                data_range=1.0 if self.with_image else math.nan,
                slice=digit.number,
            )


def digit_plan(
    sensing: Sensing, tasks: Sequence[Task[Sequence[Digit]]], target: str, notes: Mapping[str, Sequence[str]] | None = None
) -> Plan[Sequence[Digit]]:
    """Plan for the runner to prepare some digits; `target` names the ground truth, `notes` maps file names to notes."""
    return Plan(sensing, sensing.shapes, sensing.make, tasks, partial(image_outcomes, target=target, known=notes))
