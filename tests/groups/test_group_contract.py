"""What every group of image transformations promises: one list of properties for a table of groups and sizes of images."""

import pytest
import torch
from helpers import assert_group_axioms, dot, randn, rng

from es_medical.groups import D4, FineRotations, Flips, Shifts, Transform
from es_medical.randomness import item_generator

SHIFTS = [(4, 4), (3, 5), (1, 6), (5, 1), (1, 1)]
GROUPS = [(D4(), (6, 6)), (D4(), (5, 5)), (Flips(), (6, 6)), (Flips(), (4, 7)), *((Shifts(size), size) for size in SHIFTS)]
CHI_SQUARE_1E_6 = {12: 49.0, 8: 40.5, 4: 30.7}  # upper 1e-6 point, one degree of freedom less
each_group = pytest.mark.parametrize(
    ("group", "size"), GROUPS, ids=[f"{type(group).__name__} {size[0]}x{size[1]}" for group, size in GROUPS]
)
each_kind = pytest.mark.parametrize(
    "group", [D4(), Flips(), Shifts((3, 4)), FineRotations(45)], ids=lambda one: type(one).__name__
)
each_method = pytest.mark.parametrize("method", ["apply", "inverse"])


def index(group, g):
    """Place of each g in the list of all elements."""
    if isinstance(group, FineRotations):
        return g
    same = group.elements()[:, None] == g
    return (same.all(-1) if same.ndim > 2 else same).int().argmax(0)


@each_group
def test_group_axioms(group, size):
    assert_group_axioms(group, size)


@each_group
def test_inverse_is_the_transpose_under_autograd(group, size):
    g = group.elements()
    x, v = randn(len(g), 2, *size).requires_grad_(), randn(len(g), 2, *size, seed=1)
    dot(group.apply(x, g), v).sum().backward()
    assert torch.equal(x.grad, group.inverse(v, g))


@each_method
@each_group
def test_every_item_has_its_own_g_and_is_not_changed(group, size, method):
    g, x = group.sample(20, rng(1)), randn(20, 3, *size)
    together = getattr(group, method)(x, g)
    alone = torch.cat([getattr(group, method)(x[i : i + 1], g[i : i + 1]) for i in range(20)])
    assert torch.equal(together, alone)
    assert torch.equal(x, randn(20, 3, *size))


@each_kind
def test_sampling_is_uniform(group):  # chi-square at 1 - 1e-6
    n = 12_000
    counts = torch.bincount(index(group, group.sample(n, rng(2))), minlength=group.order)
    assert len(counts) == group.order
    assert ((counts - n / group.order) ** 2 / (n / group.order)).sum() < CHI_SQUARE_1E_6[group.order]


@each_kind
def test_successive_samples_are_independent(group):  # chi-square of pairs, normal approximation, 6 standard deviations
    one = index(group, group.sample(32_000, rng(3)))
    pairs = torch.bincount(one[::2] * group.order + one[1::2], minlength=group.order**2)
    expected, freedom = 16_000 / group.order**2, group.order**2 - 1
    assert ((pairs - expected) ** 2 / expected).sum() < freedom + 6 * (2 * freedom) ** 0.5


@each_kind
def test_sampling_is_seeded_for_each_item(group):
    keys = [str(i) for i in range(30)]
    together = group.sample(30, [item_generator(0, key) for key in keys])
    alone = torch.cat([group.sample(1, [item_generator(0, key)]) for key in keys])
    assert torch.equal(together, alone)
    assert len(together.unique(dim=0)) > 0.6 * group.order


@each_kind
def test_it_is_a_transform(group):
    assert isinstance(group, Transform)


@each_method
@pytest.mark.parametrize(
    ("group", "message"), [(D4(), r"6 x 4.*Flips"), (Shifts((8, 8)), r"8 x 8, got 6 x 4: make Shifts\(\(6, 4\)\)")]
)
def test_images_that_do_not_fit_are_refused_with_the_way_out(group, message, method):
    with pytest.raises(ValueError, match=message):
        getattr(group, method)(randn(1, 2, 6, 4), group.elements()[:1])


def test_sizes_that_fit_are_accepted():
    for group, size in GROUPS:
        group.check(size)
    Flips().check((3, 8))
