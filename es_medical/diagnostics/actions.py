"""The sets of transformations that a user can choose from, and the operators A T_g that they give."""

from typing import NamedTuple

import torch
from torch import Tensor

from es_medical.groups import D4, FineRotations, Flips, Group, Rotations, Shifts
from es_medical.physics import Operator
from es_medical.randomness import item_generator, normal
from es_medical.types import Elements, Image


class Action(NamedTuple):
    """A set of transformations.

    Attributes:
        label: its name in a sentence.
        short: its name in tables and legends.
        colour: of its curve in figures.
        elements: of `es_medical.groups.D4` (t + 2a + 4b: transpose, flip rows, flip columns); empty for a set outside D4.
    """

    label: str
    short: str
    colour: str
    elements: tuple[int, ...] = ()


SETS = {
    "none": Action("the operator alone", "operator alone", "black", (0,)),
    "flips": Action("flips", "flips", "tab:blue", (0, 2, 4, 6)),
    "rotations_90": Action("rotations by 90 degrees", "90-degree rotations", "tab:green", (0, 3, 5, 6)),
    "d4": Action("D4 (rotations by 90 degrees and flips)", "D4", "tab:orange", tuple(range(8))),
    "shifts": Action("cyclic shifts", "cyclic shifts", "tab:purple"),
    "fine_rotations": Action("fine rotations", "fine rotations", "tab:red"),
    "permutations": Action("permutations of the pixels", "pixel permutations", "tab:brown"),
    "amplitude": Action("changes of amplitude", "amplitude changes", "tab:gray"),
}
"""The sets of transformations that a user can choose from, by the name that commands take."""

ACTIONS = tuple(SETS)
"""Names of the sets of transformations."""

DIHEDRAL = tuple(name for name, action in SETS.items() if action.elements)
"""Names of the sets that are subsets of D4."""

MOVES = (*DIHEDRAL, "shifts")
"""Names of the sets that move each value of an image to one place, without interpolation."""

N_TURNS = 4
"""Turns of a scanner within its view spacing, unless it was made with others."""

N_ANGLES = 8
"""Angles, the first one 0, that represent the 360 of `FineRotations`: a seeded sample, so the rank can only be too small."""

STREAM = "diagnostics"
"""Random numbers here are independent of those that masks and matrices were drawn from, whatever their seed."""

SAME = 3e-3
"""Relative difference, on a random image, up to which two Gram matrices count as equal. Views that mirror each other differ by
8e-4 at 256 x 256 (astra's single precision); one sample of 10^5 that only one of two operators measures makes 4e-3."""


class Permutation:
    """One permutation of the pixels, the same for every channel.

    Args:
        order: index of the pixel from which each pixel takes its value, (H W,).
    """

    def __init__(self, order: Tensor) -> None:
        self.order = order

    def apply(self, x: Image, g: Elements) -> Image:
        """Return T x; g is not used."""
        return x.flatten(2)[:, :, self.order].view(x.shape)

    def inverse(self, x: Image, g: Elements) -> Image:
        """Return T^-1 x, which is T^T x."""
        return x.flatten(2)[:, :, self.order.argsort()].view(x.shape)


class Term(NamedTuple):
    """One operator A T_g of a set, with the share of the set that it represents."""

    physics: Operator
    transform: "Group | FineRotations | Permutation | None"
    """T; None for the identity."""
    g: Elements
    """The element of T, (1,) or (1, 2)."""
    weight: float

    def gram(self, x: Image) -> Image:
        """Return (A T_g)^T A T_g x = T_g^T A^T A T_g x for images (B, C, H, W)."""
        if self.transform is None:
            return self.physics.A_adjoint_A(x)
        g = self.g.expand(len(x), *self.g.shape[1:])
        back = self.transform.adjoint if isinstance(self.transform, FineRotations) else self.transform.inverse
        return back(self.physics.A_adjoint_A(self.transform.apply(x, g)), g)


def check_action(physics: Operator, action: str) -> None:
    """Raise ValueError if an action is unknown or does not act on the images of A, or if each item has its own operator."""
    if action not in ACTIONS:
        raise ValueError(f"no transformations are called {action!r}: choose one of {', '.join(ACTIONS)}")
    if action in DIHEDRAL:
        dihedral(action)[0].check(physics.image_size)
    if len(physics.mask) > 1:
        raise ValueError(f"diagnostics take one operator, got one for each of {len(physics.mask)} items of a batch")


