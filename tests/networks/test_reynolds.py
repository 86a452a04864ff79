import pytest
import torch
from deepinv.models import DnCNN, DRUNet
from helpers import line_mri, randn, rng

from es_medical.groups import D4, Flips
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import MRI, VirtualPhysics
from es_medical.randomness import item_generator


def lively(network, seed=0):
    """Random weights that are large enough for a strong, far from equivariant, response."""
    torch.manual_seed(seed)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


DENOISERS = {
    "unet": (lambda: lively(unet(2, (4, 8))), None),
    "DnCNN": (lambda: lively(DnCNN(2, 2, depth=3, nf=4, pretrained=None)), 0.1),
    "DRUNet": (lambda: lively(DRUNet(2, 2, nc=(4, 4, 4, 4), nb=1, pretrained=None)), 0.1),
}
CASES = [(D4(), (16, 16)), (D4(), (15, 15)), (D4(), (14, 14)), (Flips(), (9, 14))]


def reconstructor(name="unet", n_iterations=2):
    make, noise_level = DENOISERS[name]
    return MoDL(make(), n_iterations=n_iterations, noise_level=noise_level)


def equivariance_gap(f, physics, group, y):
    """Largest |f(y, A T_g) - T_g^-1 f(y, A)| over all g, relative to the largest value of f."""
    g = group.elements()
    ys = y.expand(group.order, -1, -1, -1)
    with torch.no_grad():
        moved = f(ys, VirtualPhysics(physics, group, g))
        expected = group.inverse(f(ys, physics), g)
    return float((moved - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", DENOISERS)
@pytest.mark.parametrize(("group", "size"), CASES, ids=["D4-16", "D4-15", "D4-14", "Flips-9x14"])
def test_full_average_is_an_equivariant_reconstructor(group, size, name):
    physics, plain = line_mri(size), reconstructor(name)
    y = physics.A(randn(1, 2, *size))
    assert equivariance_gap(ReynoldsAveraging(plain, group).eval(), physics, group, y) < 1e-5
    assert equivariance_gap(plain, physics, group, y) > 1e-2  # without the average it is not


@pytest.mark.parametrize("mask", ["points", "each item"])
def test_full_average_is_equivariant_for_every_mask(mask):
    group = D4()
    physics = MRI((torch.rand(8 if mask == "each item" else 1, 1, 16, 16, generator=rng()) < 0.4).float(), (16, 16))
    y = physics.A(randn(8, 2, 16, 16))
    assert equivariance_gap(ReynoldsAveraging(reconstructor(), group).eval(), physics, group, y) < 1e-5


def test_full_average_is_the_mean_of_all_single_terms():
    physics, group = line_mri((8, 8)), D4()
    network, y = ReynoldsAveraging(reconstructor(), group).eval(), physics.A(randn(2, 2, 8, 8))
    terms = [network(y, physics, g=g.expand(2)) for g in group.elements()]
    torch.testing.assert_close(network(y, physics), torch.stack(terms).mean(0))


def test_expectation_of_training_mode_is_the_full_average():
    physics, group = line_mri((8, 8)), D4()
    network, y = ReynoldsAveraging(reconstructor(), group), physics.A(randn(1, 2, 8, 8))
    full = network.eval()(y, physics)
    network.train()
    each = network(y.expand(8, -1, -1, -1), physics, g=group.elements())
    torch.testing.assert_close(each.mean(0, keepdim=True), full)
    assert (each - full).abs().max() > 0.05 * full.abs().max()  # the terms differ
    drawn = network(y.expand(64, -1, -1, -1), physics, rng())
    nearest = torch.cdist(drawn.flatten(1), each.flatten(1)).min(1)
    assert nearest.values.max() < 1e-3 * full.norm()  # every random pass is one of the eight terms
    assert len(nearest.indices.unique()) == 8


@pytest.mark.parametrize("mode", ["train", "sample"])
def test_one_pass_and_one_g_for_each_item_while_training(mode):
    calls = []

    class Spy(torch.nn.Module):
        def forward(self, y, physics, generator=None):
            calls.append(physics.g)
            return physics.A_adjoint(y)

    network = ReynoldsAveraging(Spy(), D4(), "sample" if mode == "sample" else "full").train(mode == "train")
    network(torch.zeros(64, 2, 8, 8), line_mri((8, 8)), rng())
    assert len(calls) == 1
    assert torch.equal(calls[0], D4().sample(64, rng()))
    assert len(calls[0].unique()) == 8


def test_equivariant_reconstructor_is_not_changed_by_the_average():
    class ZeroFilled(torch.nn.Module):
        def forward(self, y, physics, generator=None):
            return physics.A_adjoint(y)

    physics, y = line_mri((8, 8)), randn(2, 2, 8, 8)
    for network in (ReynoldsAveraging(ZeroFilled(), D4()), ReynoldsAveraging(ZeroFilled(), D4()).eval()):
        torch.testing.assert_close(network(y, physics, rng()), physics.A_adjoint(y), rtol=0, atol=1e-6)


def test_generators_of_the_items_decide_their_g():
    physics, network = line_mri((8, 8)), ReynoldsAveraging(reconstructor(), D4())
    y = physics.A(randn(4, 2, 8, 8))
    together = network(y, physics, [item_generator(0, key) for key in "abcd"])
    alone = network(y[2:3], physics, [item_generator(0, "c")])
    torch.testing.assert_close(together[2:3], alone)


def test_gradients_reach_every_parameter():
    physics, network = line_mri((8, 8)), ReynoldsAveraging(reconstructor(), D4())
    for mode in (True, False):
        network.train(mode).zero_grad()
        network(physics.A(randn(2, 2, 8, 8)), physics, rng()).square().mean().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


@pytest.mark.parametrize("mode", [True, False])
def test_d4_on_rectangular_images_names_both_sides(mode):
    network = ReynoldsAveraging(reconstructor(), D4()).train(mode)
    with pytest.raises(ValueError, match=r"32 x 24.*Flips"):
        network(torch.zeros(1, 2, 32, 24), line_mri((32, 24)))


@pytest.mark.usefixtures("unchecked")
def test_unknown_evaluation_names_the_valid_ones():
    with pytest.raises(ValueError, match="full or sample, got 'mean'"):
        ReynoldsAveraging(reconstructor(), D4(), "mean")
