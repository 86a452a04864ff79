"""Strokes: curves through their ends, connected ink, the box of a digit."""

import torch
from scipy import ndimage

from es_medical.synthetic import draw
from es_medical.synthetic.grid import pixel_grid
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.strokes import boxed, curve, ink, random_knots, resampled


def sampler(batch, seed=0):
    return Sampler(torch.Generator().manual_seed(seed), batch)


def test_a_curve_starts_and_ends_at_its_outer_control_points():
    knots = random_knots(sampler(8), 6)
    points = curve(knots, 50)
    torch.testing.assert_close(points[:, 0], knots[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(points[:, -1], knots[:, -1], rtol=0, atol=1e-3)


def test_resampled_points_lie_at_equal_steps_along_the_polygon():
    corner = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 3.0]]])
    torch.testing.assert_close(resampled(corner, 5)[0], torch.tensor([[0.0, 0], [1, 0], [1, 1], [1, 2], [1, 3]]))


def test_boxed_points_fill_their_box():
    points = boxed(curve(random_knots(sampler(8), 6), 50), torch.full((8,), 0.7))
    torch.testing.assert_close(points.abs().amax((1, 2)), torch.full((8,), 0.7))


def test_one_stroke_is_one_piece():
    grid = pixel_grid(16, (28, 28))
    points = boxed(curve(random_knots(sampler(16), 7), 48), torch.full((16,), 9 / 14))
    image = ink(grid, points, torch.full((16,), 2.5 / 14), torch.full((16,), 1 / 14))
    for one in image:
        assert ndimage.label((one > 0.5).numpy(), structure=torch.ones(3, 3).numpy())[1] == 1


def test_digits_lie_on_a_dark_margin():
    digits = draw("digit", 64, 28, seed=0)[:, 0]
    frame = torch.ones(28, 28, dtype=torch.bool)
    frame[2:-2, 2:-2] = False
    assert digits[:, frame].mean() < 0.01
    assert 0.05 < digits.mean() < 0.3
