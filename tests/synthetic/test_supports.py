"""Coordinates and supports: moved, mirrored and bent as they say."""

import math

import pytest
import torch

from es_medical.synthetic.grid import pixel_grid
from es_medical.synthetic.leaves import distance, ellipse
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.supports import blobs


def sampler(batch, seed=0):
    return Sampler(torch.Generator().manual_seed(seed), batch)


def test_the_grid_is_centred_and_its_shorter_side_is_two_long():
    grid = pixel_grid(1, (16, 32))
    assert float(grid.y.max() - grid.y.min()) == pytest.approx(2 - grid.pixel)
    assert float(grid.x.max() - grid.x.min()) == pytest.approx(4 - grid.pixel)
    assert abs(float(grid.x.mean())) < 1e-6


def test_an_object_lies_where_its_grid_was_moved():
    """A disc at the origin of a moved, turned and scaled grid is a disc of that scale at the new place."""
    at, scale = torch.tensor([0.2]), torch.tensor([0.5])
    moved = pixel_grid(1, (64, 64)).moved(at, -at, torch.tensor([0.7]), scale)
    zero, one = torch.zeros(1), torch.ones(1)
    inside = distance(moved, ellipse(zero, zero, one, one)) < 0
    grid = pixel_grid(1, (64, 64))
    assert torch.equal(inside, torch.hypot(grid.x - 0.2, grid.y + 0.2) < 0.5)


def test_mirrored_grids_are_the_same_left_and_right():
    grid = pixel_grid(2, (16, 16)).mirrored(torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(grid.x[0], grid.x[0].flip(1))
    assert (grid.x[1] - grid.x[1].flip(1)).abs().max() > 1


def test_bending_moves_points_by_about_its_strength():
    grid = pixel_grid(200, (16, 16))
    moved = grid.bent(sampler(200), torch.full((200,), 0.1))
    step = torch.hypot(moved.x - grid.x, moved.y - grid.y)
    assert 0.05 < step.square().mean().sqrt() / math.sqrt(2) < 0.12


def test_a_support_holds_its_centre_and_keeps_its_size():
    scale = torch.full((64,), 0.5)
    outside = blobs(pixel_grid(64, (32, 32)), sampler(64), scale)
    inside = (outside < 0).float()
    assert (inside[:, 15:17, 15:17] == 1).all()
    area = inside.mean((1, 2)) * 4
    assert area.min() > 0.55 * math.pi * 0.25  # an ellipse of aspect 0.6
    assert area.max() < 1.9 * math.pi * 0.25  # a disc, and two of 0.6 times its size at its side
