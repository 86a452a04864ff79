"""What every reconstructor promises: one list of properties for a table of networks and their groups.

The families of the paper's theorem, for every operator, are in tests/theory/test_equivariant_families.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from deepinv.models import DnCNN, DRUNet
from helpers import assert_unchanged, coil_maps, line_mri, randn, rng, snapshot
from operator_table import bits, own_mask
from torch import nn

from es_medical.groups import D4, Flips, Group, Shifts
from es_medical.networks import ArtifactRemoval, MoDL, ReynoldsAveraging, shift_unet, unet
from es_medical.physics import (
    MRI,
    CompressedSensing,
    Decimation,
    Inpainting,
    MultiCoilMRI,
    VirtualPhysics,
    gaussian_matrix,
    measure,
)
from es_medical.randomness import item_generator

SIZE = (8, 12)


def lively(network: nn.Module, std: float = 0.2, seed: int = 0) -> nn.Module:
    """Random weights that are large enough for a strong response, far from equivariant by itself."""
    torch.manual_seed(seed)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=std)
    return network


OPERATORS = {
    "inpainting, values": lambda: Inpainting(bits(3, *SIZE, keep=0.3), SIZE, 3),
    "inpainting, pixels": lambda: Inpainting(bits(*SIZE), SIZE, 3),
    "inpainting, columns": lambda: Inpainting(torch.arange(SIZE[1]) % 2, SIZE, 1),
    "decimation": lambda: Decimation(SIZE, 2, 3),
    "compressed sensing": lambda: CompressedSensing(gaussian_matrix(29, SIZE[0] * SIZE[1], seed=0), SIZE),
    "mri": lambda: line_mri(SIZE),
    "multi-coil mri": lambda: MultiCoilMRI(bits(SIZE[1]), coil_maps(1, 3, SIZE)),
}
AROUND = {
    "adjoint": ArtifactRemoval,
    "pseudo-inverse": lambda denoiser: ArtifactRemoval(denoiser, "pseudo_inverse"),
    "modl": lambda denoiser: MoDL(denoiser, n_iterations=2, step=0.7),
    "modl from the estimate": lambda denoiser: MoDL(denoiser, n_iterations=2, step=0.7, start="estimate"),
}
DENOISERS = {
    "unet": lambda: MoDL(lively(unet(2, (4, 8)), 0.3), 2),
    "DnCNN": lambda: MoDL(lively(DnCNN(2, 2, depth=3, nf=4, pretrained=None), 0.3), 2, noise_level=0.1),
    "DRUNet": lambda: MoDL(lively(DRUNet(2, 2, nc=(4, 4, 4, 4), nb=1, pretrained=None), 0.3), 2, noise_level=0.1),
}
SIZES = [(D4(), (16, 16)), (D4(), (15, 15)), (D4(), (14, 14)), (Flips(), (9, 14))]


class Network(NamedTuple):
    """A reconstructor f, the group to which it is equivariant, and the same without what makes it so."""

    make: Callable[[], nn.Module]
    group: Group
    physics: Callable[[], object]
    broken: Callable[[], nn.Module]


TABLE = {
    f"{name} of the shift UNet, {operator}": Network(
        lambda around=around, make=make: around(lively(shift_unet(make().img_size[0], (4, 6, 8)))),
        Shifts(SIZE),
        make,
        lambda around=around, make=make: around(lively(unet(make().img_size[0], (4, 6, 8)))),
    )
    for name, around in AROUND.items()
    for operator, make in OPERATORS.items()
} | {
    f"average of {name}, {type(group).__name__} {size[0]}x{size[1]}": Network(
        lambda plain=plain, group=group: ReynoldsAveraging(plain(), group).eval(),
        group,
        lambda size=size: line_mri(size),
        plain,
    )
    for name, plain in DENOISERS.items()
    for group, size in SIZES
}
each = pytest.mark.parametrize("network", TABLE.values(), ids=TABLE)
FEW = [name for name in TABLE if name.endswith(("values", "16x16"))]
each_kind = pytest.mark.parametrize("network", [TABLE[name] for name in FEW], ids=FEW)


def gap(f, physics, group, y):
    """Largest |f(y, A T_g) - T_g^-1 f(y, A)| over elements of each item, relative to the largest value of f."""
    n = len(y)
    drawn = [group.sample(n, rng(5)), group.elements()[torch.arange(n) % group.order]]
    with torch.no_grad():
        plain = f(y, physics)
        gaps = [(f(y, VirtualPhysics(physics, group, g)) - group.inverse(plain, g)).abs().max() for g in drawn]
    return float(max(gaps) / plain.abs().max())


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "a mask of each item"])
@each
def test_network_is_equivariant_and_without_what_makes_it_so_is_not(network, masked):
    physics = network.physics()
    if masked:
        physics = physics.masked(own_mask(physics, n=6))
    y = physics.A(randn(6, *physics.img_size))
    assert gap(network.make(), physics, network.group, y) < 1e-5
    assert gap(network.broken(), physics, network.group, y) > 5e-3


@each_kind
def test_items_do_not_depend_on_their_batch(network):
    physics, f = network.physics(), network.make()
    y, keys = physics.A(randn(3, *physics.img_size)), "abc"
    with torch.no_grad():
        for mode in (True, False):
            together = f.train(mode)(y, physics, [item_generator(0, key) for key in keys])
            alone = f(y[1:2], physics, [item_generator(0, "b")])
            torch.testing.assert_close(together[1:2], alone, rtol=1e-4, atol=1e-5 * float(alone.abs().max()))


@each_kind
def test_training_step_reaches_every_parameter_and_changes_neither_operator_nor_measurements(network):
    physics, f = network.physics(), network.make()
    y, before = measure(physics, randn(2, *physics.img_size), 0.1, rng()), snapshot(physics)
    given = y.clone()
    for mode in (True, False):
        f.train(mode).zero_grad()
        f(y, physics, rng()).square().mean().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 and p.grad.isfinite().all() for p in f.parameters())
    torch.optim.AdamW(f.parameters()).step()
    assert torch.equal(y, given)
    assert_unchanged(physics, before)


@pytest.mark.parametrize("mask", ["points", "each item"])
def test_full_average_is_equivariant_for_every_mask(mask):
    physics = MRI(bits(8 if mask == "each item" else 1, 1, 16, 16, keep=0.4), (16, 16))
    y = physics.A(randn(8, 2, 16, 16))
    assert gap(ReynoldsAveraging(DENOISERS["unet"](), D4()).eval(), physics, D4(), y) < 1e-5


@pytest.mark.parametrize("make", [unet, shift_unet])
def test_denoisers_without_weights_are_the_identity(make):
    network, x = make(2, (4, 8)), randn(1, 2, 8, 8)
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(network(x), x)
