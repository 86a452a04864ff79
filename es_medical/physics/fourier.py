"""The discrete Fourier transform of images whose origin is at index n//2 on each axis, orthonormal."""

import torch
from torch import Tensor

from es_medical.types import Image, KSpace

AXES = (-2, -1)


def to_complex(x: Tensor) -> Tensor:
    """Return (B, 2, H, W) real and imaginary parts as (B, H, W) complex numbers."""
    if x.ndim != 4 or x.shape[1] != 2:
        raise ValueError(f"expected (B, 2, H, W) with real and imaginary parts, got {tuple(x.shape)}")
    return torch.complex(x[:, 0], x[:, 1])


def to_channels(x: Tensor) -> Tensor:
    """Return (B, H, W) complex numbers as (B, 2, H, W) real and imaginary parts."""
    return torch.stack((x.real, x.imag), dim=1)


def dft(x: Tensor) -> Tensor:
    """Centred orthonormal DFT of complex numbers (..., H, W)."""
    return torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(x, AXES), norm="ortho"), AXES)


def inverse_dft(k: Tensor) -> Tensor:
    """Inverse and adjoint of `dft`."""
    return torch.fft.fftshift(torch.fft.ifft2(torch.fft.ifftshift(k, AXES), norm="ortho"), AXES)


def fft2c(x: Image) -> KSpace:
    """Centred orthonormal DFT, F x: image (B, 2, H, W) to k-space (B, 2, H, W).

    A delta at (H//2, W//2) becomes the constant 1/sqrt(HW), for even and odd sizes.
    """
    return to_channels(dft(to_complex(x)))


def ifft2c(k: KSpace) -> Image:
    """Inverse and adjoint of `fft2c`, F^-1 k = F^T k: k-space (B, 2, H, W) to image (B, 2, H, W)."""
    return to_channels(inverse_dft(to_complex(k)))


def filter_kspace(x: Image, weights: Tensor) -> Image:
    """F^T diag(weights) F x for real weights (B or 1, 1, H or 1, W) given in centred order.

    The centring shifts of the image are phases in k-space and commute with the weights, so only the weights are shifted.
    """
    spectrum = torch.fft.fft2(to_complex(x), norm="ortho")
    return to_channels(torch.fft.ifft2(spectrum * torch.fft.ifftshift(weights, AXES)[:, 0], norm="ortho"))
