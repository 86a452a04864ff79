"""The virtual operator A T_g: the same measurements, seen as those of a transformed image."""

import torch
from torch import Tensor

from es_medical.groups import Group, Rotations
from es_medical.physics.base import Moved, Operator
from es_medical.physics.turned import turn_items
from es_medical.types import Elements, Generator, Image, Mask, Measurement


class VirtualPhysics(Moved):
    r"""Virtual operator A T_g of section "Proposed loss": y = A x = (A T_g)(T_g^-1 x).

    T_g is orthogonal, so adjoint, pseudo-inverse and proximal step of A T_g are those of A combined with T_g; closed
    forms of A stay closed forms.

    Args:
        physics: the operator A.
        group: the group of T_g.
        g: one element for each item of the batch.
    """

    def __init__(self, physics: Operator, group: Group, g: Elements) -> None:
        super().__init__(img_size=physics.img_size)
        self.physics, self.group, self.g = physics, group, g

    @property
    def _origin(self) -> Operator:
        """A."""
        return self.physics

    def A(self, x: Image) -> Measurement:
        """A T_g x."""
        return self.physics.A(self.group.apply(x, self.g))

    def A_adjoint(self, y: Measurement) -> Image:
        """T_g^-1 A^T y."""
        return self.group.inverse(self.physics.A_adjoint(y), self.g)

    def initial(self, y: Measurement) -> Image:
        """T_g^-1 x_0, where x_0 is the initial reconstruction by A."""
        return self.group.inverse(self.physics.initial(y), self.g)

    def estimate(self, y: Measurement) -> Image:
        """T_g^-1 of the estimate by A."""
        return self.group.inverse(self.physics.estimate(y), self.g)

    def A_dagger(self, y: Measurement) -> Image:
        """T_g^-1 A^dagger y."""
        return self.group.inverse(self.physics.A_dagger(y), self.g)

    def prox_l2(self, z: Image, y: Measurement, gamma: float | Tensor) -> Image:
        """T_g^-1 prox_A(T_g z), the proximal step of A T_g at z."""
        return self.group.inverse(self.physics.prox_l2(self.group.apply(z, self.g), y, gamma), self.g)

    def masked(self, m: Mask) -> "VirtualPhysics":
        """M A T_g."""
        return VirtualPhysics(self.physics.masked(m), self.group, self.g)


def draw_virtual(
    physics: Operator, group: Group | Rotations, n: int, generator: Generator | None, device: torch.device | str
) -> VirtualPhysics:
    """Return A T_g with a random g of the group for each of n items.

    Raises:
        TypeError: `Rotations` of an operator that can't be turned.
    """
    if isinstance(group, Rotations):
        turn, g = group.sample(n, generator, device)
        return VirtualPhysics(turn_items(physics, turn), group.base, g)
    return VirtualPhysics(physics, group, group.sample(n, generator, device))
