import pytest
import torch
from helpers import assert_group_axioms, dot, randn, rng

from es_medical.groups import D4, Flips
from es_medical.randomness import item_generator

CASES = [(D4(), (6, 6)), (D4(), (5, 5)), (Flips(), (6, 6)), (Flips(), (4, 7)), (Flips(), (5, 3))]
CHI_SQUARE_1E_6 = {8: 40.5, 4: 30.7}  # upper 1e-6 point, 7 and 3 degrees of freedom
cases = pytest.mark.parametrize(("group", "size"), CASES, ids=lambda one: one if isinstance(one, tuple) else type(one).__name__)


@cases
def test_group_axioms(group, size):
    assert_group_axioms(group, size)


def test_d4_images_are_the_rotations_and_flips():
    x = randn(1, 2, 5, 5)
    rotations = [torch.rot90(x, k, (-2, -1)) for k in range(4)]
    expected = {tuple(one.flatten().tolist()) for r in rotations for one in (r, r.flip(-1))}
    found = D4().apply(x.expand(8, -1, -1, -1), D4().elements())
    assert {tuple(one.flatten().tolist()) for one in found} == expected


def test_flips_images_are_the_flips_and_the_half_turn():
    x = randn(1, 2, 4, 7)
    expected = {tuple(one.flatten().tolist()) for one in (x, x.flip(-1), x.flip(-2), x.flip(-1, -2))}
    found = Flips().apply(x.expand(4, -1, -1, -1), Flips().elements())
    assert {tuple(one.flatten().tolist()) for one in found} == expected


def test_d4_does_not_commute():
    g, h = torch.meshgrid(D4().elements(), D4().elements(), indexing="ij")
    assert not torch.equal(D4().compose(g, h), D4().compose(h, g))


@cases
@pytest.mark.parametrize("method", ["apply", "inverse"])
def test_every_item_has_its_own_g(group, size, method):
    g = group.sample(20, rng(1))
    x = randn(20, 3, *size)
    together = getattr(group, method)(x, g)
    alone = torch.cat([getattr(group, method)(x[i : i + 1], g[i : i + 1]) for i in range(20)])
    assert torch.equal(together, alone)


@cases
def test_inverse_is_the_transpose_under_autograd(group, size):
    g = group.elements()
    x, v = randn(len(g), 2, *size).requires_grad_(), randn(len(g), 2, *size, seed=1)
    dot(group.apply(x, g), v).sum().backward()
    assert torch.equal(x.grad, group.inverse(v, g))


@pytest.mark.parametrize("group", [D4(), Flips()])
def test_sampling_is_uniform(group):  # chi-square at 1 - 1e-6
    n = 8_000
    g = group.sample(n, rng(2))
    counts = torch.stack([(g == one).sum() for one in group.elements()])
    assert counts.sum() == n
    assert ((counts - n / group.order) ** 2 / (n / group.order)).sum() < CHI_SQUARE_1E_6[group.order]


@pytest.mark.parametrize("group", [D4(), Flips()])
def test_successive_samples_are_independent(group):  # chi-square of pairs, normal approximation, 6 standard deviations
    g = group.sample(32_000, rng(3))
    index = torch.searchsorted(group.elements(), g)
    pairs = torch.bincount(index[::2] * group.order + index[1::2], minlength=group.order**2)
    expected, freedom = 16_000 / group.order**2, group.order**2 - 1
    assert ((pairs - expected) ** 2 / expected).sum() < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("group", [D4(), Flips()])
def test_sampling_is_seeded_for_each_item(group):
    keys = [str(i) for i in range(30)]
    together = group.sample(30, [item_generator(0, key) for key in keys])
    alone = torch.cat([group.sample(1, [item_generator(0, key)]) for key in keys])
    assert torch.equal(together, alone)
    assert len(together.unique()) == group.order


@pytest.mark.parametrize("method", ["apply", "inverse"])
def test_d4_on_a_rectangle_names_both_sides_and_the_way_out(method):
    with pytest.raises(ValueError, match=r"6 x 4.*Flips"):
        getattr(D4(), method)(randn(1, 2, 6, 4), torch.zeros(1, dtype=torch.long))


def test_flips_accepts_every_size():
    Flips().check((3, 8))
