"""Make the mean Gram matrix of an operator and a named set of transformations, in closed form where there is one."""

import torch
from torch import Tensor

from es_medical.diagnostics.actions import MOVES, Term, check_action, probe, terms
from es_medical.diagnostics.base import MeanGram, Support
from es_medical.diagnostics.coverage import mean_moved
from es_medical.diagnostics.exact import (
    Circulant,
    Exchangeable,
    KSpaceDiagonal,
    PixelDiagonal,
    coil_shift_weights,
    diagonal_sums,
    frequency_blocks,
)
from es_medical.groups import Shifts
from es_medical.physics import MRI, MultiCoilMRI, Operator
from es_medical.physics.pixels import Pixels
from es_medical.types import Image


class GroupMean(MeanGram):
    """H = sum_g w_g T_g^T A^T A T_g over the listed operators.

    Args:
        listed: the operators A T_g with their weights.
        support: the pixels that can differ from zero; None for all.
    """

    def __init__(self, listed: list[Term], support: Support | None = None) -> None:
        super().__init__(_shape(listed[0].physics), support)
        self.terms = listed

    def _apply(self, x: Image) -> Image:
        result = torch.zeros_like(x)
        for term in self.terms:
            result += term.weight * term.gram(x)
        return result


class Restricted(MeanGram):
    """A mean Gram matrix restricted to a support."""

    def __init__(self, whole: MeanGram, support: Support) -> None:
        super().__init__(whole.shape, support)
        self.whole = whole

    def _apply(self, x: Image) -> Image:
        return self.whole.apply(x)


def mean_gram(physics: Operator, action: str, support: Tensor | None = None) -> MeanGram:
    """Return H = mean_g (A T_g)^T A T_g for the transformations called `action`, one of `ACTIONS`.

    none: A^T A. flips, rotations_90, d4: subsets of D4. shifts: all cyclic shifts. fine_rotations: for CT, turns by fractions
    of the view spacing, each followed by D4 (`es_medical.groups.Rotations`); for other operators `FineRotations` by whole
    degrees, represented by a seeded sample. permutations: all permutations of the pixels, the same for each channel.
    amplitude: x to c x, whose mean is E[c^2] A^T A, with E[c^2] = 1.

    Args:
        physics: the operator A, one for all images.
        action: name of the transformations.
        support: (H, W), non-zero at pixels that can differ from zero (CT: the field of view); None for all.

    Raises:
        ValueError: no such action, it does not act on images of this size, or `support` has another size or is empty.
    """
    check_action(physics, action)
    chosen = None if support is None else _support(support, physics.image_size)
    action = "none" if action == "amplitude" else action
    if action == "permutations":
        return _permuted(physics, chosen)
    found = _diagonal(physics, action, chosen)
    if found is None and action == "shifts":
        found = _shifted(physics)
    if found is None:
        return GroupMean(terms(physics, action), chosen)
    return found if chosen is None or found.support is not None else Restricted(found, chosen)


def _diagonal(physics: Operator, action: str, support: Support | None) -> MeanGram | None:
    """Return the closed form for MRI and for operators that measure pixels; None for others."""
    if action in MOVES and isinstance(physics, Pixels):
        return PixelDiagonal(mean_moved(pixel_weights(physics), action, "pixels"), support)
    if action in MOVES and isinstance(physics, MRI):
        return KSpaceDiagonal(mean_moved(physics.mask[0].double().expand(1, *physics.image_size), action, "k-space")[0])
    return None


def pixel_weights(physics: Pixels) -> Tensor:
    """Return the diagonal (C, H, W) of A^T A: 1 where a value of the image is measured, else 0."""
    return physics.A_adjoint_A(torch.ones(1, *physics.img_size, dtype=torch.float64, device=physics.mask.device))[0]


def _shifted(physics: Operator) -> MeanGram:
    """Return the mean over all cyclic shifts, a block for each frequency."""
    if isinstance(physics, MultiCoilMRI):
        mask = physics.mask[0, 0, 0].double().expand(physics.image_size)
        return KSpaceDiagonal(coil_shift_weights(mask, torch.view_as_complex(physics.parts[0].double())))
    if _commutes(physics):
        return GroupMean(terms(physics, "none"))
    return Circulant(frequency_blocks(physics))


def _commutes(physics: Operator) -> bool:
    """Whether A^T A commutes with the shifts by one pixel, and so with all shifts."""
    x, shifts = probe(physics, seed=0), Shifts(physics.image_size)
    image = physics.A_adjoint_A(x)
    for g in torch.tensor([[[1, 0]], [[0, 1]]]):
        if (Term(physics, shifts, g, 1.0).gram(x) - image).norm() > 1e-6 * image.norm():
            return False
    return True


def _permuted(physics: Operator, support: Support | None) -> Exchangeable:
    """Return the mean over all permutations, from the diagonal of A^T A and its product with constant images."""
    channels, height, width = _shape(physics)
    keep = torch.ones(height, width, dtype=torch.float64, device=physics.mask.device) if support is None else support
    constant = torch.diag_embed(torch.ones(channels, dtype=torch.float64, device=keep.device))[..., None, None] * keep
    total = (keep * physics.A_adjoint_A(constant)).sum((-2, -1))  # (C, C)
    diagonal = _block_diagonals(physics, keep) / keep.sum()
    return Exchangeable(diagonal, total, (height, width), support)


def _block_diagonals(physics: Operator, keep: Support) -> Tensor:
    """Sum the diagonal of each block (c, d) of A^T A over the pixels that are kept: (C, C)."""
    if isinstance(physics, MultiCoilMRI):
        density = physics.mask[0, 0, 0].double().expand(physics.image_size).mean()
        return density * (keep * physics.parts[0].double().square().sum((0, -1))).sum() * torch.eye(2).to(keep)
    if isinstance(physics, MRI):
        return keep.sum() * physics.mask.double().expand(1, 1, *physics.image_size).mean() * torch.eye(2).to(keep)
    if isinstance(physics, Pixels):
        return torch.diag((keep * pixel_weights(physics)).sum((-2, -1)))
    return diagonal_sums(physics, keep)


def _shape(physics: Operator) -> tuple[int, int, int]:
    channels, height, width = (int(side) for side in physics.img_size)
    return channels, height, width


def _support(support: Tensor, size: tuple[int, int]) -> Support:
    if tuple(support.shape) != size or not bool((support != 0).any()):
        raise ValueError(
            f"the support is a mask of {size[0]} x {size[1]} pixels, at least one of them not 0; "
            f"got {int((support != 0).sum())} pixels of shape {tuple(support.shape)}"
        )
    return (support != 0).double()
