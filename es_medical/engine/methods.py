"""The methods by name: what `--method` chooses of loss, network and input."""

from typing import NamedTuple

from es_medical.groups import Group, Rotations


class Method(NamedTuple):
    """One method of the paper.

    Attributes:
        label: as tables name it.
        equivariant: the network is equivariant (Reynolds average, or a shift-equivariant denoiser).
        split_input: the network is trained on split measurements, and by default averaged over splits at test time.
        trained: False for a reconstruction that learns nothing.
    """

    label: str
    equivariant: bool = True
    split_input: bool = False
    trained: bool = True


METHODS: dict[str, Method] = {
    "es": Method("ES", split_input=True),
    "es_neq": Method("ES, not equivariant", equivariant=False, split_input=True),
    "splitting": Method("Splitting, not equivariant", equivariant=False, split_input=True),
    "supervised": Method("Supervised"),
    "supervised_neq": Method("Supervised, not equivariant", equivariant=False),
    "ei": Method("EI"),
    "ei_neq": Method("EI, not equivariant", equivariant=False),
    "ei_lot": Method("EI, one term at a time"),
    "sure": Method("SURE"),
    "sure_neq": Method("SURE, not equivariant", equivariant=False),
    "unsure": Method("UNSURE"),
    "mc": Method("MC"),
    "mc_neq": Method("MC, not equivariant", equivariant=False),
    "pseudo_inverse": Method("Pseudo-inverse", equivariant=False, trained=False),
    "tikhonov": Method("Tikhonov", equivariant=False, trained=False),
    "tv": Method("Total variation", equivariant=False, trained=False),
    "biharmonic": Method("Biharmonic", equivariant=False, trained=False),
}
"""Every method, in the order of tables. The operator's own linear reconstruction is the baseline in every table."""


def method_of(name: str) -> Method:
    """Return a method by its name; raises ValueError with the valid ones for another name."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name]


def group_of(name: str, group: Group | None) -> Group | None:
    """Return the group that a method's network is averaged over, None where it is not equivariant."""
    return group if method_of(name).equivariant else None


def loss_group(name: str, group: Group, rotations: int = 1) -> Group | Rotations | None:
    """Return what the loss of a method draws an explicit g from.

    Args:
        name: of the method. es_neq draws g: its network is not equivariant.
        group: of the transformations.
        rotations: number of angles, fractions of the view spacing of a CT scanner, that es draws beside; 1 for none.
    """
    if rotations > 1 and name in ("es", "es_neq"):
        return Rotations(rotations, group)
    return group if name == "es_neq" else None
