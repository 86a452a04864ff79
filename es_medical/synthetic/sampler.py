"""The random numbers of one block of images."""

from typing import NamedTuple

import torch
from torch import Tensor


class Sampler(NamedTuple):
    """Draws random parameters for `batch` images, on the CPU so that every device gets the same, and hands them to `device`.

    Attributes:
        generator: a CPU generator.
        batch: number of images b.
        device: where the images are made.
    """

    generator: torch.Generator
    batch: int
    device: torch.device | str = "cpu"

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw numbers between `low` and `high`, of shape (b, *shape)."""
        drawn = torch.rand((self.batch, *shape), generator=self.generator)
        return (low + (high - low) * drawn).to(self.device)

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers of shape (b, *shape)."""
        return torch.randn((self.batch, *shape), generator=self.generator).to(self.device)

    def chance(self, probability: float, *shape: int) -> Tensor:
        """Draw 1.0 with `probability`, else 0.0, of shape (b, *shape)."""
        return (self.uniform(0, 1, *shape) < probability).float()

    def one_of(self, values: Tensor, *shape: int) -> Tensor:
        """Choose for each image among its own values (b, m): shape (b, *shape)."""
        m = values.shape[1]
        index = (self.uniform(0, m, *shape).long()).clamp_(max=m - 1)
        return values.gather(1, index.flatten(1)).reshape(index.shape)
