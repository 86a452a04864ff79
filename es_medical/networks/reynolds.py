"""Reynolds averaging: make any reconstructor equivariant by averaging it over the virtual operators A T_g."""

from functools import reduce
from inspect import signature
from typing import Literal

import torch
from torch import nn

from es_medical.groups import Group
from es_medical.physics.base import Operator
from es_medical.physics.virtual import VirtualPhysics
from es_medical.types import Elements, Generator, Image, Measurement


class ReynoldsAveraging(nn.Module):
    """f(y, A) = 1/|G| sum_g T_g r(y, A T_g), Theorem 2.3 of the paper; y is never transformed, the operator is.

    While training, the mean is estimated with one random g for each item. In evaluation it is the whole mean ("full"),
    for which f(y, A T_g) = T_g^-1 f(y, A), or one random g as in training ("sample").

    Args:
        reconstructor: r(y, physics, generator), or a network without randomness r(y, physics), such as deepinv's.
        group: the group G.
        evaluation: "full" or "sample".

    Raises:
        ValueError: an unknown evaluation.
        TypeError: `Rotations`, whose angles act on the operator alone.
    """

    def __init__(self, reconstructor: nn.Module, group: Group, evaluation: Literal["full", "sample"] = "full") -> None:
        super().__init__()
        if evaluation not in ("full", "sample"):
            raise ValueError(f"evaluation must be full or sample, got {evaluation!r}")
        if not isinstance(group, Group):
            raise TypeError(
                f"{type(group).__name__} has no action on pixels: average over its base group, and give it to the loss, "
                "EquivariantSplitting(group=...)"
            )
        self.reconstructor, self.group, self.evaluation = reconstructor, group, evaluation
        self._draws = "generator" in signature(reconstructor.forward).parameters

    def forward(
        self, y: Measurement, physics: Operator, generator: Generator | None = None, g: Elements | None = None
    ) -> Image:
        """Reconstruct y measured by `physics`.

        Args:
            y: measurements (B, ...).
            physics: their operator.
            generator: source of the random g.
            g: fixes the transformation of each item, (B, ...): a single term of the mean.

        Raises:
            ValueError: the group does not act on images of the operator's size.
        """
        self.group.check(physics.image_size)
        if g is None and not self.training and self.evaluation == "full":
            elements = self.group.elements().to(y.device)
            terms = (self.forward(y, physics, generator, h.expand(len(y), *h.shape)) for h in elements)
            return reduce(torch.add, terms) / self.group.order
        g = self.group.sample(len(y), generator, y.device) if g is None else g
        drawn = (generator,) if self._draws else ()
        # T_g r(y, A T_g)
        return self.group.apply(self.reconstructor(y, VirtualPhysics(physics, self.group, g), *drawn), g)
