import pytest
import torch
from helpers import line_mri, randn, rng

from es_medical.groups import D4
from es_medical.networks import MoDL, ReynoldsAveraging, unet


def reconstructor():
    """Random weights that are large enough for a strong, far from equivariant, response."""
    torch.manual_seed(0)
    network = MoDL(unet(2, (4, 8)), n_iterations=2)
    for parameter in network.denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


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


@pytest.mark.parametrize("mode", [True, False])
def test_d4_on_rectangular_images_names_both_sides(mode):
    network = ReynoldsAveraging(reconstructor(), D4()).train(mode)
    with pytest.raises(ValueError, match=r"32 x 24.*Flips"):
        network(torch.zeros(1, 2, 32, 24), line_mri((32, 24)))


@pytest.mark.usefixtures("unchecked")
def test_unknown_evaluation_names_the_valid_ones():
    with pytest.raises(ValueError, match="full or sample, got 'mean'"):
        ReynoldsAveraging(reconstructor(), D4(), "mean")
