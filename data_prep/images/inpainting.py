"""Turn images in [0, 1] into stored records: one mask for all images keeps some of their values, with or without noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from data_prep.images.image_file import Picture, quiet_pillow, read_image
from data_prep.images.options import MaskKind
from data_prep.run.manifest import PrepError, Pseudonyms
from data_prep.run.plan import Made, Plan, Task, image_outcomes
from es_medical.data import Shapes, SliceHeader, SliceRecord
from es_medical.randomness import item_generator

if TYPE_CHECKING:
    from data_prep.run.runner import PrepRun
    from es_medical.physics.pixels import Inpainting

CHANNELS = 3  # red, green, blue
KEEP, KEEP_EVEN = 0.3, 0.5
WORDS = {
    "values": "values of each channel",
    "pixels": "pixels, in all channels",
    "random_columns": "columns, at random",
    "even_columns": "columns, every other one",
}


@dataclass(frozen=True)
class Camera:
    """The simulated camera that all images of a file share: y = m x + noise where m is 1.

    Attributes:
        size: rows and columns of the images.
        kind: what the mask keeps or drops: each value of each channel (the paper), whole pixels, or whole columns (push-broom).
        keep: share that is kept; None takes 0.3, or 0.5 for every other column.
        sigma: standard deviation of the noise on each kept value, for images in [0, 1].
        seed: seed of the noise, and of the mask where `mask_seed` is None.
        mask_seed: seed of the mask.
        with_image: False stores no ground truth.

    Raises:
        PrepError: a share other than 0.5 for every other column.
        ValueError: a share that keeps nothing.
    """

    size: int
    kind: MaskKind = "values"
    keep: float | None = None
    sigma: float = 0.0
    seed: int = 0
    mask_seed: int | None = None
    with_image: bool = True
    mask: Tensor = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind == "even_columns" and self.keep not in {None, KEEP_EVEN}:
            raise PrepError(f"keep {self.keep:g}: every other column keeps {KEEP_EVEN:g}")
        object.__setattr__(self, "mask", self._draw())

    @property
    def share(self) -> float:
        """Nominal share of the values that the mask keeps."""
        return (KEEP_EVEN if self.kind == "even_columns" else KEEP) if self.keep is None else self.keep

    def _draw(self) -> Tensor:
        """Draw the mask of kept entries, bool: (3, H, W) values, (H, W) pixels, or (W,) columns."""
        from es_medical.physics.masks import bernoulli_mask, even_columns, random_columns

        seed, n = self.seed if self.mask_seed is None else self.mask_seed, self.size
        if self.kind == "even_columns":
            return even_columns(n)
        if self.kind == "random_columns":
            return random_columns(n, self.share, seed)
        values = self.kind == "values"
        mask = bernoulli_mask((CHANNELS if values else 1, n, n), self.share, seed)
        return mask if values else mask[0]

    @property
    def shapes(self) -> Shapes:
        """Shapes of a stored measurement and image."""
        return Shapes.pixels((self.size, self.size), CHANNELS)

    @cached_property
    def physics(self) -> Inpainting:
        """The operator x -> m x."""
        from es_medical.physics.pixels import Inpainting

        return Inpainting(self.mask, (self.size, self.size), CHANNELS)

    def header(self) -> SliceHeader:
        """The header of the file."""
        return SliceHeader(
            sigma=self.sigma,
            mask=self.mask,
            seed=self.seed,
            modality="IMAGE",
            operator={"kind": "inpainting", "mask": self.kind, "keep": self.share},
        )

    def record(self, image: Tensor, key: str, subject: str, split: str, number: int) -> SliceRecord:
        """Simulate the measurement of one image (3, H, W); the noise depends on (seed, key) alone."""
        from es_medical.physics.base import measure

        generator = item_generator(self.seed, key, "acquisition")
        measurement = measure(self.physics, image[None], self.sigma, [generator])[0]  # (3, H, W)
        return SliceRecord(
            measurement=measurement,
            image=image if self.with_image else None,
            id=key,
            subject=subject,
            split=split,
            data_range=1.0 if self.with_image else math.nan,
            slice=number,
        )


class Photo(NamedTuple):
    """An image file to read: its path, the SHA-256 of its bytes, and its split."""

    path: Path
    digest: str
    split: str


Cut = Callable[[Picture, Photo], tuple[Sequence[Tensor], Sequence[str]]]


def make_photo(photo: Photo, camera: Camera, cut: Cut, pseudonyms: Pseudonyms) -> Made:
    """Make the records of one file: decode, cut, and simulate measurements; each photograph counts as one subject.

    Args:
        photo: the file.
        camera: the operator and its noise.
        cut: gives images (3, size, size) in [0, 1] of a picture, and notes; raises PrepError if there are none.
        pseudonyms: salted hashes of the run.

    Raises:
        PrepError: the file cannot be decoded, or the image is too small.
    """
    picture = read_image(photo.path)
    images, notes = cut(picture, photo)
    subject = pseudonyms.of("subject", photo.digest)
    keys = [pseudonyms.of("slice", photo.digest, k) for k in range(len(images))]
    records = [
        camera.record(image, key, subject, photo.split, k) for k, (image, key) in enumerate(zip(images, keys, strict=True))
    ]
    return Made(records, [*picture.notes, *notes] * len(records), content=picture.content())


def photo_plan(
    prep: PrepRun[Any], tasks: Sequence[Task[Photo]], camera: Camera, cut: Cut, target: str = "images"
) -> Plan[Photo]:
    """Plan for the runner to prepare some photographs; `target` says what the ground truth is."""
    make = partial(make_photo, camera=camera, cut=cut, pseudonyms=prep.pseudonyms)
    return Plan(camera, camera.shapes, make, tasks, partial(image_outcomes, target=target), setting=quiet_pillow)


def describe(header: SliceHeader) -> str:
    """Describe the mask in one line."""
    return f"{100 * float(header.mask.float().mean()):.1f} % kept ({WORDS[header.operator['mask']]})"
