import pytest
import torch

from es_medical.physics import bernoulli_mask, even_columns, random_columns


def test_share_of_kept_values_is_keep():
    kept = bernoulli_mask((3, 128, 128), 0.3, seed=0).double()
    assert abs(kept.mean() - 0.3) < 4 * (0.3 * 0.7 / kept.numel()) ** 0.5


def test_values_of_channels_are_drawn_independently():
    kept = bernoulli_mask((3, 128, 128), 0.3, seed=0).double()
    centred = (kept - 0.3).flatten(1) / (0.3 * 0.7) ** 0.5
    correlation = centred @ centred.T / centred.shape[1]
    assert (correlation.fill_diagonal_(0).abs() < 4 / centred.shape[1] ** 0.5).all()


def test_pixels_are_one_channel_of_values():
    assert bernoulli_mask((1, 8, 6), 0.5, seed=0).shape == (1, 8, 6)


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.5, 0.55, 0.9])
@pytest.mark.parametrize("width", [16, 37, 128])
def test_random_columns_have_the_exact_count(width, keep):
    for seed in range(10):
        mask = random_columns(width, keep, seed)
        assert mask.shape == (width,)
        assert int(mask.sum()) == round(keep * width)


def test_every_column_is_as_likely():
    counts = torch.stack([random_columns(12, 0.5, seed) for seed in range(2000)]).double().mean(0)
    assert ((counts - 0.5).abs() < 4.5 * (0.25 / 2000) ** 0.5).all()


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_even_columns_are_a_step_apart_from_the_first(step):
    assert even_columns(7, step).nonzero().flatten().tolist() == list(range(0, 7, step))


def test_keep_1_keeps_everything():
    assert bernoulli_mask((1, 4, 4), 1.0, seed=0).all()
    assert random_columns(8, 1.0, seed=0).all()
    assert even_columns(8, 1).all()


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, 30, float("nan")])
def test_keep_that_is_no_share_is_refused(keep):
    for draw in (lambda: bernoulli_mask((1, 4, 4), keep, 0), lambda: random_columns(8, keep, 0)):
        with pytest.raises(ValueError, match=rf"greater than 0 and at most 1, got {keep}"):
            draw()


def test_mask_that_measures_nothing_is_refused():
    with pytest.raises(ValueError, match=r"keep=0.001 and seed=0 keep none of 4 values"):
        bernoulli_mask((1, 2, 2), 0.001, seed=0)
    with pytest.raises(ValueError, match=r"keep=0.05 keep none of 8 columns"):
        random_columns(8, 0.05, seed=0)


def test_mask_that_leaves_nothing_out_is_refused():
    with pytest.raises(ValueError, match=r"keep=0.999 and seed=0 keep all of 4 values.*keep=1 asks for that"):
        bernoulli_mask((1, 2, 2), 0.999, seed=0)
    with pytest.raises(ValueError, match=r"keep=0.95 keep all of 8 columns"):
        random_columns(8, 0.95, seed=0)


@pytest.mark.parametrize(("width", "step"), [(8, 0), (8, -2), (8, 9), (0, 1)])
def test_step_out_of_range_is_refused(width, step):
    with pytest.raises(ValueError, match=f"from 1 to the width, {width}; got {step}"):
        even_columns(width, step)
