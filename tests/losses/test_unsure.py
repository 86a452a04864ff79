import math
from functools import cache, partial

import pytest
import torch
from helpers import line_mri, randn, rng
from torch import nn

from es_medical.groups import D4
from es_medical.losses import RampWeighting, Sure, Unsure, attach_multiplier, noise_level_of
from es_medical.losses.unsure import multiplier, reversed_gradient
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch, Inpainting, measure

SIGMA, SIGNAL, PIXELS, DOUBLE = 0.4, 2.0, 12, torch.float64


class Subspace(nn.Module):
    """h(y) = a P y + c (I - P) y, where P takes the mean over the measured pixels: signals are constant, noise is not."""

    def __init__(self, initial):
        super().__init__()
        self.a, self.c = (nn.Parameter(torch.tensor(1.0, dtype=DOUBLE)) for _ in range(2))
        attach_multiplier(self, initial)

    def forward(self, y, physics, generator=None):
        mean = physics.mask * y.sum((1, 2, 3), keepdim=True) / physics.mask.sum()
        return self.a * mean + self.c * (physics.mask * y - mean)


def scene(n=64):
    """Constant images N(0, SIGNAL^2) of 16 pixels, of which PIXELS are measured with noise."""
    physics = Inpainting((torch.arange(16) < PIXELS).float(), (1, 16))
    x = SIGNAL * randn(n, 1, 1, 1, dtype=DOUBLE).expand(-1, -1, 1, 16)
    return measure(physics, x, SIGMA, rng(1)), physics


@cache
def trained(initial, sigma=None, steps=600):
    f, generator, (y, physics) = Subspace(initial), rng(2), scene()
    optimizer = torch.optim.AdamW(f.parameters(), 0.01, weight_decay=1e-8)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss = Unsure() if sigma is None else Sure(sigma)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(f, Batch(y, physics), generator).total.mean().backward()
        optimizer.step()
        scheduler.step()
    return f


def test_saddle_point_is_the_one_of_the_theorem():
    """Spectrum of y over the pixels: v_1 = PIXELS SIGNAL^2 + SIGMA^2 once, v_2 = SIGMA^2 for the rest.

    For a given eta, a = 1 - eta / v_1 and c = 1 - eta / v_2; the divergence a + (PIXELS - 1) c is zero for
    eta = PIXELS / (1 / v_1 + (PIXELS - 1) / v_2): SIGMA^2 but for the one dimension in PIXELS that the signal takes.
    """
    y, _ = scene()
    measured = y[..., :PIXELS].flatten(1)
    mean = measured.mean(1, keepdim=True)
    v1, v2 = PIXELS * mean.square().mean(), (measured - mean).square().sum(1).mean() / (PIXELS - 1)  # of this sample
    eta = PIXELS / (1 / v1 + (PIXELS - 1) / v2)
    f = trained(0.1)
    assert abs(noise_level_of(f) ** 2 / eta - 1) < 0.03
    assert abs(f.a.detach() - (1 - eta / v1)) < 0.01
    assert abs(f.c.detach() - (1 - eta / v2)) < 0.03
    error = SIGMA**2 / PIXELS * (1 - SIGMA**2 / (PIXELS * SIGNAL**2 + SIGMA**2))  # of the best estimate, for each pixel
    assert abs(noise_level_of(f) ** 2 / (SIGMA**2 / (1 - error / SIGMA**2)) - 1) < 0.08
    knowing = trained(0.1, SIGMA)
    assert abs(f.a - knowing.a).detach() < 0.02  # as if the noise level were known
    assert abs(f.c - knowing.c).detach() < 2 / PIXELS


def test_wrong_level_told_to_sure_is_what_unsure_avoids():
    """SURE that believes in twice the noise shrinks c far below zero; UNSURE finds the level by itself."""
    assert trained(0.1, 2 * SIGMA).c < -1
    assert trained(0.1).c > -0.2


