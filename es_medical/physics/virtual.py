"""The virtual operator A T_g: the same measurements, seen as those of a transformed image; and A T_phi of a turned scanner."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from es_medical.groups import Group, Rotations
from es_medical.physics.base import Moved, Operator
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


class TurnedPhysics(Moved):
    """A T_phi with its own angle for each item of a batch: sum_k A_k P_k, where P_k keeps the items of the k-th angle.

    Every A_k takes the whole batch, with zeros for the items of other angles: the masks of the items stay in place,
    and no index has to be read back from a GPU. All A_k are linear with a common mask, so the sum is exact.

    Args:
        operators: A_k by k, with one mask.
        turn: k of each item, on the CPU.
    """

    def __init__(self, operators: Mapping[int, Operator], turn: Int[Tensor, " n"]) -> None:
        super().__init__(img_size=next(iter(operators.values())).img_size)
        self.turn, self._held = turn, nn.ModuleDict({str(k): physics for k, physics in operators.items()})

    @property
    def operators(self) -> dict[int, Operator]:
        """A_k by k."""
        return {int(k): cast(Operator, physics) for k, physics in self._held.items()}

    @property
    def _origin(self) -> Operator:
        """A of the first angle."""
        return next(iter(self.operators.values()))

    def A(self, x: Image) -> Measurement:
        """A_k x of each item."""
        return self._each(lambda physics, own: physics.A(own(x)))

    def A_adjoint(self, y: Measurement) -> Image:
        """A_k^T y of each item."""
        return self._each(lambda physics, own: physics.A_adjoint(own(y)))

    def initial(self, y: Measurement) -> Image:
        """The initial reconstruction by A_k, item by item."""
        return self._each(lambda physics, own: physics.initial(own(y)))

    def estimate(self, y: Measurement) -> Image:
        """The estimate by A_k, item by item."""
        return self._each(lambda physics, own: physics.estimate(own(y)))

    def A_dagger(self, y: Measurement) -> Image:
        """A_k^dagger y of each item."""
        return self._each(lambda physics, own: physics.A_dagger(own(y)))

    def prox_l2(self, z: Image, y: Measurement, gamma: float | Tensor) -> Image:
        """The proximal step of A_k at z, item by item."""
        return self._each(lambda physics, own: physics.prox_l2(own(z), own(y), gamma))

    def masked(self, m: Mask) -> "TurnedPhysics":
        """M A_k of each item."""
        return TurnedPhysics({k: physics.masked(m) for k, physics in self.operators.items()}, self.turn)

    def _each(self, apply: Callable[[Operator, Callable[[Tensor], Tensor]], Tensor]) -> Tensor:
        """Sum the results of each A_k on its own items, which P_k selects."""
        return torch.stack([apply(physics, partial(self._own, k)) for k, physics in self.operators.items()]).sum(0)

    def _own(self, k: int, x: Tensor) -> Tensor:
        """P_k x."""
        own = (self.turn == k).to(x.device, non_blocking=True).view(-1, *[1] * (x.ndim - 1))
        return torch.where(own, x, 0)


def turn_items(physics: Operator, turn: Int[Tensor, " n"]) -> Operator:
    """Return A T_phi with the k-th angle for each item; a plain `physics.turned(k)` when all k are the same.

    Args:
        physics: a scanner with `turned(k)`, see `es_medical.groups.Turnable`.
        turn: k of each item, on the CPU.

    Raises:
        TypeError: the operator can't be turned.
    """
    turned = getattr(physics, "turned", None)
    if turned is None:
        raise TypeError(f"{type(physics).__name__} can't be turned: Rotations need an operator with turned(k), such as CT")
    present = sorted(set(turn.tolist()))
    return turned(present[0]) if len(present) == 1 else TurnedPhysics({k: turned(k) for k in present}, turn)
