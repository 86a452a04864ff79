"""Networks around a shift-equivariant denoiser: f(y, A T_g) = T_g^-1 f(y, A)."""

import pytest
import torch
from helpers import assert_unchanged, line_mri, randn, rng, snapshot

from es_medical.groups import Shifts
from es_medical.networks import ArtifactRemoval, MoDL, shift_unet, unet
from es_medical.physics import VirtualPhysics
from es_medical.physics.compressed_sensing import CompressedSensing, gaussian_matrix
from es_medical.physics.pixels import Decimation, Inpainting

SIZE = (8, 12)


def lively(make, channels):
    torch.manual_seed(0)
    network = make(channels, (4, 6, 8))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network


def bernoulli(*shape, keep=0.5, seed=2):
    return (torch.rand(shape, generator=rng(seed)) < keep).float()


OPERATORS = {
    "inpainting, values": lambda: Inpainting(bernoulli(3, *SIZE, keep=0.3), SIZE, 3),
    "inpainting, pixels": lambda: Inpainting(bernoulli(*SIZE), SIZE, 3),
    "inpainting, columns": lambda: Inpainting(torch.arange(SIZE[1]) % 2, SIZE, 1),
    "decimation": lambda: Decimation(SIZE, 2, 3),
    "compressed sensing": lambda: CompressedSensing(gaussian_matrix(29, SIZE[0] * SIZE[1], seed=0), SIZE),
    "mri": lambda: line_mri(SIZE),
}
NETWORKS = {
    "adjoint": ArtifactRemoval,
    "pseudo-inverse": lambda denoiser: ArtifactRemoval(denoiser, "pseudo_inverse"),
    "modl": lambda denoiser: MoDL(denoiser, n_iterations=2, step=0.7),
}


def gap(f, physics, y):
    """Largest |f(y, A T_g) - T_g^-1 f(y, A)| over shifts of each item, relative to the largest value of f."""
    group = Shifts(SIZE)
    worst, g = 0.0, group.sample(len(y), rng(5))
    with torch.no_grad():
        plain = f(y, physics)
        for elements in (g, torch.tensor([[1, 0]]).expand(len(y), -1), torch.tensor([[0, 3]]).expand(len(y), -1)):
            difference = f(y, VirtualPhysics(physics, group, elements)) - group.inverse(plain, elements)
            worst = max(worst, float(difference.abs().max() / plain.abs().max()))
    return worst


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "one mask for each item"])
def test_networks_around_the_shift_unet_are_equivariant(operator, network, masked):
    physics = OPERATORS[operator]()
    channels = physics.img_size[0]
    x = randn(6, channels, *SIZE)
    y = physics.A(x)
    if masked:
        m = physics.mask * bernoulli(6, *physics.mask.shape[1:], keep=0.7)
        physics, y = physics.masked(m), m * y
    assert gap(NETWORKS[network](lively(shift_unet, channels)), physics, y) < 1e-5


@pytest.mark.parametrize("network", NETWORKS)
def test_they_are_not_around_the_plain_one(network):
    physics = OPERATORS["inpainting, values"]()
    y = physics.A(randn(4, 3, *SIZE))
    assert gap(NETWORKS[network](lively(unet, 3)), physics, y) > 1e-2


def test_start_is_the_adjoint_or_the_pseudo_inverse():
    physics = OPERATORS["compressed sensing"]()
    y, phi = physics.A(randn(2, 1, *SIZE)), lively(unet, 1)
    torch.testing.assert_close(ArtifactRemoval(phi)(y, physics), phi(physics.A_adjoint(y)))
    torch.testing.assert_close(ArtifactRemoval(phi, "pseudo_inverse")(y, physics, rng()), phi(physics.A_dagger(y)))
    assert (physics.A_adjoint(y) - physics.A_dagger(y)).abs().max() > 0.1


@pytest.mark.usefixtures("unchecked")
def test_unknown_start_is_refused():
    with pytest.raises(ValueError, match="start must be adjoint or pseudo_inverse, got 'zero'"):
        ArtifactRemoval(unet(1, (2, 4)), "zero")


def test_training_step_changes_neither_operator_nor_measurements():
    physics = OPERATORS["inpainting, values"]()
    y, before = physics.A(randn(2, 3, *SIZE)), snapshot(physics)
    given, network = y.clone(), ArtifactRemoval(lively(shift_unet, 3))
    network(y, physics).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())
    assert torch.equal(y, given)
    assert_unchanged(physics, before)
