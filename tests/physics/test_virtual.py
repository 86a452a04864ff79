import pytest
import torch
from helpers import line_mri, randn, rng

from es_medical.groups import D4
from es_medical.physics import VirtualPhysics
from es_medical.splits import Split


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


def test_d4_on_a_rectangular_operator_names_both_sides():
    physics = VirtualPhysics(line_mri((6, 4)), D4(), torch.tensor([1]))
    with pytest.raises(ValueError, match="6 x 4"):
        physics.A(randn(1, 2, 6, 4))
