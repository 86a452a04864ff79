"""PSNR and SSIM of real, complex (their magnitudes) and RGB images, with the data range always stated."""

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.types import Image, PerItem

MAX_DB = 100.0
"""Largest PSNR reported, in dB: that of identical images, which is infinite."""

SSIM_WINDOW = 11


def magnitude(x: Image) -> Float[Tensor, "b 1 h w"]:
    """Return |x| of (B, C, H, W) as (B, 1, H, W): the complex magnitude for C = 2, x itself for C = 1."""
    if x.ndim != 4 or x.shape[1] not in (1, 2):
        raise ValueError(f"expected images (B, 1 or 2, H, W), got {tuple(x.shape)}")
    return torch.linalg.vector_norm(x, dim=1, keepdim=True) if x.shape[1] == 2 else x


def real_valued(x: Image) -> Float[Tensor, "b real h w"]:
    """Return what the scores compare: the magnitude of complex (B, 2, H, W); real or RGB (B, 1 or 3, H, W) unchanged."""
    if x.ndim != 4 or x.shape[1] not in (1, 2, 3):
        raise ValueError(f"expected images (B, C, H, W) of 1 (real), 2 (complex) or 3 (RGB) channels, got {tuple(x.shape)}")
    return x if x.shape[1] == 3 else magnitude(x)


def psnr(x_hat: Image, x: Image, data_range: float | Tensor, complex_valued: bool = False) -> PerItem:
    """10 log10(data_range^2 / MSE) of each item in dB, at most `MAX_DB`; MSE is the mean over all pixels and channels.

    Args:
        x_hat: reconstructions (B, C, H, W): real (C = 1), complex (C = 2, magnitudes are compared) or RGB (C = 3).
        x: ground truth of the same shape.
        data_range: the peak value, a number or (B,); 1 for slices normalised to [0, 1] as in the paper, or the maximum of
            the volume for the fastMRI convention.
        complex_valued: compare complex images (C = 2), phase included, in place of their magnitudes.

    Raises:
        ValueError: shapes differ, images of another kind, or data_range is not positive (a ground truth of zeros has no
            PSNR).

    >>> round(float(psnr(torch.full((1, 1, 4, 4), 0.9), torch.ones(1, 1, 4, 4), data_range=1.0)), 2)
    20.0
    """
    peak = _check(x_hat, x, data_range)
    if complex_valued and x.shape[1] != 2:
        raise ValueError(f"complex images have 2 channels (real, imaginary), got {tuple(x.shape)}")
    error = x_hat - x if complex_valued else real_valued(x_hat) - real_valued(x)
    relative = error.flatten(1) / peak.view(-1, 1)  # before squaring: k-space units of 1e-25 have no square in float32
    return decibel(relative.square().mean(1))


def volume_psnr(x_hat: Image, x: Image) -> float:
    """PSNR of a whole volume, slices as the batch: 10 log10(max(x)^2 / MSE over all slices), fastMRI's definition, in dB."""
    peak = _check(x_hat, x, float(real_valued(x).max()))
    return float(decibel(((real_valued(x_hat) - real_valued(x)) / peak).square().mean()))


def ssim(x_hat: Image, x: Image, data_range: float | Tensor) -> PerItem:
    """Structural similarity (Wang et al. 2004), Gaussian window of 11 pixels, sigma 1.5, computed by MONAI.

    Complex images are compared by their magnitudes; the value of an RGB image is the mean over its three channels.

    Args:
        x_hat: reconstructions (B, C, H, W) as `psnr` takes them.
        x: ground truth of the same shape.
        data_range: the peak value, a number or (B,).

    Raises:
        ValueError: shapes differ, images of another kind, data_range is not positive, or a side is shorter than the window.
    """
    from monai.metrics.regression import compute_ssim_and_cs

    peak = _check(x_hat, x, data_range).expand(len(x))
    if min(x.shape[-2:]) < SSIM_WINDOW:
        raise ValueError(f"SSIM needs images of at least {SSIM_WINDOW} pixels a side, got {x.shape[-2]} x {x.shape[-1]}")
    window, width = (SSIM_WINDOW, SSIM_WINDOW), (1.5, 1.5)
    first, second = (real_valued(image) / peak.view(-1, 1, 1, 1) for image in (x_hat, x))  # data_range 1 for every item
    values, _ = compute_ssim_and_cs(first, second, spatial_dims=2, kernel_size=window, kernel_sigma=width, data_range=1.0)
    return values.flatten(1).mean(1)


def decibel(relative_error: Tensor) -> Tensor:
    """-10 log10 of a relative squared error, at most `MAX_DB`."""
    return -10 * torch.log10(relative_error.clamp(min=10 ** (-MAX_DB / 10)))


def _check(x_hat: Image, x: Image, data_range: float | Tensor) -> Tensor:
    if x_hat.shape != x.shape:
        raise ValueError(f"reconstruction {tuple(x_hat.shape)} and ground truth {tuple(x.shape)} differ in shape")
    peak = torch.as_tensor(data_range, dtype=x.dtype, device=x.device)
    if peak.ndim and peak.shape != (len(x),):
        raise ValueError(f"data_range of shape {tuple(peak.shape)} for {len(x)} images: give one number, or one for each")
    if not bool((peak > 0).all()):
        raise ValueError(f"data_range must be positive, got {peak.min():g}: an image of zeros has no PSNR or SSIM")
    return peak
