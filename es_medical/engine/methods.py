"""The group that a method's network is averaged over, and the one its loss draws from."""

from es_medical.groups import Group, Rotations
from es_medical.methods import method_of


def group_of(name: str, group: Group | None) -> Group | None:
    """Return the group that a method's network is averaged over; None if it is not equivariant."""
    return group if method_of(name).equivariant else None


def loss_group(name: str, group: Group, rotations: int = 1) -> Group | Rotations | None:
    """Return the group that a method's loss draws an explicit g from; None if it draws none.

    Args:
        name: name of the method. es_neq draws g: its network is not equivariant.
        group: group of the transformations.
        rotations: number of angles, fractions of a CT scanner's view spacing, that the loss draws in addition; 1 for none.
    """
    if rotations > 1 and name in ("es", "es_neq"):
        return Rotations(rotations, group)
    return group if name == "es_neq" else None
