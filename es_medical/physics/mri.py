"""Single-coil accelerated MRI, A = M F, in closed form."""

import torch

from es_medical.physics.base import Operator, Projection
from es_medical.physics.estimates import focal
from es_medical.physics.estimates.focal import focal_least_squares
from es_medical.physics.fourier import fft2c, filter_kspace, ifft2c
from es_medical.physics.masks import GivenMask, read_mask
from es_medical.types import Image, KSpace, Mask


class KSpaceOperator(Operator):
    """Base class of operators that measure k-space."""

    measured = "k-space"
    estimated = focal.NAME
    units = ("lines", "samples")

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W) of k-space."""
        return self.image_size


class MRI(Projection, KSpaceOperator):
    """Single-coil MRI, A = M F: the k-space samples of an image where the sampling mask M is 1, zero elsewhere.

    F is the centred orthonormal DFT, so A A^T = M, A^dagger = A^T, and A^T A is a projection, which gives every
    proximal step in closed form.

    Args:
        mask: 0 or 1, of shape (W,) (one value for each k-space column), (H, W), (1, 1, H, W) or (B, 1, H, W), one for
            each item of a batch; bool, integer or float.
        size: (H, W) of the images.

    Raises:
        ValueError: the mask does not fit `size`, or holds values other than 0 and 1.
    """

    def __init__(self, mask: GivenMask, size: tuple[int, int]) -> None:
        super().__init__(img_size=(2, *size))
        self.register_buffer("mask", sampling_mask(mask, size))

    def A(self, x: Image) -> KSpace:
        """M F x: image (B, 2, H, W) to k-space (B, 2, H, W). Raises ValueError for images of another size."""
        self._check(x, (2, *self.image_size))
        return self.mask * fft2c(x)

    def A_adjoint(self, y: KSpace) -> Image:
        """F^T M y, the zero-filled image (B, 2, H, W). Raises ValueError for k-space of another size."""
        self._check(y, (2, *self.image_size))
        return ifft2c(self.mask * y)

    def A_adjoint_A(self, x: Image) -> Image:
        """F^T M F x, a projection. Raises ValueError for images of another size."""
        self._check(x, (2, *self.image_size))
        return filter_kspace(x, self.mask)

    def estimate(self, y: KSpace) -> Image:
        """Return the focal least-squares image (see `focal_least_squares`). Raises ValueError for k-space of another size."""
        return focal_least_squares(self.A_adjoint_A, self.A_adjoint(y), torch.ones(1))

    @property
    def _items(self) -> int:
        """1: a single image may be measured with the masks of several items."""
        return 1

    def masked(self, m: Mask) -> "MRI":
        """Return M1 M F for a mask m of any shape that the constructor takes."""
        return MRI(self.mask * sampling_mask(m, self.image_size), self.image_size)


def sampling_mask(mask: GivenMask, size: tuple[int, int]) -> Mask:
    """Bring a sampling mask to float (B or 1, 1, H or 1, W) and refuse one that does not fit.

    >>> sampling_mask([0, 1, 1, 0], (8, 4)).shape
    torch.Size([1, 1, 1, 4])
    """
    height, width = size
    wanted = (
        f"images of {height} x {width}: "
        f"expected ({width},), ({height}, {width}), (1, 1, {height}, {width}) or (B, 1, {height}, {width})"
    )
    return read_mask(mask, [(1,), (1, height), (width,)], (1, 2, 4), wanted)
