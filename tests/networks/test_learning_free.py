"""Learning-free reconstructions: what they minimise, that they reach it, and for every kind of operator."""

import copy
import functools
import logging
import math
import sys

import numpy as np
import pytest
import torch
from helpers import cg_prox, randn, virtual_batch
from operator_table import TABLE
from torch import Tensor

from es_medical.groups import D4
from es_medical.networks import Tikhonov, TotalVariation, learning_free
from es_medical.networks.learning_free import LEARNING_FREE
from es_medical.networks.penalised import (
    Minimiser,
    data_step,
    differences,
    differences_adjoint,
    tikhonov,
    total_variation,
    variation,
)
from es_medical.physics import Inpainting, Operator, bernoulli_mask

SIZE = (8, 8)
WEIGHT = 0.05
MODULE = sys.modules["es_medical.networks.penalised"]


OPERATORS = {
    **{name: TABLE[name] for name in ("mri", "inpainting", "decimation", "sensing")},
    **{"multicoil": TABLE["coils"], "ct": TABLE["parallel"], "virtual": TABLE["mri: A T_g"]},
    **{"part of each item": TABLE["coils: M A"], "turned": TABLE["fan: A turned"]},
}
each_operator = pytest.mark.parametrize("name", OPERATORS)
each_but_turned = pytest.mark.parametrize("name", [name for name in OPERATORS if name != "turned"])  # "ct", "virtual"


def case(name: str) -> tuple[Operator, Tensor, Tensor]:
    """Operator, blocks of constant value (B, C, H, W), and their noisy measurements, in float64."""
    physics, n = copy.deepcopy(OPERATORS[name].physics), OPERATORS[name].n
    x = torch.nn.functional.interpolate(randn(n, physics.img_size[0], 2, 2, dtype=torch.float64), physics.image_size)
    y = physics.A(x)
    return physics, x, y + 0.05 * randn(*y.shape, seed=1, dtype=torch.float64) * physics.mask


@functools.cache
def minimum(name: str) -> Minimiser:
    """Total variation to a tolerance of 1e-4: the expensive part, for two tests."""
    physics, _, y = case(name)
    return total_variation(y, physics, WEIGHT, tolerance=1e-4, max_iter=20000)


def objective(x: Tensor, y: Tensor, physics: Operator) -> Tensor:
    return (physics.A(x) - y).square().flatten(1).sum(1) / 2 + WEIGHT * variation(x)


# --- the differences


def test_adjoint_of_the_differences():
    x, d = randn(2, 3, 5, 7, dtype=torch.float64), randn(2, 2, 3, 5, 7, seed=1, dtype=torch.float64)
    torch.testing.assert_close((differences(x) * d).sum(), (x * differences_adjoint(d)).sum())


def test_norm_of_the_differences_is_below_its_bound():
    x = randn(1, 1, 16, 16, dtype=torch.float64)
    for _ in range(100):
        x = differences_adjoint(differences(x))
        norm, x = x.norm(), x / x.norm()
    assert 7.5 < norm < 8


def test_variation_of_one_channel_is_that_of_deepinv():
    from deepinv.optim import TVPrior

    x = randn(2, 1, 9, 6)
    torch.testing.assert_close(variation(x), TVPrior().fn(x))


def test_variation_of_complex_images_does_not_see_their_phase():
    x = randn(1, 2, 6, 6, dtype=torch.float64)
    turned = torch.stack((0.6 * x[:, 0] - 0.8 * x[:, 1], 0.8 * x[:, 0] + 0.6 * x[:, 1]), 1)
    torch.testing.assert_close(variation(turned), variation(x))


# --- Tikhonov


@each_operator
def test_tikhonov_has_no_slope_left(name):
    """Also of each item's own operator, and in float32."""
    physics, _, y = case(name)
    x = tikhonov(y, physics, WEIGHT)
    slope = physics.A_adjoint(physics.A(x) - y) + WEIGHT * differences_adjoint(differences(x))
    assert slope.abs().max() <= 1e-9 * physics.A_adjoint(y).abs().max()
    single = tikhonov(y.float(), physics.float(), WEIGHT)
    assert single.dtype == torch.float32
    assert (single - x).abs().max() <= 1e-3 * x.abs().max()


def test_tikhonov_of_few_iterations_is_reported_once(caplog, monkeypatch):
    monkeypatch.setattr(MODULE, "_WARNED", set())
    physics, _, y = case("ct")
    with caplog.at_level(logging.WARNING):
        tikhonov(y, physics, WEIGHT, max_iter=2)
        tikhonov(y, physics, WEIGHT, max_iter=2)
    assert [record.message for record in caplog.records] == [
        "tikhonov: 2 iterations did not reach the tolerance 1e-12 for the weight 0.05 (reported once)"
    ]


