"""Dead leaves: power-law sizes, distances and coverage."""

import math

import pytest
import torch

from es_medical.synthetic.grid import pixel_grid
from es_medical.synthetic.leaves import coverage, dead_leaves, distance, ellipse, power_law, random_leaves
from es_medical.synthetic.sampler import Sampler


def sampler(batch=1, seed=0):
    return Sampler(torch.Generator().manual_seed(seed), batch)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0])
def test_sizes_follow_the_power_law(exponent):
    """The maximum-likelihood exponent (Hill) of 20,000 sizes lies within 4 standard errors of the stated one."""
    n = 20_000
    sizes = power_law(sampler(n).uniform(0, 1), 1.0, math.inf, exponent)
    hill = 1 + n / sizes.log().sum()
    assert abs(hill - exponent) < 4 * (exponent - 1) / math.sqrt(n)


def test_sizes_of_leaves_keep_their_bounds():
    leaves = random_leaves(sampler(50), 40, 0.1, 0.8)
    assert leaves.a.min() >= 0.1
    assert leaves.a.max() <= 0.8 + 1e-6


def test_distance_is_exact_for_a_disc():
    grid = pixel_grid(1, (32, 32))
    disc = ellipse(*(torch.tensor([v]) for v in (0.1, -0.2, 0.5, 0.5)))
    torch.testing.assert_close(distance(grid, disc), torch.hypot(grid.x - 0.1, grid.y + 0.2) - 0.5)


def test_coverage_of_a_disc_adds_up_to_its_area():
    grid = pixel_grid(1, (64, 64))
    cover = coverage(distance(grid, ellipse(*(torch.tensor([v]) for v in (0.03, 0.02, 0.6, 0.6)))), grid.pixel)
    assert cover.sum() * grid.pixel**2 == pytest.approx(math.pi * 0.36, rel=2e-3)


def test_the_last_leaf_hides_those_below():
    grid = pixel_grid(1, (16, 16))
    both = ellipse(*(torch.tensor([[v, v]]) for v in (0.0, 0.0, 0.5, 0.5)))
    canvas = dead_leaves(torch.zeros(1, 1, 16, 16), grid, both, torch.tensor([[[0.3], [0.8]]]), grid.pixel)
    assert canvas[0, 0, 8, 8] == pytest.approx(0.8)
    assert canvas[0, 0, 0, 0] == 0
