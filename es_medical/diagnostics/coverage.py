"""What a scanner samples, with transformations and without: k-space, pixels, or view angles."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from es_medical.diagnostics.actions import DIHEDRAL, MOVES, N_TURNS, SETS, dihedral
from es_medical.groups import Rotations
from es_medical.physics.base import Operator

SAME_ANGLE = 1e-6  # degrees
TURNS = (*DIHEDRAL, "fine_rotations")
"""Sets that turn the views of a scanner."""

Map = Float[Tensor, "c h w"]
"""Share of the transformed operators that measure an entry, 0 to 1; c is 1 where all channels share a mask."""


class Coverage(NamedTuple):
    """What is sampled, with a set of transformations.

    Attributes:
        action: name of the set.
        sampled: share of the transformed operators that measure an entry, (C or 1, H, W).
        plane: "k-space" or "pixels".
    """

    action: str
    sampled: Map
    plane: str

    @property
    def share(self) -> float:
        """Share of the entries that at least one transformed operator measures."""
        return float((self.sampled > 0).float().mean())


def coverage(physics: Operator, action: str) -> Coverage:
    """Map what A T_g measures, the mean over g: of k-space or of the values of an image.

    A T_g samples k-space where A does, moved by g about zero frequency: F T_g x is F x moved by g, up to a phase. Cyclic shifts
    do not move k-space, and move every pixel to every place.

    Args:
        physics: an operator of k-space (single- or multi-coil), or of missing pixels.
        action: "none", "flips", "rotations_90", "d4" or "shifts".

    Raises:
        ValueError: the operator samples no plane (CT: see `view_angles`), or the set has no exact map (fine rotations).

    >>> from es_medical.physics import MRI, gaussian_line_mask
    >>> lines = MRI(gaussian_line_mask(64, 8, 0.03, seed=0), (64, 64))
    >>> coverage(lines, "none").share, round(coverage(lines, "d4").share, 3)
    (0.125, 0.365)
    """
    plane = plane_of(physics)
    if plane is None or action not in MOVES:
        raise ValueError(f"no map of what {type(physics).__name__} samples under {action!r}: known are {_known()}")
    height, width = physics.image_size
    if action in DIHEDRAL:
        dihedral(action)[0].check((height, width))
    mask = physics.mask[0].float().cpu().flatten(0, -3).expand(-1, height, width)
    return Coverage(action, mean_moved(mask, action, plane).clone(), plane)


def plane_of(physics: Operator) -> str | None:
    """Name what an operator samples, "k-space" or "pixels"; None for an operator that samples neither (CT, a dense matrix)."""
    if "lines" in physics.units:
        return "k-space"
    return "pixels" if "pixels" in physics.units and tuple(physics.grid[-2:]) == physics.image_size else None


def _known() -> str:
    return f"k-space and missing pixels, and the sets {', '.join(MOVES)}"


def mean_moved(sampled: Map, action: str, plane: str) -> Map:
    """Return the mean over T_g of what A T_g sample: A's pattern moved by T_g^-1, about the origin of the plane.

    A flip of an image reverses the frequencies, k to -k, up to phases that cancel in A^T A, and leaves zero frequency, index
    n // 2, in place; a flip of pixels is about the centre of their grid. For an even size the two differ: there frequency
    -n/2 (index 0) is its own opposite, so it is written at both ends of a grid of n + 1, whose centre is zero frequency.

    Args:
        sampled: A's pattern (C, H, W).
        action: one of `MOVES`.
        plane: "k-space" or "pixels".
    """
    if action == "shifts":
        return sampled if plane == "k-space" else sampled.mean((1, 2), keepdim=True).expand_as(sampled)
    height, width = sampled.shape[-2:]
    odd = [0, 1 - width % 2, 0, 1 - height % 2] if plane == "k-space" else [0, 0, 0, 0]
    group, g = dihedral(action)
    whole = pad(sampled[None], odd, mode="circular").expand(len(g), -1, -1, -1)
    return group.inverse(whole, g).mean(0)[:, :height, :width]


def view_angles(physics: Operator, action: str) -> NDArray[np.floating]:
    """Return the angles from which a CT scanner sees an image, those of all A T_g, sorted, in degrees.

    Args:
        physics: a `es_medical.physics.CT`; views that its mask leaves out are left out.
        action: "none", "flips", "rotations_90", "d4", or "fine_rotations" (by quarters of the view spacing, with D4).

    Returns:
        Distinct angles in [0, 180) of a parallel beam (opposite views are the same), in [0, 360) of a fan beam.

    Raises:
        ValueError: the operator has no views, or the set does not turn views.
    """
    geometry = getattr(physics, "geometry", None)
    if geometry is None or action not in TURNS:
        raise ValueError(f"{type(physics).__name__} has no view angles under {action!r}: known are {', '.join(TURNS)} of CT")
    seen = physics.mask[0].amax(-1).flatten().bool().cpu().numpy()
    own = np.asarray(geometry.angles)[np.broadcast_to(seen, len(geometry.angles))]
    fine = Rotations(N_TURNS).angles(geometry.spacing) if action == "fine_rotations" else [0.0]
    every = np.concatenate([own - angle for angle in fine])
    base = SETS["d4" if action == "fine_rotations" else action]
    moved = np.concatenate([_moved_angles(every, g) for g in base.elements])
    return _distinct(moved, geometry.full_arc)


def _moved_angles(angles: NDArray[np.floating], g: int) -> NDArray[np.floating]:
    """Angles of the views of A T_g^-1 for T_g = F_w^b F_h^a P^t; over a group they are those of all A T_g.

    At angle 0 the rays are vertical. A flip of the rows sends a view's direction (cos a, sin a) to (cos a, -sin a): angle -a
    with the same rays; one of the columns to 180 - a; a transposition (rows against columns, y up) to 270 - a.
    """
    transpose, rows, columns = g & 1, g >> 1 & 1, g >> 2 & 1
    angles = 270.0 - angles if transpose else angles
    angles = -angles if rows else angles
    return 180.0 - angles if columns else angles


def _distinct(angles: NDArray[np.floating], arc: float) -> NDArray[np.floating]:
    """Sort angles modulo the arc, and keep one of those that agree up to rounding."""
    wrapped = np.sort(np.mod(np.mod(angles, arc) + SAME_ANGLE / 2, arc))
    new = np.diff(wrapped, prepend=-1.0) > SAME_ANGLE
    return wrapped[new] - SAME_ANGLE / 2
