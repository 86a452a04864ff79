import pytest
import torch
from helpers import Recorder, coil_maps, line_mri, randn, rng, virtual_batch, within

from es_medical.groups import D4
from es_medical.losses import MeasurementConsistency, Supervised, SupervisedOnSplits
from es_medical.physics import CT, MRI, Batch, CompressedSensing, Inpainting, MultiCoilMRI, gaussian_matrix
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.splits import Split


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


# --- supervised, on splits


SENSING = CompressedSensing(gaussian_matrix(6, 16, 0), (4, 4))
COILS = MultiCoilMRI(line_mri((8, 8)).mask, coil_maps(64, 3, (8, 8)))
SPLITTABLE = {
    "mri": (line_mri((8, 8)), Split(split_ratio=0.5)),
    "points": (MRI((randn(64, 1, 8, 8, seed=3) > -1).float(), (8, 8)), Split("samples", 0.6)),
    "coils": (COILS, Split(split_ratio=0.5)),
    "values": (Inpainting((randn(64, 3, 6, 6) > -0.3).float(), (6, 6), 3), Split("values", 0.6)),
    "sensing": (SENSING, Split("rows", 0.6)),
    "views": (CT(ParallelBeam((8, 8), n_views=5)), Split("views", 0.6)),
}


@pytest.fixture(params=SPLITTABLE, scope="module")
def seen(request):
    """What the network is given of 64 items of noise level 1, and their problem."""
    physics, split = SPLITTABLE[request.param]
    x = randn(64, *physics.img_size)
    batch = Batch(physics.A(x), physics, torch.ones(64), x)
    recorder = Recorder(lambda y, physics, generator=None: torch.zeros_like(x))
    value = SupervisedOnSplits(split, alpha=0.5)(recorder, batch, rng(2))
    return batch, recorder, value


def masks(physics, y):
    """Measured entries of each item, with the shape of y."""
    return physics.mask.expand_as(y).bool()


def wholes(seen):
    """Which items are given whole."""
    batch, recorder, _ = seen
    return (masks(recorder.physics[0], batch.y) == masks(batch.physics, batch.y)).flatten(1).all(1)


def test_about_half_of_the_items_are_whole_and_exactly_as_measured(seen):
    batch, recorder, _ = seen
    whole = wholes(seen)
    assert 16 <= int(whole.sum()) <= 48  # 4 standard deviations of a fair coin
    assert torch.equal(recorder.given[0][whole], batch.y[whole])


def test_the_other_items_get_a_part_of_their_own_and_noise_on_it_alone(seen):
    batch, recorder, _ = seen
    given, mine, all_of_it = recorder.given[0], masks(recorder.physics[0], batch.y), masks(batch.physics, batch.y)
    split = ~wholes(seen)
    assert not (mine & ~all_of_it).any()
    assert (mine.flatten(1).sum(1)[split] > 0).all()
    assert (given[~mine] == 0).all()
    assert not torch.equal(mine[split][0], mine[split][1]) or not torch.equal(mine[split][0], mine[split][2])
    noise = (given - batch.y)[split][mine[split]]
    assert within(noise, 0.0)
    assert within(noise.square(), 0.25)  # (alpha sigma)^2
    assert len(noise.unique()) > 0.99 * len(noise)


def test_it_is_the_error_of_the_image_of_each_item(seen):
    batch, _, value = seen
    torch.testing.assert_close(value.total, batch.image.square().flatten(1).mean(1))


def test_noise_on_a_split_is_that_of_the_slice():
    """Items without noise get none."""
    physics, x = line_mri((8, 8)), randn(64, 2, 8, 8)
    levels = torch.linspace(0, 1, 64).round()
    recorder = Recorder(lambda y, physics, generator=None: x)
    SupervisedOnSplits(Split(split_ratio=0.5))(recorder, Batch(physics.A(x), physics, levels, x), rng())
    mine = masks(recorder.physics[0], recorder.given[0])
    changed = ((recorder.given[0] - physics.A(x)) * mine).flatten(1).any(1)
    assert not changed[levels == 0].any()
    assert changed[levels == 1].any()
