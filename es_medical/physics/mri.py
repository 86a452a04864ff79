"""Single-coil accelerated MRI, A = M F, in closed form."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from es_medical.physics.base import Operator, per_item
from es_medical.physics.fourier import fft2c, filter_kspace, ifft2c
from es_medical.types import Image, KSpace, Mask


class KSpaceOperator(Operator):
    """What operators that measure k-space have in common."""

    measured = "k-space"
    units = ("lines", "samples")

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W) of k-space."""
        return self.image_size


class MRI(KSpaceOperator):
    """Single-coil MRI, A = M F: the k-space samples of an image where the sampling mask M is 1, zero elsewhere.

    F is the centred orthonormal DFT, so A A^T = M, A^dagger = A^T, and A^T A is a projection, which gives every
    proximal step in closed form.

    Args:
        mask: 0 or 1, of shape (W,) (one value for each k-space column), (H, W), (1, 1, H, W) or (B, 1, H, W), one for
            each item of a batch; bool, integer or float.
        size: (H, W) of the images.

    Raises:
        ValueError: the mask does not fit `size`, or holds other values than 0 and 1.
    """

    def __init__(self, mask: Tensor | np.ndarray | Sequence[float], size: tuple[int, int]) -> None:
        super().__init__(img_size=(2, *size))
        self.register_buffer("mask", sampling_mask(mask, size))

    def A(self, x: Image) -> KSpace:
        """M F x: image (B, 2, H, W) to k-space (B, 2, H, W). Raises ValueError for images of another size."""
        self._check(x)
        return self.mask * fft2c(x)

    def A_adjoint(self, y: KSpace) -> Image:
        """F^T M y, the zero-filled image (B, 2, H, W). Raises ValueError for k-space of another size."""
        self._check(y)
        return ifft2c(self.mask * y)

    def A_dagger(self, y: KSpace) -> Image:
        """Pseudo-inverse of A, which is its adjoint."""
        return self.A_adjoint(y)

    def A_adjoint_A(self, x: Image) -> Image:
        """F^T M F x, a projection. Raises ValueError for images of another size."""
        self._check(x)
        return filter_kspace(x, self.mask)

    def prox_l2(self, z: Image, y: KSpace, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2 = z + gamma / (1 + gamma) (A^T y - A^T A z), gamma a number or (B,)."""
        gamma = per_item(gamma, z)
        return z + gamma / (1 + gamma) * (self.A_adjoint(y) - self.A_adjoint_A(z))

    def _check(self, x: Tensor) -> None:
        if tuple(x.shape[-2:]) != self.image_size:
            raise ValueError(f"this operator takes (B, 2, {self.image_size[0]}, {self.image_size[1]}), got {tuple(x.shape)}")

    def masked(self, m: Mask) -> "MRI":
        """Return M1 M F for a mask m of any shape that the constructor takes."""
        return MRI(self.mask * sampling_mask(m, self.image_size), self.image_size)


def sampling_mask(mask: Tensor | np.ndarray | Sequence[float], size: tuple[int, int]) -> Mask:
    """Bring a sampling mask to float (B or 1, 1, H or 1, W) and refuse one that does not fit.

    >>> sampling_mask([0, 1, 1, 0], (8, 4)).shape
    torch.Size([1, 1, 1, 4])
    """
    given = torch.as_tensor(mask)
    shaped = given.view(*[1] * (4 - given.ndim), *given.shape) if given.ndim < 4 else given
    height, width = size
    if given.ndim not in (1, 2, 4) or shaped.shape[1] != 1 or shaped.shape[2] not in (1, height) or shaped.shape[3] != width:
        raise ValueError(
            f"mask of shape {tuple(given.shape)} does not fit images of {height} x {width}: "
            f"expected ({width},), ({height}, {width}), (1, 1, {height}, {width}) or (B, 1, {height}, {width})"
        )
    shaped = shaped.to(torch.float32, copy=True)  # the operator keeps its own mask, and y the precision of x
    if shaped.device.type == "cpu" and not bool(((shaped == 0) | (shaped == 1)).all()):
        raise ValueError(f"mask values must be 0 or 1, got values from {shaped.min():g} to {shaped.max():g}")
    return shaped
