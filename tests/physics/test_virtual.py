import pytest
import torch
from helpers import (
    assert_adjoint,
    assert_gradients,
    assert_prox_equals_cg,
    assert_pseudo_inverse,
    assert_unchanged,
    line_mri,
    randn,
    rng,
    snapshot,
    virtual_batch,
)

from es_medical.groups import D4, Flips
from es_medical.physics import MRI, VirtualPhysics
from es_medical.splits import Split

CASES = [(D4(), (8, 8)), (D4(), (7, 7)), (Flips(), (6, 9))]
cases = pytest.mark.parametrize(("group", "size"), CASES, ids=["D4-even", "D4-odd", "Flips"])


def operators(group, size):
    """A T_g and M A T_g for every g at once: one operator mask or one for each item, lines or points, split or not."""
    points = (torch.rand(group.order, 1, *size, generator=rng(1)) < 0.6).float()
    virtual = [virtual_batch(physics, group) for physics in (line_mri(size), MRI(points, size))]
    splits = [Split(split_ratio=0.6), Split("samples", 0.6)]
    return virtual + [A.masked(split(A, group.order, rng(2))) for A in virtual for split in splits]


@cases
def test_measurements_are_those_of_the_transformed_image(group, size):
    x = randn(group.order, 2, *size)
    for physics in operators(group, size):
        assert torch.equal(physics.A(x), physics.physics.A(group.apply(x, group.elements())))


@cases
def test_virtual_operator_explains_the_same_measurements(group, size):
    x = randn(group.order, 2, *size, dtype=torch.float64)
    for physics in operators(group, size):
        seen = physics.A(group.inverse(x, group.elements()))  # (A T_g)(T_g^-1 x) = A x
        torch.testing.assert_close(seen, physics.physics.A(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@cases
def test_adjoint_of_virtual_operator(group, size, dtype):
    for physics in operators(group, size):
        assert_adjoint(physics, randn(group.order, 2, *size, dtype=dtype))


@cases
def test_pseudo_inverse_of_virtual_operator(group, size):
    for physics in operators(group, size):
        assert_pseudo_inverse(physics, randn(group.order, 2, *size, dtype=torch.float64))


@pytest.mark.parametrize("gamma", [1e-3, 1.0, 30.0, torch.tensor(2.5)])
@cases
def test_prox_of_virtual_operator_equals_cg(group, size, gamma):
    for physics in operators(group, size):
        assert_prox_equals_cg(physics, randn(group.order, 2, *size, dtype=torch.float64), gamma)


@cases
def test_prox_with_a_step_for_each_item_equals_cg(group, size):
    gamma = torch.linspace(0.1, 9.0, group.order, dtype=torch.float64)
    for physics in operators(group, size):
        assert_prox_equals_cg(physics, randn(group.order, 2, *size, dtype=torch.float64), gamma)


@pytest.mark.parametrize("g", range(8))
def test_prox_of_virtual_operator_equals_cg_for_a_batch_with_one_g(g):
    physics = VirtualPhysics(line_mri((8, 8)), D4(), torch.full((2,), g))
    assert_prox_equals_cg(physics, randn(2, 2, 8, 8, dtype=torch.float64), 0.7)
    assert_prox_equals_cg(physics.masked(Split()(physics, 2, rng())), randn(2, 2, 8, 8, dtype=torch.float64), 0.7)


def test_gradients_of_virtual_operator():
    for physics in operators(D4(), (4, 4))[:3]:
        assert_gradients(physics, randn(8, 2, 4, 4, dtype=torch.float64))


def test_virtual_of_virtual_composes():
    group, x = D4(), randn(8, 2, 6, 6)
    physics, g, h = line_mri((6, 6)), group.sample(8, rng(1)), group.sample(8, rng(2))
    nested = VirtualPhysics(VirtualPhysics(physics, group, g), group, h)
    direct = VirtualPhysics(physics, group, group.compose(g, h))
    assert torch.equal(nested.A(x), direct.A(x))
    y = physics.A(x)
    assert torch.equal(nested.A_adjoint(y), direct.A_adjoint(y))
    torch.testing.assert_close(nested.prox_l2(x, y, 0.5), direct.prox_l2(x, y, 0.5))


def test_masking_and_transforming_commute():
    physics, g, x = line_mri((6, 6)), D4().elements(), randn(8, 2, 6, 6)
    m = Split(split_ratio=0.5)(physics, 8, rng())
    first, second = VirtualPhysics(physics, D4(), g).masked(m), VirtualPhysics(physics.masked(m), D4(), g)
    assert torch.equal(first.mask, second.mask)
    assert torch.equal(first.A(x), second.A(x))


def test_virtual_operator_leaves_its_parent_alone():
    physics = line_mri((6, 6))
    before, x = snapshot(physics), randn(8, 2, 6, 6)
    virtual = virtual_batch(physics, D4())
    virtual.masked(torch.zeros(6)).prox_l2(x, virtual.A(x), 1.0)
    assert_unchanged(physics, before)


def test_d4_on_a_rectangular_operator_names_both_sides():
    physics = VirtualPhysics(line_mri((6, 4)), D4(), torch.tensor([1]))
    with pytest.raises(ValueError, match="6 x 4"):
        physics.A(randn(1, 2, 6, 4))
