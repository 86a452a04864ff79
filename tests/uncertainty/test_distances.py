"""Distances from ground truth, and from held-out measurements without it."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import randn, rng
from stand_ins import SIZE, Around, measured_pixels, nothing

from es_medical.groups import Shifts
from es_medical.physics import MRI, Batch, measure
from es_medical.splits import Split
from es_medical.uncertainty import Distances, EquivariantBootstrap, heldout_distances, image_distances, joined
from es_medical.uncertainty.folds import representation

SIGMA = 0.5
SPLIT = Split("values", 0.75)


def batch(sigma=SIGMA):
    return measured_pixels(randn(4, 1, *SIZE, seed=4), sigma)


def test_image_distances_are_root_mean_squares():
    measured = batch()
    found = image_distances(nothing, Around([0.1, -0.2]), measured)
    torch.testing.assert_close(found.error, measured.image.square().flatten(1).mean(1).sqrt())
    torch.testing.assert_close(found.resampled, torch.tensor([[0.1, 0.2]]).expand(4, -1))


def test_image_distances_need_an_image():
    with pytest.raises(ValueError, match="distances over pixels need ground truth"):
        image_distances(nothing, Around([0.1]), replace(batch(), image=None))


def test_heldout_distances_are_root_mean_squares_over_what_is_held_out():
    measured = batch()
    found = heldout_distances(nothing, Around([0.1, -0.2]), measured, SPLIT, 3)
    torch.testing.assert_close(found.resampled, torch.tensor([[0.1, 0.2]]).expand(4, -1))


def test_noise_of_the_held_out_measurements_is_taken_off():
    """E of error^2 is the mean square of x on the held-out entries, 1 here, though noise of half its size is on y (4 s.e.)."""
    measured = measured_pixels(torch.ones(4000, 1, *SIZE), 0.5)
    square = heldout_distances(nothing, Around([0.1, 0.2]), measured, SPLIT, 2).error.square()
    assert abs(float(square.mean()) - 1) < 4 * float(square.std()) / math.sqrt(4000)


def test_perfect_reconstruction_of_noiseless_measurements_has_no_error():
    measured = batch(sigma=0.0)
    assert (heldout_distances(lambda batch: batch.image, Around([0.1, 0.2]), measured, SPLIT).error == 0).all()


def test_noise_larger_than_the_residual_counts_as_no_error():
    loud = replace(batch(sigma=0.0), sigma=torch.full((4,), 9.0))
    assert (heldout_distances(lambda batch: batch.image, Around([0.1, 0.2]), loud, SPLIT).error == 0).all()


def test_reconstruction_never_sees_what_it_is_judged_by():
    measured = batch()
    seen = []

    def f(batch):
        y, physics = batch.y, batch.physics
        assert (y[physics.mask.expand_as(y) == 0] == 0).all()
        seen.append(physics.mask.expand_as(y))
        return physics.A_adjoint(y)

    found = heldout_distances(f, Around([0.1, 0.2]), measured, SPLIT, 5)
    m = int(measured.physics.mask.sum())
    assert len(seen) == 5
    assert all(0.75 * m < int(mask[0].sum()) < 0.85 * m for mask in seen)
    held = torch.stack([(measured.physics.mask - mask) * measured.y for mask in seen])  # A^T y_1 is zero there
    energy = (held.square() - SIGMA**2 * (held != 0)).sum((0, 2, 3, 4)) / (held != 0).sum((0, 2, 3, 4))
    torch.testing.assert_close(found.error, energy.clamp(min=0).sqrt())


def test_numbers_of_an_item_do_not_depend_on_its_batch():
    measured = batch()
    bootstrap = EquivariantBootstrap(Shifts(SIZE), 4)

    def f(batch):
        return 0.8 * batch.physics.A_adjoint(batch.y)

    together = heldout_distances(f, bootstrap, measured, SPLIT)
    one_by_one = (Batch(measured.y[[i]], measured.physics, measured.sigma[[i]], ids=[measured.ids[i]]) for i in range(4))
    alone = [heldout_distances(f, bootstrap, one, SPLIT) for one in one_by_one]
    torch.testing.assert_close(joined(alone).error, together.error)
    torch.testing.assert_close(joined(alone).resampled, together.resampled)


def test_calibration_of_white_images_is_right_up_to_the_share_that_is_seen():
    """White images, noiseless inpainting of a share rho, f = A^T: the bootstrap's errors are sqrt(rho) times the true ones.

    On held-out measurements they are sqrt(s rho) times those, where a share s = 1 - 1/5 is seen: calibrated intervals are too
    wide by 1 / sqrt(s), less with more folds, and never too narrow. Within 3 %: 400 items of 64 pixels.
    """
    measured = measured_pixels(randn(400, 1, *SIZE))
    share = float(measured.physics.mask.mean())

    def f(batch):
        return batch.physics.A_adjoint(batch.y)

    def underestimated(found):
        return float((found.resampled.square().mean() / found.error.square().mean()).sqrt())

    bootstrap = EquivariantBootstrap(Shifts(SIZE), 8)
    assert underestimated(image_distances(f, bootstrap, measured)) == pytest.approx(share**0.5, rel=0.03)
    assert underestimated(heldout_distances(f, bootstrap, measured, SPLIT, 5)) == pytest.approx((share * 0.8) ** 0.5, rel=0.03)


def test_lines_count_by_how_many_they_stand_for():
    """f = 0: the error is the mean over the held-out lines of |y_2|^2, each times its weight."""
    physics, split = MRI(torch.tensor([0.0, 1, 0, 1, 1, 1, 1, 0]), SIZE), Split(n_center=3)  # columns 1 and 6 may be held out
    measured = Batch(measure(physics, randn(2, 2, *SIZE), 0.0, rng()), physics, torch.zeros(2), ids=["a", "b"])
    found = heldout_distances(nothing, Around([0.1, 0.2]), measured, split)
    weights, energy = representation(physics, split).flatten(), measured.y.square().sum((1, 2))  # of each column
    assert weights[1] > weights[6] > 0
    torch.testing.assert_close(found.error, ((energy * weights).sum(1) / (16 * weights.sum())).sqrt())


def test_quantiles_are_of_each_item():
    found = Distances(torch.zeros(2), torch.tensor([[0.0, 1.0, 2.0], [0.0, 10.0, 20.0]]))
    assert found.quantile(0.5).tolist() == [1, 10]
    assert found.root_mean_square.tolist() == pytest.approx([(5 / 3) ** 0.5, 10 * (5 / 3) ** 0.5])
    assert found.times(torch.tensor([[1.0, 2.0]])).resampled[1].tolist() == pytest.approx([12.90994, 25.81989], rel=1e-4)


def test_what_does_not_belong_together_is_refused(unchecked):
    with pytest.raises(ValueError, match=r"errors \(2,\) and resampled \(3, 4\): expected n, n x N"):
        Distances(torch.zeros(2), torch.zeros(3, 4))