def dihedral(action: str) -> tuple[Group, Elements]:
    """Return a subset of D4 as a group and its elements (k,): `Flips`, which act on rectangles too, where they suffice.

    >>> dihedral("rotations_90")[1].tolist()
    [0, 3, 5, 6]
    """
    return Flips() if action in {"none", "flips"} else D4(), torch.tensor(SETS[action].elements)


def terms(physics: Operator, action: str, seed: int = 0) -> list[Term]:
    """List the operators A T_g of a subset of D4 or of fine rotations; equal ones are one term.

    Raises:
        ValueError: the action does not act on the images of A (see `check_action`), or can't be listed.
    """
    check_action(physics, action)
    if action == "none":
        return [Term(physics, None, torch.zeros(1, dtype=torch.long), 1.0)]
    if action in DIHEDRAL:
        return _merged(_each(physics, *dihedral(action)), seed)
    if action != "fine_rotations":
        raise ValueError(f"{action} are too many to be listed one by one")
    scanner = turnable(physics)
    if scanner is None:
        fine = FineRotations()
        drawn = fine.sample(N_ANGLES - 1, item_generator(seed, "angles", STREAM))
        return _each(physics, fine, torch.cat((torch.zeros(1, dtype=torch.long), drawn)))
    return _merged(_turned(scanner), seed)


def generators(physics: Operator, action: str, seed: int = 0) -> list[Term]:
    """List A, and the operators A T_g that differ from A for a few g that generate or represent the set.

    Shifts are represented by the two shifts by one pixel, permutations by a random one; other sets are listed in full.

    Raises:
        ValueError: as `terms`.
    """
    check_action(physics, action)
    if action == "shifts":
        shifts = Shifts(physics.image_size)
        moved = [Term(physics, shifts, torch.tensor([g]), 1.0) for g in ((1, 0), (0, 1))]
    elif action == "permutations":
        height, width = physics.image_size
        order = torch.randperm(height * width, generator=item_generator(seed, "permutation", STREAM)).to(physics.mask.device)
        moved = [Term(physics, Permutation(order), torch.zeros(1, dtype=torch.long), 1.0)]
    else:
        return terms(physics, "none" if action == "amplitude" else action, seed)
    return _merged([*terms(physics, "none"), *moved], seed)


def turnable(physics: Operator) -> Operator | None:
    """Return the scanner with its turns by fractions of the view spacing; None for operators that can't be turned.

    A scanner that already has turns (`rotations` of a bundle) keeps them, others get `N_TURNS`.
    """
    make = getattr(physics, "with_turns", None)
    if make is None:
        return None
    if len(getattr(physics, "_turned", ())) > 0:
        return physics
    turned: Operator = make(Rotations(N_TURNS).angles(physics.geometry.spacing))
    return turned


def _each(physics: Operator, transform: Group | FineRotations, elements: Elements) -> list[Term]:
    return [Term(physics, transform, g[None], 1 / len(elements)) for g in elements]


def _turned(scanner: Operator) -> list[Term]:
    """List all pairs of `Rotations`: every turn followed by D4, or by flips where images are not square."""
    height, width = scanner.image_size
    base: Group = D4() if height == width else Flips()
    turns = [scanner.turned(k) for k in range(1 + len(scanner._turned))]
    share = 1 / (len(turns) * base.order)
    return [Term(turned, base, g[None], share) for turned in turns for g in base.elements()]


def _merged(listed: list[Term], seed: int) -> list[Term]:
    """Merge terms that agree on a random image: where T_g^T A^T A T_g = A^T A there is nothing to average."""
    x = probe(listed[0].physics, seed)
    kept: list[Term] = []
    images: list[Image] = []
    for term in listed:
        image = term.gram(x)
        same = [k for k, other in enumerate(images) if (image - other).norm() <= SAME * other.norm()]
        if same:
            kept[same[0]] = kept[same[0]]._replace(weight=kept[same[0]].weight + term.weight)
        else:
            kept.append(term)
            images.append(image)
    return kept


def probe(physics: Operator, seed: int) -> Image:
    """Draw one image of independent standard normal values, float64, on the operator's device."""
    shape = (1, *(int(side) for side in physics.img_size))
    return normal(shape, item_generator(seed, "probe", STREAM), physics.mask.device).double()
