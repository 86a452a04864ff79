import pytest
import torch
from helpers import randn, rng

from es_medical.groups import Shifts
from es_medical.groups.shifts import roll_items

SIZES = [(4, 4), (3, 5), (1, 6), (5, 1), (1, 1)]
sizes = pytest.mark.parametrize("size", SIZES)


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


@pytest.mark.parametrize("size", [(0, 4), (4, -1)])
def test_sizes_without_pixels_are_refused(size):
    with pytest.raises(ValueError, match=f"{size[0]} x {size[1]}"):
        Shifts(size)
