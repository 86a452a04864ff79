"""Folds of held-out measurements, and what they stand for."""

import pytest
import torch
from helpers import line_mri, rng

from es_medical.physics import MRI, CompressedSensing, Inpainting, gaussian_matrix
from es_medical.randomness import item_generator
from es_medical.splits import Split
from es_medical.uncertainty.folds import folds, representation

IDS = ["a", "b", "c"]


def drawn(split, physics, n_folds, ids=IDS):
    generators = [item_generator(0, one) for one in ids]
    return torch.stack(list(folds(split, physics, len(ids), generators, n_folds)))


MASK = torch.rand(3, 8, 8, generator=rng(1)) < 0.5
CASES = {
    "lines": (Split("lines", n_center=3), line_mri((8, 32))),
    "samples": (Split("samples", n_center=3), MRI(torch.rand(8, 16, generator=rng()) < 0.6, (8, 16))),
    "values": (Split("values"), Inpainting(MASK, (8, 8), 3)),
    "pixels": (Split("pixels"), Inpainting(MASK[:1], (8, 8), 3)),
    "rows": (Split("rows"), CompressedSensing(gaussian_matrix(20, 64, 0), (8, 8))),
}


@pytest.mark.parametrize("case", CASES)
def test_folds_are_disjoint_of_equal_size_and_hold_all_that_may_be_held_out(case):
    split, physics = CASES[case]
    found = drawn(split, physics, 4)
    assert len(found) == 4
    together = found.sum(0)
    assert set(together.unique().tolist()) <= {0.0, 1.0}
    assert (together <= physics.mask).all()
    sizes = found.flatten(2).sum(2)
    assert sizes.min() > 0
    assert sizes.max() - sizes.min() <= max(2, 0.1 * float(sizes.max()))
    seen = (physics.mask - together).flatten(1).sum(1)  # what was never held out
    if split.n_center:
        central = torch.zeros(physics.image_size[1])
        central[physics.image_size[1] // 2 - 1 : physics.image_size[1] // 2 + 2] = 1
        assert torch.equal(seen, (physics.mask * central).flatten(1).sum(1).expand(3))
    else:
        assert (seen == 1).all()


def test_items_have_their_own_folds_whatever_their_batch():
    split, physics = CASES["values"]
    found = drawn(split, physics, 3)
    assert not torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(drawn(split, physics, 3, ["c", "a"]), found[:, [2, 0]])


def test_more_folds_than_lines_hold_out_one_line_each():
    split, physics = CASES["lines"]
    found = drawn(split, physics, 100)
    assert (found.flatten(2).sum(2) == 1).all()
    assert len(found) == int(physics.mask.sum()) - 3


def test_missing_lines_are_given_to_the_nearest_ones_that_may_be_held_out():
    """Width 64, so nearness is a Gaussian of 4 columns: column 20 stands for the outer ones, column 6 for the inner.

    Shares by the formula: sum over missing lines of K(i, j) / sum over held lines of K(i, j').
    """
    mask = torch.zeros(64)
    mask[[31, 32, 33, 38, 52]] = 1  # centre of three; columns 6 and 20 may be held out
    weights = representation(MRI(mask, (4, 64)), Split("lines", n_center=3)).flatten()
    distance = (torch.arange(64) - 32).abs()
    near, far = (torch.exp(-0.5 * ((distance[mask == 0] - place) / 4) ** 2) for place in (6, 20))
    assert set(weights.nonzero().flatten().tolist()) == {38, 52}
    assert float(weights[38]) == pytest.approx(float((near / (near + far)).sum()), rel=1e-5)
    assert float(weights[52]) == pytest.approx(float((far / (near + far)).sum()), rel=1e-5)
    assert float(weights.sum()) == pytest.approx(59)


def test_lines_of_one_distance_share():
    mask = torch.zeros(16)
    mask[[7, 8, 9, 3, 13]] = 1  # centre of three; columns -5 and 5
    weights = representation(MRI(mask, (4, 16)), Split("lines", n_center=3)).flatten()
    assert weights[[3, 13]].tolist() == pytest.approx([5.5, 5.5])


def test_weights_of_samples_count_the_missing_ones():
    split, physics = CASES["samples"]
    weights = representation(physics, split)
    assert weights.shape[-2:] == (8, 16)
    assert (weights[physics.mask == 0] == 0).all()
    torch.testing.assert_close(weights.sum(), (1 - physics.mask).sum())


@pytest.mark.parametrize("case", ["values", "rows"])
def test_entries_of_other_measurements_stand_for_all_alike(case):
    split, physics = CASES[case]
    assert (representation(physics, split) == 1).all()


def test_full_sampling_has_nothing_to_stand_for():
    physics = MRI(torch.ones(8), (4, 8))
    assert (representation(physics, Split("lines", n_center=3)) == 1).all()
