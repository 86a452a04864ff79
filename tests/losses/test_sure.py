import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import Recorder, bent, line_mri, randn, rng, within
from torch.nn.functional import pad

from es_medical.groups import D4
from es_medical.losses import MeasurementConsistency, RampWeighting, Sure, mean_product, mean_square
from es_medical.losses.sure import replayed
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch, Inpainting, VirtualPhysics, measure
from es_medical.randomness import item_generator, uniform

SIGMA, TAU, DOUBLE = 0.4, 1e-4, torch.float64


class Increasing:
    """A weighting whose squares have no constant diagonal: columns weigh 1, 2, 3, ... and each is added to its neighbour."""

    def __call__(self, residual):
        return residual * torch.arange(1, residual.shape[-1] + 1).to(residual) + 0.5 * pad(residual, (1, 0))[..., :-1]


def averaged(y, physics, generator=None):
    """One random g for each item, as a Reynolds average draws while training."""
    group = D4()
    g = group.sample(len(y), generator, y.device)
    return group.apply(bent(y, VirtualPhysics(physics, group, g)), g)


def operators():
    masks = (randn(1, 6, 6, seed=2) > 0).float()
    return {
        "mri": line_mri((6, 6), seed=1),
        "ct": DenseCT(6, even_views(4), mask=torch.tensor([1.0, 0, 1, 1]).view(1, 1, 4, 1)),
        "inpainting": Inpainting(masks, (6, 6)),
    }


CASES = [
    ("mri", None, bent),
    ("mri", Increasing(), bent),
    ("mri", None, averaged),
    ("ct", None, bent),
    ("ct", RampWeighting(), bent),
    ("ct", Increasing(), bent),
    ("inpainting", None, bent),
]


def draws(loss, name, reconstructor, true_sigma=SIGMA, n=6_000, seed=0):
    """SURE of n noisy measurements of one image, and what it estimates: |W (A f(y) - A x)|^2 / m of each."""
    physics, generator = operators()[name], rng(seed)
    x = randn(1, physics.img_size[0], 6, 6, seed=5, dtype=DOUBLE).expand(n, -1, -1, -1)
    f = Recorder(reconstructor)
    total = loss(f, Batch(measure(physics, x, true_sigma, generator), physics), generator).total
    return total, mean_square(physics.A(f.gave[0]) - physics.A(x), physics.mask, loss.weighting)


@pytest.mark.parametrize(("name", "weighting", "reconstructor"), CASES)
def test_mean_of_sure_is_the_error_of_the_noiseless_measurements(name, weighting, reconstructor):
    """Within 4 standard errors (99.99 %)."""
    total, error = draws(Sure(SIGMA, TAU, weighting=weighting), name, reconstructor)
    assert within(total - error, 0.0)
    assert total.std() < 3 * error.mean()  # the estimate is not lost in its own spread


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("name", "weighting", "reconstructor"), CASES)
def test_wrong_noise_level_is_detected_by_the_same_test(name, weighting, reconstructor, factor):
    total, error = draws(Sure(SIGMA, TAU, factor, weighting), name, reconstructor)
    assert not within(total - error, 0.0)


@pytest.mark.parametrize("name", ["mri", "ct"])
def test_plain_divergence_beside_a_weighted_residual_is_detected_by_the_same_test(name):
    """Weights of the residual alone, the usual shortcut, give another number."""
    total, error = draws(Sure(SIGMA, TAU), name, bent)
    weighted, weighted_error = draws(Sure(SIGMA, TAU, weighting=Increasing()), name, bent)
    physics, generator = operators()[name], rng(0)
    x = randn(1, physics.img_size[0], 6, 6, seed=5, dtype=DOUBLE).expand(6_000, -1, -1, -1)
    y = measure(physics, x, SIGMA, generator)
    mean = mean_square(physics.A(bent(y, physics)) - y, physics.mask)
    shortcut = mean_square(physics.A(bent(y, physics)) - y, physics.mask, Increasing()) + (total - mean)
    assert not within(shortcut - weighted_error, 0.0, standard_errors=8)


@pytest.mark.parametrize("sigma", [0.005, 0.1])
def test_default_step_of_a_tenth_of_the_noise_is_unbiased_and_the_papers(sigma):
    total, error = draws(Sure(sigma), "mri", bent, sigma)
    assert within(total - error, 0.0)
    papers, _ = draws(Sure(sigma, {0.005: 5e-4, 0.1: 0.01}[sigma]), "mri", bent, sigma)
    torch.testing.assert_close(total, papers)


def test_estimate_is_the_formula_for_a_linear_reconstructor():
    """h(y) = c y: residual (1 - c)^2 |y|^2 / m, divergence c |b|^2 / m for any step."""
    physics, c = line_mri((8, 8)), 0.6
    y, generator = measure(physics, randn(3, 2, 8, 8, dtype=DOUBLE), SIGMA, rng()), rng(3)
    value = Sure(SIGMA)(lambda y, physics, generator: c * physics.A_adjoint(y), Batch(y, physics), generator)
    b = physics.mask * torch.randn(y.shape, generator=rng(3)).double()
    expected = (1 - c) ** 2 * mean_square(y, physics.mask)
    torch.testing.assert_close(value.parts["consistency"], expected)
    torch.testing.assert_close(value.parts["divergence"], 2 * SIGMA**2 * c * mean_square(b, physics.mask))
    torch.testing.assert_close(value.total, expected + value.parts["divergence"] - SIGMA**2)


