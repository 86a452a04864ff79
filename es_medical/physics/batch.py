"""What travels together through losses, inferers and engines: measurements, their operator, and what is known of them."""

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
        sigma: noise level of each item (B,), in the units of y; None where the data does not say.
        image: ground truth x (B, C, H, W); None without.
        ids: names of the items, which seed what is drawn for each of them in evaluation; may be empty in training.
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
            ValueError: there is not one id for each item.
        """
        if len(self.ids) != len(self):
            raise ValueError(f"a batch of {len(self)} items has {len(self.ids)} ids: give one for each item")
        return [item_generator(seed, name, purpose) for name in self.ids]

    @classmethod
    def of(cls, read: Mapping[str, Any], physics: Operator, device: torch.device | str, with_image: bool = True) -> "Batch":
        """Put a batch of a slice file on a device, with the operator of its slices; nothing waits for the copies.

        Args:
            read: what the loader returns: "measurement", "sigma", "id", "image" where there is one, and "maps" of coils.
            physics: the operator of the file.
            device: where the operator is, and y is to be.
            with_image: whether the ground truth is taken along, where there is one.
        """
        y = read["measurement"].to(device, non_blocking=True)
        image = read["image"].to(y, non_blocking=True) if with_image and "image" in read else None
        return cls(y, physics.of(read), read["sigma"].to(y, non_blocking=True), image, list(read["id"]))
