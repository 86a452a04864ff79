import torch
from helpers import line_mri, randn, virtual_batch

from es_medical.groups import D4
from es_medical.losses import MeasurementConsistency, Supervised
from es_medical.physics import Batch


class Fixed:
    """A reconstructor that returns a given image."""

    def __init__(self, image):
        self.image = image

    def __call__(self, y, physics, generator=None):
        return self.image


def test_supervised_is_the_mean_square_error_of_each_item():
    x, x_hat, physics = randn(3, 2, 8, 8), randn(3, 2, 8, 8, seed=1), line_mri((8, 8))
    value = Supervised()(Fixed(x_hat), Batch(physics.A(x), physics, image=x))
    torch.testing.assert_close(value.total, torch.stack([(x_hat[i] - x[i]).square().mean() for i in range(3)]))
    assert torch.equal(value.parts["supervised"], value.total)
    assert (Supervised()(Fixed(x), Batch(physics.A(x), physics, image=x)).total == 0).all()


def test_consistency_is_the_mean_square_over_measured_numbers():
    x_hat, y, physics = randn(3, 2, 8, 8), randn(3, 2, 8, 8, seed=1), line_mri((8, 8))
    value = MeasurementConsistency()(Fixed(x_hat), Batch(y * physics.mask, physics))
    measured = physics.mask.expand_as(y).bool()
    expected = [(physics.A(x_hat) - y)[i][measured[i]].square().mean() for i in range(3)]
    torch.testing.assert_close(value.total, torch.stack(expected))
    assert torch.equal(value.parts["consistency"], value.total)


def test_consistency_is_blind_to_the_null_space():
    physics = line_mri((8, 8))
    x, v = randn(2, 2, 8, 8, dtype=torch.float64), randn(2, 2, 8, 8, seed=1, dtype=torch.float64)
    hidden = 100 * (v - physics.A_adjoint_A(v))
    assert hidden.norm() > 1
    assert (MeasurementConsistency()(Fixed(x + hidden), Batch(physics.A(x), physics)).total < 1e-24).all()
    assert (MeasurementConsistency()(Fixed(x + v), Batch(physics.A(x), physics)).total > 1e-2).all()


def test_consistency_sees_a_virtual_operator():
    group, physics = D4(), line_mri((8, 8))
    x = randn(8, 2, 8, 8, dtype=torch.float64)
    virtual = virtual_batch(physics, group)
    loss = MeasurementConsistency()
    assert (loss(Fixed(group.inverse(x, group.elements())), Batch(physics.A(x), virtual)).total < 1e-24).all()