def test_step_is_taken_on_measured_entries_only():
    physics, f = line_mri((8, 8)), Recorder(bent)
    y = measure(physics, randn(200, 2, 8, 8), SIGMA, rng())
    Sure(SIGMA, 0.01)(f, Batch(y, physics), rng())
    b = (f.given[1] - f.given[0]) / 0.01
    hidden = (physics.mask == 0).expand_as(y)
    assert (b[hidden] == 0).all()
    assert within(b[~hidden].square(), 1.0)


def test_both_passes_draw_the_same_g():
    """With another g in the second pass the quotient would be a difference of two reconstructors over tau."""
    torch.manual_seed(0)
    network = ReynoldsAveraging(MoDL(unet(2, (4, 8)), n_iterations=1), D4()).train()
    for parameter in network.reconstructor.denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    physics = line_mri((8, 8))
    y = measure(physics, randn(8, 2, 8, 8), SIGMA, rng())
    generators = [item_generator(0, key) for key in "abcdefgh"]
    with torch.no_grad():
        for generator in (rng(1), generators, None):
            f = Recorder(network)
            value = Sure(SIGMA, 1e-3)(f, Batch(y, physics), generator)
            assert (f.gave[0] - f.gave[1]).abs().max() < 0.05
            assert (value.parts["divergence"].abs() < 4 * SIGMA**2).all()
    first, second = network(y, physics, rng(1)), network(y, physics, rng(2))
    assert (first - second).abs().max() > 0.05  # what another g would do


@pytest.mark.parametrize("make", [lambda: rng(3), lambda: [rng(3), rng(4)], lambda: None])
def test_replayed_generator_repeats_the_next_draws_and_leaves_the_first_alone(make):
    generator, again = replayed(make(), "cpu")
    draws = [uniform((2, 3), generator, "cpu") for _ in range(2)]
    assert not torch.equal(*draws)
    assert torch.equal(uniform((2, 3), again, "cpu"), draws[0])
    assert torch.equal(uniform((2, 3), again, "cpu"), draws[1])
    if make() is not None:
        assert torch.equal(uniform((2, 3), make(), "cpu"), draws[0])


def test_without_noise_it_is_measurement_consistency_in_one_pass():
    physics = line_mri((8, 8))
    y = physics.A(randn(3, 2, 8, 8))
    for loss in (Sure(0.0), Sure(0), Sure(0.3, sigma_factor=0.0)):
        f = Recorder(bent)
        value = loss(f, Batch(y, physics, torch.tensor([0.1, 0.2, 0.3])), rng())
        assert torch.equal(value.total, MeasurementConsistency()(bent, Batch(y, physics)).total)
        assert len(f.given) == 1
    f = Recorder(bent)
    Sure(SIGMA)(f, Batch(y, physics), rng())
    assert len(f.given) == 2


@pytest.mark.parametrize("tau", [None, 0.01])
def test_items_without_noise_among_others(tau):
    """sigma = 0 divides nothing by zero, also in the gradient."""
    physics, sigma = line_mri((8, 8)), torch.tensor([0.0, 0.1, 0.4])
    y = measure(physics, randn(3, 2, 8, 8), sigma, rng())
    weight = torch.ones((), requires_grad=True)

    def f(y, physics, generator):
        return weight * bent(y, physics)

    total = Sure(tau=tau)(f, Batch(y, physics, sigma), rng()).total
    total.sum().backward()
    assert weight.grad.isfinite()
    assert torch.equal(total[:1], MeasurementConsistency()(bent, Batch(y[:1], physics)).total)


def test_minimiser_over_linear_reconstructors_is_the_one_that_knows_the_truth():
    """h(y) = c y of N(0, s^2) signals: c = s^2 / (s^2 + sigma^2), where measurement consistency has c = 1."""
    physics, s, n = Inpainting(torch.ones(8), (8, 8)), 0.7, 400
    x, generator = s * randn(n, 1, 8, 8, dtype=DOUBLE), rng()
    y, c = measure(physics, x, SIGMA, generator), torch.ones((), dtype=DOUBLE, requires_grad=True)
    value = Sure(SIGMA)(lambda y, physics, generator: c * y, Batch(y, physics), generator).total.mean()
    (slope,) = torch.autograd.grad(value, c, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, c)
    wanted = s**2 / (s**2 + SIGMA**2)
    assert abs(float(c.detach() - slope.detach() / curvature) - wanted) < 0.02
    assert wanted < 0.8


def test_mean_product_is_the_bilinear_form_of_mean_square():
    a, b, mask = randn(3, 2, 4, 6), randn(3, 2, 4, 6, seed=1), (randn(3, 1, 4, 6, seed=2) > 0).float()
    for weighting in (None, Increasing()):
        torch.testing.assert_close(mean_product(a, a, mask, weighting), mean_square(a, mask, weighting))
        polar = (mean_square(a + b, mask, weighting) - mean_square(a - b, mask, weighting)) / 4
        torch.testing.assert_close(mean_product(a, b, mask, weighting), polar, rtol=1e-4, atol=1e-5)
