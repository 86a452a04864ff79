"""Accelerated MRI with several receive coils, A x = M F S_c x, and its proximal step by conjugate gradients."""

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from es_medical.physics.base import per_item
from es_medical.physics.conjugate_gradient import least_squares, proximal_step
from es_medical.physics.estimates.focal import focal_least_squares
from es_medical.physics.fourier import AXES, dft, inverse_dft, to_channels, to_complex
from es_medical.physics.masks import GivenMask
from es_medical.physics.mri import KSpaceOperator, sampling_mask
from es_medical.types import CoilKSpace, CoilMaps, Image, Mask

NO_MAPS = "a MultiCoilProtocol has no sensitivity maps: make the operator of a batch with .of(batch)"


class MultiCoilMRI(KSpaceOperator):
    """Multi-coil MRI: y_c = M F S_c x, the image seen by each coil through its sensitivity S_c, sampled in k-space.

    F is the centred orthonormal DFT. A^T A = sum_c S_c^H F^T M F S_c is neither diagonal nor a projection, so the proximal
    step and the pseudo-inverse are solved by conjugate gradients. The maps need not be normalised (sum_c |S_c|^2 = 1) and
    may vanish outside a support; A and its restrictions M1 A share them.

    Args:
        mask: 0 or 1, any shape that `MRI` takes, or (B or 1, 1, 1, H or 1, W); the same for all coils.
        maps: sensitivity maps (B, 2, C, H, W) as real and imaginary part, or (1, 2, C, H, W) for the whole batch.

    Raises:
        ValueError: maps of another shape, or a mask that does not fit them.
    """

    def __init__(self, mask: GivenMask, maps: CoilMaps) -> None:
        if maps.ndim != 5 or maps.shape[1] != 2 or not maps.numel() or not maps.is_floating_point():
            raise ValueError(
                f"sensitivity maps must be real numbers of shape (B or 1, 2, coils, H, W), got {tuple(maps.shape)} {maps.dtype}"
            )
        size = (maps.shape[-2], maps.shape[-1])
        super().__init__(img_size=(2, *size))
        mask = coil_mask(mask, size)
        if len({len(mask), len(maps), 1}) > 2:
            raise ValueError(f"a mask for {len(mask)} items and sensitivity maps for {len(maps)}: give as many, or one")
        self.register_buffer("mask", mask)
        # (B or 1, C, H, W, 2), of which complex numbers are a view; a complex buffer would not survive .to(dtype)
        self.register_buffer("parts", maps.movedim(1, -1).contiguous())

    @property
    def maps(self) -> CoilMaps:
        """S_c, a view (B or 1, 2, C, H, W)."""
        return self.parts.movedim(-1, 1)

    @property
    def _s(self) -> Tensor:
        """S_c, a complex view (B or 1, C, H, W)."""
        return torch.view_as_complex(self.parts)

    def A(self, x: Image) -> CoilKSpace:
        """M F S_c x: image (B, 2, H, W) to k-space (B, 2, C, H, W). Raises ValueError for images of another size."""
        self._check(x, (2, *self.image_size))
        k = dft(self._s * to_complex(x)[:, None])
        return self.mask * torch.stack((k.real, k.imag), dim=1)

    def A_adjoint(self, y: CoilKSpace) -> Image:
        """sum_c S_c^H F^T M y_c, the coil-combined zero-filled image (B, 2, H, W). Raises ValueError for another size."""
        self._check(y, self.maps.shape[1:])
        coil_images = inverse_dft(self.mask[:, 0] * torch.complex(y[:, 0], y[:, 1]))
        return to_channels((self._s.conj() * coil_images).sum(1))

    def A_dagger(self, y: CoilKSpace) -> Image:
        """Least-squares image of least norm, to the tolerance of conjugate gradients; zero where all maps are."""
        return to_channels(least_squares(self._normal, to_complex(self.A_adjoint(y))))

    def estimate(self, y: CoilKSpace) -> Image:
        """Return the focal least-squares image (see `focal_least_squares`). Raises ValueError for k-space of another size."""
        diagonal = self.parts.square().sum((1, -1)).amax((1, 2))  # of sum_c |S_c|^2
        return focal_least_squares(self.A_adjoint_A, self.A_adjoint(y), torch.where(diagonal > 0, diagonal, 1))

    def A_adjoint_A(self, x: Image) -> Image:
        """A^T A x without going through k-space in its centred order. Raises ValueError for images of another size."""
        self._check(x, (2, *self.image_size))
        return to_channels(self._normal(to_complex(x)))

    def prox_l2(self, z: Image, y: CoilKSpace, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2, gamma a number or (B,); differentiable in z, y and gamma."""
        self._check(z, (2, *self.image_size))
        gamma = per_item(gamma, z)
        gamma = gamma[..., 0] if isinstance(gamma, Tensor) and gamma.ndim else gamma  # complex images have one axis less
        return to_channels(proximal_step(self._normal, to_complex(z), to_complex(self.A_adjoint(y)), gamma))

    def _normal(self, x: Tensor) -> Tensor:
        """A^T A x = sum_c S_c^H F^T M F S_c x for complex x (B, H, W).

        The centring shifts are phases in k-space and commute with M. Where M is constant along the columns' direction, the
        transforms along it cancel as well.
        """
        axes = AXES[1:] if self.mask.shape[-2] == 1 else AXES
        weights = torch.fft.ifftshift(self.mask[:, 0], AXES)  # (B or 1, 1, H or 1, W)
        s = self._s
        k = torch.fft.fftn(s * x[:, None], dim=axes)
        coil_images = torch.fft.ifftn(k * weights, dim=axes)
        return (s.conj() * coil_images).sum(1)

    @property
    def _items(self) -> int:
        """Number of items of a batch, where each has a mask or sensitivity maps of its own; else 1."""
        return max(len(self.mask), len(self.parts))

    def masked(self, m: Mask) -> "MultiCoilMRI":
        """Return M1 M F S_c for a mask m of any shape that the constructor takes; the maps are shared."""
        return MultiCoilMRI(self.mask * coil_mask(m, self.image_size), self.maps)


class MultiCoilProtocol(KSpaceOperator):
    """The sampling mask, which all slices of a multi-coil scan share; `of` adds the sensitivity maps of a batch.

    Args:
        mask: 0 or 1, any shape that `MultiCoilMRI` takes.
        size: (H, W) of the images.

    Raises:
        ValueError: the mask does not fit `size`.
    """

    def __init__(self, mask: GivenMask, size: tuple[int, int]) -> None:
        super().__init__(img_size=(2, *size))
        self.register_buffer("mask", coil_mask(mask, size))

    def of(self, batch: Mapping[str, Any]) -> MultiCoilMRI:
        """Return the operator of a batch with sensitivity maps (B or 1, 2, C, H, W) in `batch["maps"]`.

        Raises:
            ValueError: there are none, or they are not of the mask's size.
        """
        if batch.get("maps") is None:
            raise ValueError(
                f"the batch has no sensitivity maps, only {', '.join(batch)}: several coils need a slice file with 'maps'"
            )
        maps = batch["maps"].to(self.mask.device, non_blocking=True)
        if tuple(maps.shape[-2:]) != self.image_size:
            raise ValueError(
                f"sensitivity maps of shape {tuple(maps.shape)} for images of {self.image_size[0]} x {self.image_size[1]}"
            )
        return MultiCoilMRI(self.mask, maps)

    def masked(self, m: Mask) -> "MultiCoilProtocol":
        """Return the protocol whose mask is restricted to where m is 1."""
        return MultiCoilProtocol(self.mask * coil_mask(m, self.image_size), self.image_size)

    def A(self, x: Image) -> NoReturn:
        """Raise TypeError: there are no sensitivity maps yet."""
        raise TypeError(NO_MAPS)

    def A_adjoint(self, y: CoilKSpace) -> NoReturn:
        """Raise TypeError: there are no sensitivity maps yet."""
        raise TypeError(NO_MAPS)


def coil_mask(mask: GivenMask, size: tuple[int, int]) -> Mask:
    """Bring a sampling mask to float (B or 1, 1, 1, H or 1, W), and refuse one that does not fit (see `sampling_mask`).

    >>> coil_mask([0, 1, 1, 0], (8, 4)).shape
    torch.Size([1, 1, 1, 1, 4])
    """
    given = torch.as_tensor(mask)
    if given.ndim == 5 and given.shape[2] == 1:
        given = given[:, :, 0]
    return sampling_mask(given, size)[:, :, None]
