import pytest
import torch
from helpers import assert_group_axioms, dot, randn, rng

from es_medical.groups import Shifts
from es_medical.groups.shifts import roll_items
from es_medical.randomness import item_generator

SIZES = [(4, 4), (3, 5), (1, 6), (5, 1), (1, 1)]
sizes = pytest.mark.parametrize("size", SIZES)


@sizes
def test_group_axioms(size):
    assert_group_axioms(Shifts(size), size)


@sizes
def test_images_are_those_of_torch_roll(size):
    group, x = Shifts(size), randn(1, 3, *size)
    elements = group.elements()
    assert elements.shape == (size[0] * size[1], 2)
    found = group.apply(x.expand(group.order, -1, -1, -1), elements)
    for image, (dy, dx) in zip(found, elements.tolist(), strict=True):
        assert torch.equal(image, x[0].roll((dy, dx), (-2, -1)))


def test_moved_image_is_that_of_the_definition():
    """(T_g x)[i, j] = x[i - dy, j - dx]."""
    x, height, width = randn(1, 1, 3, 4), 3, 4
    found = Shifts((3, 4)).apply(x, torch.tensor([[2, 3]]))
    for i in range(height):
        for j in range(width):
            assert found[0, 0, i, j] == x[0, 0, (i - 2) % height, (j - 3) % width]


def test_shifts_commute_and_wrap_around():
    group, x = Shifts((4, 6)), randn(5, 2, 4, 6)
    g, h = group.sample(5, rng(1)), group.sample(5, rng(2))
    assert torch.equal(group.compose(g, h), group.compose(h, g))
    far = g + torch.tensor([[4, -6]]) * torch.tensor([[3], [0], [-2], [1], [7]])
    assert torch.equal(group.apply(x, far), group.apply(x, g))


@sizes
@pytest.mark.parametrize("method", ["apply", "inverse"])
def test_every_item_has_its_own_g(size, method):
    group = Shifts(size)
    g, x = group.sample(20, rng(1)), randn(20, 3, *size)
    together = getattr(group, method)(x, g)
    alone = torch.cat([getattr(group, method)(x[i : i + 1], g[i : i + 1]) for i in range(20)])
    assert torch.equal(together, alone)


@sizes
def test_inverse_is_the_transpose_under_autograd(size):
    group = Shifts(size)
    g = group.elements()
    x, v = randn(len(g), 2, *size).requires_grad_(), randn(len(g), 2, *size, seed=1)
    dot(group.apply(x, g), v).sum().backward()
    assert torch.equal(x.grad, group.inverse(v, g))


def test_first_and_second_derivatives():
    x = randn(3, 2, 4, 5, dtype=torch.float64).requires_grad_()
    g = torch.tensor([[1, 2], [0, 0], [-3, 4]])
    assert torch.autograd.gradcheck(lambda one: roll_items(one, g).square(), (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda one: roll_items(one, g).square(), (x,), fast_mode=True)


def test_backward_is_a_selection():
    """No scatter that adds up: autograd's own derivative of an indexed image is several times slower."""
    x = randn(2, 2, 4, 4).requires_grad_()
    with torch.profiler.profile(acc_events=True) as profile:
        Shifts((4, 4)).apply(x, torch.tensor([[1, 2], [3, 0]])).sum().backward()
    called = {event.key for event in profile.key_averages()}
    assert "aten::gather" in called
    assert not any("scatter" in name or "index_put" in name for name in called)


def test_channels_last_images_move_alike():
    x, g = randn(3, 2, 4, 6), torch.tensor([[1, 2], [3, 5], [0, 1]])
    assert torch.equal(roll_items(x.contiguous(memory_format=torch.channels_last), g), roll_items(x, g))


def test_sampling_is_uniform():  # chi-square at 1 - 1e-6, 11 degrees of freedom
    group, n = Shifts((3, 4)), 12_000
    g = group.sample(n, rng(2))
    assert ((g >= 0) & (g < torch.tensor([3, 4]))).all()
    counts = torch.bincount(4 * g[:, 0] + g[:, 1], minlength=12)
    assert ((counts - n / 12) ** 2 / (n / 12)).sum() < 49.0


def test_successive_samples_are_independent():  # chi-square of pairs, normal approximation, 6 standard deviations
    group = Shifts((2, 3))
    g = group.sample(32_000, rng(3))
    index = 3 * g[:, 0] + g[:, 1]
    pairs = torch.bincount(index[::2] * 6 + index[1::2], minlength=36)
    expected = 16_000 / 36
    assert ((pairs - expected) ** 2 / expected).sum() < 35 + 6 * 70**0.5


def test_sampling_is_seeded_for_each_item():
    group, keys = Shifts((8, 8)), [str(i) for i in range(30)]
    together = group.sample(30, [item_generator(0, key) for key in keys])
    alone = torch.cat([group.sample(1, [item_generator(0, key)]) for key in keys])
    assert torch.equal(together, alone)
    assert len({tuple(one) for one in together.tolist()}) > 20


@pytest.mark.parametrize("method", ["apply", "inverse"])
def test_images_of_another_size_are_refused_with_both_sizes(method):
    with pytest.raises(ValueError, match=r"8 x 8, got 6 x 4: make Shifts\(\(6, 4\)\)"):
        getattr(Shifts((8, 8)), method)(randn(1, 2, 6, 4), torch.zeros(1, 2, dtype=torch.long))
    Shifts((6, 4)).check((6, 4))


@pytest.mark.parametrize("size", [(0, 4), (4, -1)])
def test_sizes_without_pixels_are_refused(size):
    with pytest.raises(ValueError, match=f"{size[0]} x {size[1]}"):
        Shifts(size)
