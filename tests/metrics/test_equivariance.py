import math

import pytest
import torch
from helpers import line_mri, randn

from es_medical.groups import D4, Flips, Shifts
from es_medical.metrics import equivariance
from es_medical.networks import ArtifactRemoval, MoDL, ReynoldsAveraging, shift_unet, unet
from es_medical.physics import VirtualPhysics


def plain(seed=0):
    torch.manual_seed(seed)
    return MoDL(unet(2, (4, 8)), n_iterations=2).eval()


@pytest.mark.parametrize(("group", "size"), [(D4(), (8, 8)), (Flips(), (8, 12))])
def test_full_average_is_exact(group, size):
    physics = line_mri(size)
    y = physics.A(0.2 * randn(16, 2, *size))
    with torch.no_grad():
        assert (equivariance(ReynoldsAveraging(plain(), group).eval(), y, physics, group) == math.inf).all()


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


def constant(value):
    return lambda y, physics: torch.full((len(y), 1, 4, 4), value)


@pytest.mark.parametrize("value", [0.0, 1e-20, 1.0])
def test_no_error_at_all_is_infinite(value):
    found = equivariance(constant(value), torch.zeros(3, 1, 4, 4), line_mri((4, 4)), D4())
    assert found.tolist() == [math.inf] * 3


def test_small_images_are_not_exact_for_being_small():
    """A fault of the images' own size is no rounding, however small it is beside the data range."""
    y = torch.zeros(2, 1, 4, 4)
    found = equivariance(lambda y, physics: 1e-7 * first_row(y, physics), y, line_mri((4, 4)), D4())
    torch.testing.assert_close(found, 140 + equivariance(first_row, y, line_mri((4, 4)), D4()))


@pytest.mark.parametrize(("error", "exact"), [(1e-6, True), (1e-3, False)])
def test_rounding_is_told_from_a_fault(error, exact):
    def reconstruct(y, physics):
        return 1 + error * first_row(y, physics)

    found = equivariance(reconstruct, torch.zeros(2, 1, 4, 4), line_mri((4, 4)), D4())
    assert (found == math.inf).all() if exact else (found < 110).all()


def test_nan_stays_nan():
    found = equivariance(constant(math.nan), torch.zeros(2, 1, 4, 4), line_mri((4, 4)), D4())
    assert found.isnan().all()


def shift_error(y, physics):
    """f = the first pixel, whatever the operator: 2/n of the squared value for any shift but the identity."""
    x = torch.zeros(len(y), 1, *physics.image_size)
    x[..., 0, 0] = 1.0
    return x


@pytest.mark.parametrize("size", [(4, 4), (6, 8)])
def test_value_over_shifts_is_the_mean_over_the_whole_group(size):
    """All shifts but the identity have the same error here, so a sample of them gives the exact mean."""
    n = size[0] * size[1]
    found = equivariance(shift_error, torch.zeros(2, 1, *size), line_mri(size), Shifts(size))
    torch.testing.assert_close(found, torch.full((2,), -10 * math.log10(2 / n * (n - 1) / n)))


@pytest.mark.parametrize(("size", "n", "calls"), [((4, 4), 3, 16), ((6, 8), 8, 9), ((6, 8), 3, 4), ((1, 1), 8, 1)])
def test_elements_are_all_of_a_small_group_and_a_few_of_a_large_one(size, n, calls):
    seen = []

    def reconstruct(y, physics):
        seen.append(tuple(physics.g[0].tolist()) if isinstance(physics, VirtualPhysics) else (0, 0))
        return shift_error(y, physics)

    for _ in range(2):
        equivariance(reconstruct, torch.zeros(1, 1, *size), line_mri(size), Shifts(size), n_elements=n)
    assert len(seen) == 2 * calls
    assert seen[:calls] == seen[calls:]  # the same ones each time
    assert len(set(seen[:calls])) == calls


def test_sampled_elements_estimate_the_mean_over_the_group():
    group, size = Shifts((6, 6)), (6, 6)
    f, y = ArtifactRemoval(unet(2, (4, 8))), line_mri(size).A(randn(2, 2, *size))
    with torch.no_grad():
        few = equivariance(f, y, line_mri(size), group)
        many = equivariance(f, y, line_mri(size), group, n_elements=35)
    assert (few - many).abs().max() < 3
    assert (few != many).all()


def test_shift_equivariant_network_is_exact_and_the_plain_one_is_not():
    size = (16, 16)
    physics = line_mri(size)
    y = physics.A(0.2 * randn(3, 2, *size))
    with torch.no_grad():
        for wrap in (ArtifactRemoval, MoDL):
            torch.manual_seed(0)
            exact, plain = wrap(shift_unet(2, (4, 8))), wrap(unet(2, (4, 8)))
            assert (equivariance(exact, y, physics, Shifts(size)) == math.inf).all()
            assert (equivariance(plain, y, physics, Shifts(size)) < 80).all()


def test_no_element_is_refused():
    with pytest.raises(ValueError, match="n_elements must be at least 1, got 0"):
        equivariance(shift_error, torch.zeros(1, 1, 6, 8), line_mri((6, 8)), Shifts((6, 8)), n_elements=0)
