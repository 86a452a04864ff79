"""Every kind of forward operator, small and in float64, and variants of it: masked, transformed by a group, turned.

An entry builds the operator of any items of a batch from their numbers, so that an item can also be tested alone.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from deepinv.physics import Blur
from helpers import coil_maps, line_mri, randn, rng
from torch import Tensor

from es_medical.groups import D4, Flips, Rotations, Shifts
from es_medical.physics import (
    CT,
    MRI,
    CompressedSensing,
    Decimation,
    Inpainting,
    MaskedPhysics,
    MultiCoilMRI,
    Operator,
    VirtualPhysics,
    gaussian_matrix,
)
from es_medical.physics.ct_geometry import FanBeam, Geometry, ParallelBeam
from es_medical.physics.virtual import turn_items

MOST = 8
"""Number of items with their own mask, map or element."""

Make = Callable[[Tensor], Operator]
"""Builds the operator of a batch from the numbers of its items, each below `MOST`."""


class Entry(NamedTuple):
    """An operator of the table."""

    make: Make
    n: int
    """Number of items in a batch."""
    inverse: float | None
    """Accuracy of A^dagger; None if conjugate gradients stop before an ill-conditioned problem is solved."""

    @property
    def physics(self) -> Operator:
        """The operator of items 0 ... n - 1."""
        return self.make(torch.arange(self.n))


def bits(*shape: int, seed: int = 0, keep: float = 0.6) -> Tensor:
    """A mask that keeps a share of the entries, at least one of them."""
    mask = (torch.rand(shape, generator=rng(seed)) < keep).float()
    mask.view(-1)[shape[-1] // 2] = 1
    return mask


@lru_cache(maxsize=32)
def ct(geometry: Geometry, unit_norm: bool = True) -> CT:
    return CT(geometry, unit_norm=unit_norm).double()


def blind_maps(n: int, coils: int, size: tuple[int, int]) -> Tensor:
    """Sensitivity maps that are not normalised and vanish in two rows and a column."""
    maps = randn(n, 2, coils, *size, seed=2, dtype=torch.float64)
    maps[..., :2, :], maps[..., -1] = 0, 0
    return maps


def redundant_matrix() -> Tensor:
    """8 x 20, two rows that depend on others and an empty one; its entries are multiples of 1/64, whose sums are exact."""
    matrix = (64 * gaussian_matrix(8, 20, 0)).round() / 64
    matrix[1], matrix[2], matrix[4] = matrix[0], 0, 2 * matrix[3] - matrix[5]
    return matrix.double()


PARALLEL = ParallelBeam((8, 8), n_views=5, n_detectors=7, pitch=1.3)
FAN = FanBeam((8, 8), n_views=5, n_detectors=7, pitch=1.9, source_distance=30, detector_distance=15)
ODD = ParallelBeam((7, 9), n_views=4, pitch=1.5)
"""The first two have fewer rays than pixels, none of which grazes a corner: their inverse is well-conditioned."""

SOFT = torch.tensor([[0.0, 0.1, 0], [0.1, 0.6, 0.15], [0, 0.05, 0]]).double()[None, None]


def blurred(mask: Tensor) -> MaskedPhysics:
    """Blur of deepinv, whose measurements are masked."""
    return MaskedPhysics(Blur(SOFT, padding="circular").double(), mask, (1, 4, 4))


PLAIN: dict[str, tuple[Make, float | None]] = {
    "mri": (lambda rows: line_mri((8, 8)), 1e-10),
    "mri, odd": (lambda rows: MRI(bits(7, 7), (7, 7)), 1e-10),
    "mri, own points": (lambda rows: MRI(bits(MOST, 1, 6, 9)[rows], (6, 9)), 1e-10),
    "coils": (lambda rows: MultiCoilMRI(bits(8), coil_maps(1, 3, (8, 8), torch.float64)), 1e-7),
    "coils, own points": (
        lambda rows: MultiCoilMRI(bits(MOST, 1, 5, 4)[rows], coil_maps(MOST, 8, (5, 4), torch.float64)[rows]), 1e-7
    ),
    "coils, blind": (lambda rows: MultiCoilMRI(bits(7), blind_maps(MOST, 2, (6, 7))[rows]), 1e-7),
    "one coil": (lambda rows: MultiCoilMRI(bits(6, 6), coil_maps(1, 1, (6, 6), torch.float64)), 1e-7),
    "parallel": (lambda rows: ct(PARALLEL), 1e-6),
    "parallel, odd": (lambda rows: ct(ODD, unit_norm=False).masked(bits(MOST, 1, *ODD.shape)[rows]), None),
    "fan": (lambda rows: ct(FAN), 1e-6),
    "fan, shifted": (lambda rows: ct(replace(FAN, shift=0.7)), 1e-6),
    "inpainting": (lambda rows: Inpainting(bits(3, 6, 6), (6, 6), 3), 1e-10),
    "inpainting, own pixels": (lambda rows: Inpainting(bits(MOST, 1, 7, 5)[rows], (7, 5), 2), 1e-10),
    "decimation": (lambda rows: Decimation((6, 6), 2, 3), 1e-10),
    "decimation by 3": (lambda rows: Decimation((5, 8), 3, 2, bits(MOST, 2, 2, 3)[rows]), 1e-10),
    "deepinv": (lambda rows: blurred(bits(MOST, 1, 4, 4)[rows]), 1e-7),
    "sensing": (lambda rows: CompressedSensing(gaussian_matrix(6, 16, 0).double(), (4, 4)), 1e-9),
    "sensing, tall": (lambda rows: CompressedSensing(gaussian_matrix(25, 20, 0).double(), (4, 5), bits(MOST, 25)[rows]), 1e-9),
    "sensing, redundant": (lambda rows: CompressedSensing(redundant_matrix(), (4, 5)), 1e-9),
}  # fmt: skip


def shared_mask(A: Operator, seed: int = 5) -> Tensor:
    """Lines, columns, views or rows: one mask for the batch."""
    return bits(A.grid[0 if isinstance(A, CT) else -1], seed=seed)


def own_mask(A: Operator, seed: int = 6, n: int = MOST) -> Tensor:
    """Samples, values, rays or rows: a mask for each item; the last one keeps nothing."""
    mask = bits(n, *([1, *A.grid] if len(A.grid) == 2 else A.grid), seed=seed)
    mask[-1] = 0 if n == MOST else mask[-1]
    return mask


def masked(make: Make, rows: Tensor) -> Operator:
    A = make(rows)
    return A.masked(shared_mask(A)).masked(own_mask(A)[rows])


def moved(make: Make, rows: Tensor) -> VirtualPhysics:
    """A T_g with the elements of D4, or of the flips where images are not square."""
    A = make(rows)
    group = D4() if A.image_size[0] == A.image_size[1] else Flips()
    return VirtualPhysics(A, group, group.elements().repeat(2)[rows])


def shifted(make: Make, rows: Tensor) -> VirtualPhysics:
    A = make(rows)
    group = Shifts(A.image_size)
    return VirtualPhysics(A, group, group.sample(MOST, rng(4))[rows])


def part_of_moved(make: Make, rows: Tensor) -> Operator:
    A = moved(make, rows)
    return A.masked(own_mask(A.physics)[rows])


def turned(make: Make, rows: Tensor) -> VirtualPhysics:
    """A T_phi T_g with one of three angles and an element of D4 for each item."""
    A = make(rows)
    A = A.with_turns(Rotations(3).angles(A.geometry.spacing))
    return VirtualPhysics(turn_items(A, rows % 3), D4(), D4().elements()[rows])


def part_of_turned(make: Make, rows: Tensor) -> Operator:
    A = make(rows)
    return turned(make, rows).masked(own_mask(A)[rows])


FORMS = {"M A": (masked, 3), "A T_g": (moved, MOST), "A shift": (shifted, 3), "M A T_g": (part_of_moved, MOST)}
TURNED = {"A turned": (turned, 4), "M A turned": (part_of_turned, 4)}

TABLE: dict[str, Entry] = {name: Entry(make, 3, inverse) for name, (make, inverse) in PLAIN.items()}
for _name, (_make, _inverse) in PLAIN.items():
    for _form, (_change, _n) in (FORMS | (TURNED if _name in ("parallel", "fan") else {})).items():
        TABLE[f"{_name}: {_form}"] = Entry(partial(_change, _make), _n, _inverse)
