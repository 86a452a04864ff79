"""Why the paper's evenly spaced push-broom mask fails under shifts, though the mean Gram matrix has full rank."""

from itertools import combinations

import pytest
import torch

from es_medical.diagnostics.conditional_gram import conditional_gram, joint_rank, rarest_pair
from es_medical.groups import D4, Flips, Shifts
from es_medical.physics import Inpainting, VirtualPhysics, bernoulli_mask, even_columns, random_columns

EVEN = even_columns(8)[None, None]
RANDOM = torch.tensor([[[1, 1, 0, 1, 1, 0, 0, 0]]]).bool()  # all differences occur


def enumerated(mask, group, elements, n_seen):
    """Q of every set of n_seen values that a split can show: the mean of (A T_g)^T A T_g over all g and splits that show it."""
    size = tuple(mask.shape[1:])
    physics = Inpainting(mask, size, len(mask))
    unit = torch.eye(mask.numel(), dtype=torch.float64).view(-1, *mask.shape)
    total, count = {}, {}
    for g in elements:
        one = VirtualPhysics(physics, group, g.expand(len(unit), *g.shape))
        gram = one.A_adjoint(one.A(unit)).flatten(1)
        for shown in combinations(gram.diagonal().nonzero().flatten().tolist(), n_seen):
            total[shown], count[shown] = total.get(shown, 0) + gram, count.get(shown, 0) + 1
    return {shown: total[shown] / count[shown] for shown in total}


@pytest.mark.parametrize("n_seen", [1, 2, 3])
@pytest.mark.parametrize(
    "mask",
    [EVEN, RANDOM, bernoulli_mask((1, 3, 4), 0.4, 0), bernoulli_mask((2, 2, 3), 0.5, 1)],
    ids=["even", "random", "pixels", "values"],
)
def test_the_conditional_gram_equals_the_enumeration_over_shifts_and_splits(mask, n_seen):
    group = Shifts(tuple(mask.shape[1:]))
    for shown, gram in enumerated(mask, group, group.elements(), n_seen).items():
        seen = torch.zeros(mask.numel())
        seen[list(shown)] = 1
        found = conditional_gram(mask, seen.view(mask.shape))
        torch.testing.assert_close(found.flatten(), gram.diagonal(), rtol=0, atol=1e-12)
        assert torch.equal(gram, gram.diagonal().diag())
        assert torch.equal(found.flatten() > 0, gram.diagonal() > 0)


@pytest.mark.parametrize("action", ["none", "flips", "rotations_90", "d4", "shifts"])
@pytest.mark.parametrize("mask", [even_columns(4).expand(1, 4, 4), bernoulli_mask((2, 4, 4), 0.3, 0)], ids=["even", "values"])
def test_the_joint_rank_is_the_mean_rank_of_splits_that_show_one_value(mask, action):
    chosen = {"none": (D4(), [0]), "flips": (Flips(), Flips().elements()), "rotations_90": (D4(), [0, 3, 5, 6])}
    chosen |= {"d4": (D4(), range(8)), "shifts": (Shifts((4, 4)), Shifts((4, 4)).elements())}
    group, elements = chosen[action]
    elements = [torch.as_tensor(g) for g in elements]
    grams = enumerated(mask, group, elements, 1)
    ranks = torch.tensor([float(torch.linalg.matrix_rank(gram)) for gram in grams.values()])
    physics, x = Inpainting(mask, (4, 4), len(mask)), torch.ones(1, len(mask), 4, 4)
    times = sum(VirtualPhysics(physics, group, g[None]).A_adjoint(physics.A(x)).flatten() for g in elements)
    weights = torch.tensor([float(times[shown]) for (shown,) in grams])
    assert joint_rank(mask, action) == pytest.approx(float((ranks * weights).sum() / weights.sum() / mask.numel()))


@pytest.mark.parametrize("n_seen", [2, 3])
def test_no_split_has_a_greater_rank_than_the_joint_rank(n_seen):
    for seed in range(5):
        mask = random_columns(9, 0.4, seed)[None, None]
        grams = enumerated(mask, Shifts((1, 9)), Shifts((1, 9)).elements(), n_seen).values()
        assert max(float(torch.linalg.matrix_rank(gram)) / 9 for gram in grams) <= joint_rank(mask, "shifts") + 1e-12


def test_the_papers_push_broom_masks():
    """128 columns, half of them measured; colour images."""
    even, random = (one.expand(3, 128, 128) for one in (even_columns(128), random_columns(128, 0.5, 0)))
    assert joint_rank(even, "shifts") == 0.5
    assert joint_rank(random, "shifts") == 1
    assert rarest_pair(random) > 0.2
    assert joint_rank(bernoulli_mask((3, 128, 128), 0.3, 0), "shifts") == 1


def test_one_moved_column_opens_all_pairs_but_rarely():
    mask = even_columns(64).clone()
    mask[10], mask[11] = False, True
    assert joint_rank(mask[None, None], "shifts") == 1
    assert rarest_pair(mask[None, None]) <= 2 / 32


def test_what_is_no_split_of_the_mask_is_refused(unchecked):
    with pytest.raises(ValueError, match="2 seen values: they are not a split"):
        conditional_gram(EVEN, torch.tensor([[[1, 1, 0, 0, 0, 0, 0, 0]]]).bool())
    with pytest.raises(ValueError, match="0 seen values"):
        conditional_gram(EVEN, torch.zeros(1, 1, 8))
    with pytest.raises(ValueError, match=r"differ in shape: \(1, 1, 8\) and \(1, 1, 6\)"):
        conditional_gram(EVEN, torch.zeros(1, 1, 6))
    with pytest.raises(ValueError, match="none, flips, rotations_90, d4, shifts; got 'spin'"):
        joint_rank(EVEN, "spin")