# --- total variation


@each_but_turned
def test_tv_meets_the_conditions_of_a_minimum(name):
    """|q_i| <= 1, <q, D x> = TV(x), and A^T (A x - y) + w D^T q = 0: what holds of a minimum alone."""
    physics, _, y = case(name)
    x, q, _ = minimum(name)
    assert q.square().sum((0, 2)).max() <= 1 + 1e-12
    slope = physics.A_adjoint(physics.A(x) - y) + WEIGHT * differences_adjoint(q)
    assert slope.flatten(1).norm(dim=1).max() <= 1e-3 * physics.A_adjoint(y).norm()
    paired = (q * differences(x)).transpose(0, 1).flatten(1).sum(1)
    torch.testing.assert_close(paired, variation(x), rtol=1e-3, atol=1e-6)


@each_but_turned
def test_objective_of_tv_is_least_among_neighbours_and_within_its_bound(name):
    physics, truth, y = case(name)
    exact = minimum(name).image
    x, _, bound = total_variation(y, physics, WEIGHT)
    least, found = objective(exact, y, physics), objective(x, y, physics)
    assert ((found - least) / found <= bound + 1e-9).all()
    assert ((found - least) / found <= 5e-3).all()  # far below the tolerance of 0.02
    for other in (truth, physics.initial(y), x + 0.1 * randn(*x.shape, seed=5, dtype=x.dtype), 0 * x):
        assert (objective(other, y, physics) >= least * (1 - 1e-4)).all()


def test_tv_of_a_denoising_is_that_of_deepinv():
    """One channel and A = I: the proximal step of TV, by another method."""
    from deepinv.optim import TVPrior

    physics = Inpainting(torch.ones(8), SIZE)
    y = randn(2, 1, *SIZE, dtype=torch.float64)
    expected = TVPrior(def_crit=1e-10, n_it_max=5000).prox(y, gamma=0.3)
    found = total_variation(y, physics, 0.3, tolerance=1e-7, max_iter=20000).image
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_tv_error_shrinks_with_the_tolerance():
    physics, _, y = case("inpainting")
    exact = total_variation(y, physics, WEIGHT, tolerance=1e-7, max_iter=20000).image
    errors = [float((total_variation(y, physics, WEIGHT, tolerance=t).image - exact).norm()) for t in (1.0, 0.02, 1e-3)]
    assert errors[2] < errors[1] < errors[0]


@pytest.mark.parametrize("name", ["mri", "decimation", "ct"])
@pytest.mark.parametrize("solve", [tikhonov, lambda *args: total_variation(*args).image], ids=["tikhonov", "tv"])
def test_solution_scales_with_the_measurements(name, solve):
    """Tikhonov with the same weight, TV with a weight that scales as they do."""
    physics, _, y = case(name)
    scale = 1e3
    weight = WEIGHT if solve is tikhonov else WEIGHT * scale
    torch.testing.assert_close(solve(scale * y, physics, weight) / scale, solve(y, physics, WEIGHT), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["mri", "multicoil", "sensing"])
def test_items_of_a_batch_do_not_matter_to_each_other(name):
    physics, _, y = case(name)
    y[1] *= 10  # takes another number of iterations
    together = total_variation(y, physics, WEIGHT).image
    for i in range(len(y)):
        torch.testing.assert_close(total_variation(y[i : i + 1], physics, WEIGHT).image[0], together[i], rtol=1e-9, atol=1e-9)


@each_operator
@pytest.mark.parametrize("method", [name for name in LEARNING_FREE if name != "biharmonic"])
def test_nothing_measured_gives_zero(name, method):
    physics, x, y = case(name)
    torch.testing.assert_close(learning_free(method)(0 * y, physics), 0 * x)


def test_tv_of_a_tiny_weight_keeps_the_measurements_in_float32():
    physics, _, y = case("inpainting")
    x = total_variation(y.float(), physics, 1e-5).image
    assert (physics.A(x) - y).abs().max() < 1e-3


def test_tv_of_a_great_weight_is_the_mean_of_each_channel():
    physics, _, y = case("inpainting")
    mean = y.sum((2, 3), keepdim=True) / physics.mask.sum((2, 3), keepdim=True)
    x = total_variation(y, physics, 10.0).image
    torch.testing.assert_close(x, mean.expand_as(x), rtol=0, atol=0.01)


