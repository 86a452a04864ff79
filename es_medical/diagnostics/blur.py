"""Isotropic blur, the operator of the paper's decision table to which no rotation or translation adds anything."""

import math

import torch
from torch import Tensor
from torch.fft import fftfreq, irfft2, rfft2

from es_medical.physics.base import Operator, per_item
from es_medical.types import Image, Mask


class IsotropicBlur(Operator):
    r"""Circular blur with an isotropic kernel that loses the high frequencies, A x = F^-1 h F x.

    h(k) = exp(-2 pi^2 sigma^2 |k|^2) for |k| <= cutoff, and 0 beyond: a Gaussian of sigma pixels behind an aperture.
    h depends on |k| alone, so A commutes with every shift and, on square images, with D4; A = A^T. Other rotations of a
    pixel grid interpolate, and only then does A not commute with them.

    Args:
        size: (H, W) of the images.
        cutoff: radius of the passband, in cycles per pixel; 0.5 is the highest frequency along an axis.
        sigma: standard deviation of the Gaussian, in pixels; 0 for an ideal low-pass.
        channels: C of the images, each blurred alone.

    Raises:
        ValueError: the cutoff is not positive, or sigma is negative.

    >>> blur = IsotropicBlur((4, 4), cutoff=0.25)
    >>> int((blur.transfer > 0).sum())  # 5 of 16 frequencies pass
    5
    """

    baseline = "blurred image"
    measured = "a blurred image"

    mask: Mask
    """1: every value of the blurred image is measured."""
    transfer: Tensor
    """h, (H, W) in the order of `torch.fft.fft2`, float64."""

    def __init__(self, size: tuple[int, int], cutoff: float = 0.25, sigma: float = 0.0, channels: int = 1) -> None:
        if not cutoff > 0 or not sigma >= 0:
            raise ValueError(f"the cutoff must be greater than 0 and sigma at least 0, got {cutoff} and {sigma}")
        super().__init__(img_size=(channels, *size))
        down, right = (fftfreq(side, dtype=torch.float64) for side in size)
        radius = torch.hypot(down[:, None], right)  # |k|
        gaussian = torch.exp(-2 * (math.pi * sigma * radius).square())
        self.register_buffer("transfer", torch.where(radius <= cutoff, gaussian, 0.0))
        self.register_buffer("mask", torch.ones(1, 1, 1, 1))

    def A(self, x: Image) -> Image:
        """F^-1 h F x, (B, C, H, W). Raises ValueError for images of another size."""
        return self._filter(x, self.transfer)

    def A_adjoint(self, y: Image) -> Image:
        """A^T y = A y: the kernel is symmetric. Raises ValueError for measurements of another size."""
        return self._filter(y, self.transfer)

    def A_dagger(self, y: Image) -> Image:
        """Pseudo-inverse F^-1 h^+ F y: 1 / h where frequencies pass, 0 elsewhere."""
        return self._filter(y, torch.where(self.transfer > 0, 1 / self.transfer, 0.0))

    def prox_l2(self, z: Image, y: Image, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2 = F^-1 (1 + gamma h^2)^-1 F (z + gamma A^T y); gamma may be (B,)."""
        gamma = torch.as_tensor(per_item(gamma, z))
        return self._filter(z + gamma * self.A_adjoint(y), 1 / (1 + gamma * self.transfer.square()))

    def _filter(self, x: Image, weights: Tensor) -> Image:
        """F^-1 diag(weights) F x, for real weights (..., H, W) that are the same at k and -k."""
        if tuple(x.shape[1:]) != tuple(self.img_size):
            raise ValueError(f"this operator takes (B, {', '.join(map(str, self.img_size))}), got {tuple(x.shape)}")
        half = weights[..., : x.shape[-1] // 2 + 1].to(x.dtype)  # of a real image the other half is the conjugate
        return irfft2(half * rfft2(x, norm="ortho"), s=self.image_size, norm="ortho")
