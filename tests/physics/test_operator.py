import pytest
import torch
from helpers import line_mri, randn, rng, within

from es_medical.physics import Operator, measure, recorruption
from es_medical.physics.base import per_item
from es_medical.randomness import item_generator


def test_noise_has_the_stated_deviation_on_real_and_imaginary_part():  # 4 standard errors
    physics, sigma = line_mri((16, 16)), 0.3
    x = randn(200, 2, 16, 16)
    noise = measure(physics, x, sigma, rng(1)) - physics.A(x)
    real, imaginary = noise.transpose(0, 1).flatten(1)[:, physics.mask.expand_as(noise)[:, 0].flatten().bool()]
    assert len(real) == 200 * 16 * 8
    for part in (real, imaginary):
        assert within(part, 0.0)
        assert within(part.square(), sigma**2)
    assert within(real * imaginary, 0.0)


def test_noise_level_of_each_item():
    physics, sigma = line_mri((16, 16), acceleration=1), torch.tensor([0.0, 0.1, 2.0])
    noise = recorruption(physics, torch.zeros(3, 2, 16, 16), sigma, rng())
    unit = recorruption(physics, torch.zeros(3, 2, 16, 16), 1.0, rng())
    torch.testing.assert_close(noise, sigma.view(3, 1, 1, 1) * unit)


def test_noise_does_not_depend_on_the_batch():
    physics, x = line_mri((8, 8)), randn(3, 2, 8, 8)
    together = measure(physics, x, 0.1, [item_generator(0, key) for key in "abc"])
    alone = measure(physics, x[1:2], 0.1, [item_generator(0, "b")])
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1e-6)


def test_noiseless_measurements_are_exact():
    physics, x = line_mri((8, 8)), randn(2, 2, 8, 8)
    assert torch.equal(measure(physics, x, 0.0, rng()), physics.A(x))


def test_noise_keeps_the_precision_of_the_measurements():
    x = randn(1, 2, 8, 8, dtype=torch.float64)
    assert measure(line_mri((8, 8)), x, 0.1, rng()).dtype == torch.float64


def test_operator_without_a_split_says_so():
    class Identity(Operator):
        pass

    with pytest.raises(TypeError, match="Identity can't be split"):
        Identity(img_size=(2, 4, 4)).masked(torch.ones(4))


def test_numbers_of_items_broadcast_over_their_images():
    x = torch.zeros(4, 2, 3, 4)
    assert per_item(0.5, x) == 0.5
    assert per_item(torch.tensor(0.5), x).shape == ()
    assert per_item(torch.arange(4.0), x).shape == (4, 1, 1, 1)
