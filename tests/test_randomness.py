import pytest
import torch

from es_medical.randomness import item_generator, normal, uniform


def draw(seed, key, stream=""):
    return torch.rand(4, generator=item_generator(seed, key, stream)).tolist()


def test_item_generator_repeats_itself():
    assert draw(3, "volume-1", "noise") == draw(3, "volume-1", "noise")


def test_item_generator_depends_on_seed_key_and_stream():
    draws = [draw(0, "a"), draw(1, "a"), draw(0, "b"), draw(0, "a", "noise"), draw(0, "a", "split")]
    assert len({tuple(one) for one in draws}) == len(draws)


def test_item_generator_does_not_depend_on_global_state():
    torch.manual_seed(0)
    first = draw(0, "a")
    torch.manual_seed(1)
    torch.rand(3)
    assert draw(0, "a") == first


@pytest.mark.parametrize("draws", [uniform, normal])
def test_an_items_numbers_do_not_depend_on_its_batch(draws):
    keys = ["a", "b", "c"]
    together = draws((3, 2, 4), [item_generator(0, key) for key in keys], "cpu")
    reordered = draws((2, 2, 4), [item_generator(0, key) for key in ("c", "a")], "cpu")
    assert torch.equal(reordered, together[[2, 0]])


def test_number_of_generators_must_match_the_batch():
    with pytest.raises(ValueError, match="2 generators for a batch of 3"):
        uniform((3, 4), [item_generator(0, "a"), item_generator(0, "b")], "cpu")


@pytest.mark.parametrize("draws", [uniform, normal])
def test_one_generator_serves_a_batch_and_advances(draws):
    generator = torch.Generator().manual_seed(0)
    first, second = draws((2, 3), generator, "cpu"), draws((2, 3), generator, "cpu")
    assert first.shape == (2, 3)
    assert not torch.equal(first, second)
    assert torch.equal(first, draws((2, 3), torch.Generator().manual_seed(0), "cpu"))


def test_draws_have_the_stated_moments():  # 5 standard errors
    n = 40_000
    u, z = uniform((n,), torch.Generator().manual_seed(1), "cpu"), normal((n,), torch.Generator().manual_seed(2), "cpu")
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 5 * (1 / 12 / n) ** 0.5
    assert abs(z.mean()) < 5 / n**0.5
    assert abs(z.var() - 1) < 5 * (2 / n) ** 0.5
