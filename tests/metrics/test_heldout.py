import torch
from helpers import line_mri, randn, rng, within

from es_medical.metrics import heldout_error
from es_medical.physics import measure
from es_medical.splits import Split


def heldout_operator(physics, batch):
    m1 = Split(split_ratio=0.5)(physics, batch, rng(1))
    return physics.masked(physics.mask - m1)


def test_truth_scores_zero_and_a_zero_image_one():
    physics, x = line_mri((8, 8)), randn(3, 2, 8, 8)
    second = heldout_operator(physics, 3)
    assert (heldout_error(x, physics.A(x), second) < 1e-12).all()
    torch.testing.assert_close(heldout_error(torch.zeros_like(x), physics.A(x), second), torch.ones(3))


def test_only_held_out_measurements_count():
    physics, x = line_mri((8, 8)), randn(3, 2, 8, 8, dtype=torch.float64)
    second, y = heldout_operator(physics, 3), physics.A(x)
    seen = physics.mask - second.mask
    assert (heldout_error(x, y + 5 * seen, second) < 1e-24).all()
    assert (heldout_error(x + physics.A_adjoint(5 * seen * y), y, second) < 1e-24).all()
    assert (heldout_error(x + physics.A_adjoint(second.mask * y), y, second) - 1).abs().max() < 1e-12


def test_score_does_not_depend_on_the_unit():
    physics, x = line_mri((8, 8)), randn(3, 2, 8, 8)
    second, y = heldout_operator(physics, 3), physics.A(x)
    x_hat = x + 0.1 * randn(3, 2, 8, 8, seed=1)
    torch.testing.assert_close(
        heldout_error(1e-5 * x_hat, 1e-5 * y, second), heldout_error(x_hat, y, second), rtol=1e-4, atol=0
    )


def test_noise_gives_the_truth_its_floor():  # 4 standard errors
    physics, sigma = line_mri((8, 8)), 0.1
    x = randn(1, 2, 8, 8).expand(2_000, -1, -1, -1)
    y, second = measure(physics, x, sigma, rng(2)), heldout_operator(physics, 2_000)
    noise = (second.mask * (y - physics.A(x))).square().flatten(1).sum(1) / (second.mask * y).square().flatten(1).sum(1)
    torch.testing.assert_close(heldout_error(x, y, second), noise, rtol=1e-4, atol=1e-6)
    absolute = heldout_error(x, y, second) * (second.mask * y).square().flatten(1).sum(1)
    assert within(absolute / (second.mask.flatten(1).sum(1) * 2 * 8), sigma**2)


def test_measurements_of_zeros_have_no_score():
    physics = line_mri((8, 8))
    second = heldout_operator(physics, 2)
    for x_hat in (torch.zeros(2, 2, 8, 8), torch.ones(2, 2, 8, 8)):
        assert heldout_error(x_hat, torch.zeros(2, 2, 8, 8), second).isnan().all()