@pytest.mark.parametrize("weighting", [None, RampWeighting()])
def test_with_the_true_level_it_is_sure_but_for_the_constant(weighting):
    f, (y, physics) = Subspace(SIGMA), scene(8)
    f = f.float()
    y, multi = y.float(), [f.a, f.c]
    unsure, sure = (
        loss(f, Batch(y, physics), rng(3)) for loss in (Unsure(weighting=weighting), Sure(SIGMA, weighting=weighting))
    )
    torch.testing.assert_close(unsure.parts["divergence"], sure.parts["divergence"], rtol=1e-4, atol=1e-5)
    if weighting is None:
        torch.testing.assert_close(unsure.total - SIGMA**2, sure.total, rtol=1e-4, atol=1e-5)
    slopes = [torch.autograd.grad(value.total.sum(), multi) for value in (unsure, sure)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-3, atol=1e-4)


def test_gradient_of_the_multiplier_is_reversed():
    f, (y, physics) = Subspace(0.3), scene(8)
    value = Unsure(tau=0.01)(f, Batch(y, physics), rng(3))
    value.total.mean().backward()
    slope = value.parts["divergence"].detach().mean()  # d/d theta of 2 exp(theta) div is itself
    torch.testing.assert_close(f.noise_multiplier.grad.double(), -slope, rtol=1e-5, atol=0)
    assert (value.parts["noise_level"] - 0.3).abs().max() < 1e-6
    assert not value.parts["noise_level"].requires_grad
    x = torch.tensor(3.0, requires_grad=True)
    reversed_gradient(x).backward()
    assert (float(reversed_gradient(x).detach()), float(x.grad)) == (3.0, -1.0)


def test_scale_of_the_measurements_does_not_matter():
    """y and noise 1,000 times smaller: the loss is 10^6 times smaller, the gradient of log eta with it."""
    y, physics = scene(8)
    large, small = Subspace(0.3), Subspace(0.3e-3)
    one, other = Unsure()(large, Batch(y, physics), rng(3)).total, Unsure()(small, Batch(y / 1e3, physics), rng(3)).total
    torch.testing.assert_close(one, 1e6 * other, rtol=1e-4, atol=0)
    one.sum().backward()
    other.sum().backward()
    torch.testing.assert_close(large.noise_multiplier.grad, 1e6 * small.noise_multiplier.grad, rtol=1e-4, atol=0)


def network():
    torch.manual_seed(0)
    return ReynoldsAveraging(attach_multiplier(MoDL(unet(2, (4, 8)), n_iterations=1), 0.1), D4()).train()


def test_multiplier_is_found_through_wrappers_and_partial_calls():
    inner = network()
    theta = inner.reconstructor.noise_multiplier

    def call(inferer, f, y, physics, generator=None):
        return f(y, physics, generator)

    for wrapped in (inner, nn.Sequential(inner), partial(call, None, inner), partial(call, inferer=None, f=inner)):
        assert multiplier(wrapped) is theta
    assert multiplier(partial(inner)) is theta
    y, physics = measure(line_mri((8, 8)), randn(4, 2, 8, 8), 0.1, rng()), line_mri((8, 8))
    Unsure()(partial(call, None, inner), Batch(y, physics), rng()).total.mean().backward()
    for name, parameter in inner.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_multiplier_is_saved_with_the_weights():
    assert noise_level_of(network()) == pytest.approx(0.1)
    other = attach_multiplier(nn.Linear(1, 1), 3.0)
    other.load_state_dict(attach_multiplier(nn.Linear(1, 1), 0.02).state_dict())
    assert noise_level_of(other) == pytest.approx(0.02)


def test_reconstructor_without_a_multiplier_says_what_to_do():
    y, physics = scene(2)
    for f in (nn.Linear(1, 1), partial(scene), lambda y, physics, generator: y):
        with pytest.raises(ValueError, match="no noise_multiplier: call attach_multiplier first"):
            Unsure()(f, Batch(y, physics), rng())


@pytest.mark.parametrize("initial", [0.0, -1.0, math.inf, math.nan])
def test_impossible_first_guesses_are_refused(initial):
    with pytest.raises(ValueError, match=f"must be positive, got {initial}"):
        attach_multiplier(nn.Linear(1, 1), initial)


def test_second_multiplier_is_refused():
    with pytest.raises(ValueError, match="ReynoldsAveraging already has a noise_multiplier"):
        attach_multiplier(network(), 0.1)
