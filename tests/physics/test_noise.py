"""Noise models: their samples, and that recorruption makes independent, unbiased pairs."""

import pytest
import torch
from deepinv.loss.r2r import set_beta_corruptor, set_binomial_corruptor
from helpers import rng, within

from es_medical.physics.noise import Gamma, Gaussian, Poisson, draw, target_share
from es_medical.randomness import item_generator

ALPHA = 0.6
SHARE = ALPHA**2 / (1 + ALPHA**2)
LEVELS = torch.tensor([0.4, 1.0, 2.5])  # A x of the three entries
MODELS = {"gaussian": Gaussian(0.7), "poisson": Poisson(0.25), "rare photons": Poisson(1.0), "gamma": Gamma(3.0)}
VARIANCE = {
    "gaussian": lambda x: 0.7**2 + 0 * x,
    "poisson": lambda x: 0.25 * x,
    "rare photons": lambda x: x,
    "gamma": lambda x: x**2 / 3,
}
each_model = pytest.mark.parametrize("name", MODELS)


def pairs(name, n=40_000, seed=1, used=None):
    """y (n, 3) of one clean measurement, y_1 and y_2; `used` recorrupts in place of the model that made y."""
    generator, clean = rng(seed), LEVELS.expand(n, -1)
    y = MODELS[name].sample(clean, generator)
    return y, *(used or MODELS[name]).recorrupt(y, ALPHA, generator)


def independent(y1, y2):
    """The covariance of the two, and of their squares, is 0 within 4 standard errors, in every entry."""
    products = [(a - a.mean(0)) * (b - b.mean(0)) for a in (y1, y1.square()) for b in (y2, y2.square())]
    return all(within(one[:, k], 0.0) for one in products for k in range(one.shape[1]))


@each_model
def test_samples_have_the_mean_and_variance_of_the_model(name):
    y, _, _ = pairs(name)
    for k, x in enumerate(LEVELS):
        assert within(y[:, k], float(x))
        assert within((y[:, k] - x).square(), float(VARIANCE[name](x)))


@each_model
def test_pairs_are_unbiased_with_the_variances_that_alpha_says(name):
    _, y1, y2 = pairs(name)
    for k, x in enumerate(LEVELS):
        for part, share in ((y1, 1 - SHARE), (y2, SHARE)):
            assert within(part[:, k], float(x))
            assert within((part[:, k] - x).square(), float(VARIANCE[name](x)) / share)


@each_model
def test_pairs_are_independent(name):
    assert independent(*pairs(name)[1:])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("gaussian", Gaussian(0.5)),
        ("gaussian", Gaussian(0.9)),
        ("poisson", Poisson(0.125)),
        ("poisson", Poisson(0.5)),
        ("gamma", Gamma(2.0)),
        ("gamma", Gamma(5.0)),
    ],
)
def test_the_same_test_notices_a_wrong_level_gain_or_number_of_looks(name, wrong):
    _, y1, y2 = pairs(name, used=wrong)
    assert not independent(y1, y2)


@each_model
def test_y_is_the_mean_of_the_pair_weighted_by_the_shares(name):
    y, y1, y2 = pairs(name, n=100)
    torch.testing.assert_close((1 - SHARE) * y1 + SHARE * y2, y)


@pytest.mark.parametrize(
    ("name", "corruptor"),
    [
        ("poisson", lambda y: set_binomial_corruptor(y, SHARE, 0.25)()),
        ("gamma", lambda y: set_beta_corruptor(y, SHARE, torch.tensor(3.0))()),
    ],
)
def test_inputs_have_the_moments_of_those_of_deepinv(name, corruptor):
    """Given y; deepinv draws them from torch's global state."""
    n = 40_000
    y = MODELS[name].sample(LEVELS.expand(1, -1), rng(4)).expand(n, -1)
    torch.manual_seed(0)
    theirs, ours = corruptor(y), MODELS[name].recorrupt(y, ALPHA, rng(5)).input
    for k in range(3):
        for power in (1, 2):
            a, b = theirs[:, k] ** power, ours[:, k] ** power
            assert (a.mean() - b.mean()).abs() <= 4 * ((a.var() + b.var()) / n).sqrt()


@each_model
def test_an_items_numbers_do_not_depend_on_its_batch(name):
    model, clean, keys = MODELS[name], LEVELS.expand(4, -1).clone(), "abcd"
    together = model.sample(clean, [item_generator(0, key) for key in keys])
    alone = model.sample(clean[2:3], [item_generator(0, "c")])
    assert torch.equal(together[2:3], alone)
    assert not torch.equal(together[1], together[2])
    pair = model.recorrupt(together, ALPHA, [item_generator(1, key) for key in keys])
    single = model.recorrupt(alone, ALPHA, [item_generator(1, "c")])
    for a, b in zip(pair, single, strict=True):
        assert torch.equal(a[2:3], b)


@each_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_kept(name, dtype):
    y = MODELS[name].sample(LEVELS.to(dtype)[None], rng())
    assert {y.dtype, *(one.dtype for one in MODELS[name].recorrupt(y, ALPHA, rng()))} == {dtype}


def test_no_photon_stays_none_and_every_photon_goes_one_way():
    y = torch.tensor([[0.0, 1.0, 7.0]])
    y1, y2 = Poisson().recorrupt(y, ALPHA, rng(1))
    seen, kept = (1 - SHARE) * y1, SHARE * y2
    assert (y1[0, 0], y2[0, 0]) == (0, 0)
    for part in (seen, kept):
        torch.testing.assert_close(part, part.round())
    torch.testing.assert_close(seen + kept, y)


def test_number_of_generators_must_be_that_of_items():
    with pytest.raises(ValueError, match="2 generators for a batch of 3 items"):
        draw(torch.poisson, [rng(), rng()], torch.ones(3, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(-1.0), r"sigma must be >= 0, got -1\.0"),
        (lambda: Poisson(0.0), r"the gain must be > 0, got 0\.0"),
        (lambda: Gamma(0.0), r"l must be > 0, got 0\.0"),
        (lambda: target_share(0.0), r"alpha must be > 0, got 0\.0"),
        (lambda: Gaussian(1.0).recorrupt(torch.ones(1, 2), -0.5, None), r"alpha must be > 0, got -0\.5"),
        (lambda: Poisson().sample(torch.tensor([[-2.0]]), rng()), "Poisson noise needs A x >= 0, got -2"),
        (lambda: Gamma(1.0).sample(torch.tensor([[-2.0]]), rng()), "Gamma noise needs A x >= 0, got -2"),
    ],
)
def test_what_is_out_of_range_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
