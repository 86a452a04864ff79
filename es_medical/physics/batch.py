"""A batch of measurements with their operator, as losses, inferers and engines take it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from es_medical.physics.base import Operator
from es_medical.randomness import item_generator
from es_medical.types import Image, Measurement, PerItem


@dataclass(frozen=True)
class Batch:
    """Measurements of several items, y = A x + epsilon.

    Attributes:
        y: measurements (B, ...).
        physics: their operator A.
        sigma: noise level of each item (B,), in the units of y; None where the data does not record it.
        image: ground truth x (B, C, H, W), or None.
        ids: names of the items, which seed the random numbers of each item in evaluation; without them its place does.
    """

    y: Measurement
    physics: Operator
    sigma: PerItem | None = None
    image: Image | None = None
    ids: Sequence[str] = ()

    def __len__(self) -> int:
        """Return the number of items B."""
        return len(self.y)

    def generators(self, seed: int, purpose: str) -> list[torch.Generator]:
        """Make a generator for each item from its id, so that what it draws does not depend on the batch.

        Raises:
            ValueError: there are ids, but not one for each item.
        """
        ids = self.ids or [str(i) for i in range(len(self))]
        if len(ids) != len(self):
            raise ValueError(f"a batch of {len(self)} items has {len(ids)} ids: give one for each item")
        return [item_generator(seed, name, purpose) for name in ids]

    @classmethod
    def of(cls, read: Mapping[str, Any], physics: Operator, device: torch.device | str, with_image: bool = True) -> "Batch":
        """Move a batch of a slice file to a device, with the operator of its slices; the copies are asynchronous.

        Args:
            read: a batch of the loader: "measurement", "sigma", "id", and "image" and coil "maps" where the file has them.
            physics: the operator of the file.
            device: device of the operator, to which y is moved.
            with_image: whether to include the ground truth, where there is one.
        """
        y = read["measurement"].to(device, non_blocking=True)
        image = read["image"].to(y, non_blocking=True) if with_image and "image" in read else None
        return cls(y, physics.of(read), read["sigma"].to(y, non_blocking=True), image, list(read["id"]))
