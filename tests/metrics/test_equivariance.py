import pytest
import torch
from helpers import line_mri, randn

from es_medical.groups import D4, Flips
from es_medical.metrics import MAX_DB, equivariance
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import VirtualPhysics


def plain(seed=0):
    torch.manual_seed(seed)
    return MoDL(unet(2, (4, 8)), n_iterations=2).eval()


@pytest.mark.parametrize(("group", "size"), [(D4(), (8, 8)), (Flips(), (8, 12))])
def test_full_average_has_the_capped_value(group, size):
    physics = line_mri(size)
    y = physics.A(0.2 * randn(16, 2, *size))
    with torch.no_grad():
        assert (equivariance(ReynoldsAveraging(plain(), group).eval(), y, physics, group) == MAX_DB).all()


def test_other_reconstructors_are_below_it():
    physics = line_mri((8, 8))
    y = physics.A(0.2 * randn(16, 2, 8, 8))
    with torch.no_grad():
        assert (equivariance(plain(), y, physics, D4()) < 80).all()


def first_row(y, physics):
    """f = 0.1 in the first row, whatever the operator: T_g^-1 f is another line unless g keeps the first row."""
    x = torch.zeros(len(y), 1, 4, 4)
    x[..., 0, :] = 0.1
    return x


def test_value_is_the_mean_error_over_the_group_in_decibels():
    """Of the eight g, two keep the first row, two move it to the last one and four to a column that it meets in a pixel."""
    errors = torch.tensor([0.0, 0.0] + [8 * 0.01 / 16] * 2 + [6 * 0.01 / 16] * 4)
    found = equivariance(first_row, torch.zeros(3, 1, 4, 4), line_mri((4, 4)), D4())
    torch.testing.assert_close(found, -10 * torch.log10(errors.mean()).expand(3))


def test_network_equivariant_to_a_subgroup_has_the_error_of_the_other_elements():
    """One random g for each item would mix infinite and finite decibels."""
    physics = line_mri((8, 8))
    y = physics.A(0.2 * randn(2, 2, 8, 8))
    network = ReynoldsAveraging(plain(), Flips()).eval()
    with torch.no_grad():
        x = network(y, physics)
        squares = []
        for g in D4().elements():
            difference = network(y, VirtualPhysics(physics, D4(), g.expand(2))) - D4().inverse(x, g.expand(2))
            squares.append(difference.square().flatten(1).mean(1))
        expected = -10 * torch.log10(torch.stack(squares).mean(0))
        torch.testing.assert_close(equivariance(network, y, physics, D4()), expected)


def test_data_range_is_the_unit_of_the_images():
    y = torch.zeros(64, 1, 4, 4)
    one, ten = (equivariance(first_row, y, line_mri((4, 4)), D4(), data_range=r) for r in (1.0, 10.0))
    torch.testing.assert_close(ten, one + 20)


def test_items_do_not_depend_on_their_batch():
    physics, f = line_mri((8, 8)), plain()
    y = physics.A(randn(4, 2, 8, 8))
    with torch.no_grad():
        together = equivariance(f, y, physics, D4())
        alone = equivariance(f, y[1:2], physics, D4())
    torch.testing.assert_close(together[1:2], alone, rtol=1e-4, atol=1e-3)
