import cmath

import pytest
import torch
from helpers import dot, randn

from es_medical.physics.fourier import fft2c, filter_kspace, ifft2c

SIZES = [(8, 8), (7, 7), (8, 7), (7, 8), (6, 10), (5, 9), (1, 4), (2, 3), (16, 5)]
sizes = pytest.mark.parametrize("size", SIZES)


def centred_dft(n):
    """The definition: exp(-2 pi i (k - n//2)(j - n//2) / n) / sqrt(n)."""
    entries = [[cmath.exp(-2j * cmath.pi * (k - n // 2) * (j - n // 2) / n) for j in range(n)] for k in range(n)]
    return torch.tensor(entries, dtype=torch.complex128) / n**0.5


@sizes
def test_delta_at_the_origin_becomes_a_real_constant(size):
    delta = torch.zeros(1, 2, *size, dtype=torch.float64)
    delta[:, 0, size[0] // 2, size[1] // 2] = 1
    expected = torch.zeros_like(delta)
    expected[:, 0] = (size[0] * size[1]) ** -0.5
    torch.testing.assert_close(fft2c(delta), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(ifft2c(expected), delta, rtol=0, atol=1e-14)


@sizes
def test_constant_image_has_only_the_zero_frequency(size):
    k = fft2c(torch.ones(1, 2, *size, dtype=torch.float64))
    expected = torch.zeros_like(k)
    expected[..., size[0] // 2, size[1] // 2] = (size[0] * size[1]) ** 0.5
    torch.testing.assert_close(k, expected, rtol=0, atol=1e-12)


@sizes
def test_transform_equals_its_definition(size):
    x = randn(2, 2, *size, dtype=torch.float64)
    k = centred_dft(size[0]) @ torch.complex(x[:, 0], x[:, 1]) @ centred_dft(size[1]).T
    torch.testing.assert_close(fft2c(x), torch.stack((k.real, k.imag), 1), rtol=0, atol=1e-12)


@sizes
def test_transform_is_unitary(size):
    x, k = randn(2, 2, *size, dtype=torch.float64), randn(2, 2, *size, seed=1, dtype=torch.float64)
    torch.testing.assert_close(ifft2c(fft2c(x)), x, rtol=0, atol=1e-12)
    torch.testing.assert_close(fft2c(ifft2c(k)), k, rtol=0, atol=1e-12)
    torch.testing.assert_close(dot(fft2c(x), k), dot(x, ifft2c(k)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fft2c(x).norm(), x.norm(), rtol=1e-12, atol=0)


@sizes
@pytest.mark.parametrize("rows", [True, False])
def test_filter_equals_transform_weight_transform(size, rows):
    x = randn(2, 2, *size, dtype=torch.float64)
    weights = randn(2, 1, size[0] if rows else 1, size[1], seed=1, dtype=torch.float64)
    torch.testing.assert_close(filter_kspace(x, weights), ifft2c(weights * fft2c(x)), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(1, 1, 4, 4), (2, 4, 4), (1, 3, 4, 4)])
@pytest.mark.parametrize("transform", [fft2c, ifft2c])
def test_images_without_two_channels_are_refused(shape, transform):
    with pytest.raises(ValueError, match=r"expected \(B, 2, H, W\).*got"):
        transform(torch.zeros(shape))