@pytest.mark.parametrize("name", ["multicoil", "ct", "virtual", "sensing"])
def test_repeated_data_step_is_the_proximal_step(name):
    physics, x, y = case(name)
    gamma = torch.full((len(x), 1, 1, 1), 5.0, dtype=x.dtype)
    step, z, u = data_step(y, physics, gamma), randn(*x.shape, seed=2, dtype=x.dtype), torch.zeros_like(x)
    for _ in range(25):
        u = step(z, u)
    torch.testing.assert_close(u, cg_prox(physics, z, y, 5.0), rtol=0, atol=1e-8)


def test_tv_without_convergence_is_reported_once(caplog, monkeypatch):
    monkeypatch.setattr(MODULE, "_WARNED", set())
    physics, _, y = case("mri")
    with caplog.at_level(logging.WARNING):
        bound = total_variation(y, physics, WEIGHT, max_iter=1).bound
        total_variation(y, physics, WEIGHT, max_iter=1)
    assert float(bound.max()) > 0.2
    assert [record.message.split(":")[0] for record in caplog.records] == ["tv"]


# --- biharmonic


def test_biharmonic_is_skimages_for_each_channel_and_keeps_what_was_measured():
    from skimage.restoration import inpaint_biharmonic

    physics, x, _ = case("inpainting")
    y = physics.A(x)
    found = learning_free("biharmonic")(y, physics)
    for i in range(len(y)):
        for channel in range(3):
            missing = physics.mask[0, channel].numpy() == 0
            expected = inpaint_biharmonic(y[i, channel].numpy(), missing)
            np.testing.assert_allclose(found[i, channel].numpy(), expected, atol=1e-12)
    assert torch.equal(physics.A(found), y)


def test_biharmonic_of_the_virtual_operator_is_the_moved_image():
    physics = virtual_batch(Inpainting(bernoulli_mask((1, *SIZE), 0.6, 0), SIZE), D4())
    y = physics.A(randn(8, 1, *SIZE, dtype=torch.float64))
    found = learning_free("biharmonic")(y, physics)
    expected = physics.group.inverse(learning_free("biharmonic")(y, physics.physics), physics.g)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_biharmonic_of_a_part_of_the_pixels_of_each_item():
    masks = torch.stack([bernoulli_mask((1, *SIZE), 0.6, seed) for seed in (1, 2)]).float()
    physics = Inpainting(torch.ones(8), SIZE).masked(masks)
    x = randn(2, 1, *SIZE)
    found = learning_free("biharmonic")(physics.A(x), physics)
    assert torch.equal(physics.A(found), physics.A(x))
    assert (found != 0).all()


def test_biharmonic_with_nothing_or_everything_measured_is_the_measurement():
    mask = torch.stack((torch.ones(SIZE), torch.zeros(SIZE)))
    physics = Inpainting(mask, SIZE, 2)
    y = physics.A(randn(1, 2, *SIZE))
    assert torch.equal(learning_free("biharmonic")(y, physics), y)


def test_biharmonic_says_which_operators_it_is_for():
    physics, _, y = case("virtual")
    with pytest.raises(TypeError, match="it is for inpainting and decimation; MRI measures no pixels: use --method tv"):
        learning_free("biharmonic")(y, physics)


def test_missing_scikit_image_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(ImportError, match="pip install 'scikit-image"):
        learning_free("biharmonic")


# --- the modules


@pytest.mark.parametrize("kind", [Tikhonov, TotalVariation])
def test_weight_is_the_one_parameter(kind):
    one = kind(0.3)
    (parameter,) = one.parameters()
    assert float(parameter.detach()) == pytest.approx(math.log(0.3))
    one.set_weight(2.0)
    assert one.weight == pytest.approx(2.0)
    with pytest.raises(ValueError, match="positive and finite, got 0"):
        one.set_weight(0.0)


@pytest.mark.parametrize("kind", [Tikhonov, TotalVariation])
def test_weight_matters(kind):
    physics, _, y = case("mri")
    small, large = (variation(kind(weight)(y, physics)) for weight in (1e-3, 1.0))
    assert (large < 0.9 * small).all()


def test_methods_are_told_apart_by_their_start():
    assert {name: kind().start for name, kind in LEARNING_FREE.items()} == {name: name for name in LEARNING_FREE}
    with pytest.raises(
        ValueError, match="unknown learning-free method 'es': choose one of pseudo_inverse, tikhonov, tv, biharmonic"
    ):
        learning_free("es")
