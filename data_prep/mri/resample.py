"""Aliasing-free sinc resampling of k-space: transform to the image, crop or zero-pad about the origin, transform back."""

from __future__ import annotations

from math import prod, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_prep.mri.normalisation import crop_or_pad
from es_medical.data.geometry import Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Resampled(NamedTuple):
    """K-space on another grid, and its image.

    Attributes:
        kspace: (..., h, w) complex, centred.
        image: (..., h, w) complex, centred: the original image, cropped or zero-padded to the new field of view.
    """

    kspace: NDArray[np.complexfloating]
    image: NDArray[np.complexfloating]


class Regrid(NamedTuple):
    """How a recorded slice comes to the grid of the file: crop or pad its image, then its k-space.

    Attributes:
        recorded: (H, W) of the recorded grid.
        field: (h, w) recorded pixels that cover the field of view of the file's grid.
        size: (h, w) of the file's grid; where it differs from `field`, the pixels differ (interpolation).
    """

    recorded: tuple[int, int]
    field: tuple[int, int]
    size: tuple[int, int]

    def apply(self, kspace: NDArray[np.complexfloating]) -> Resampled:
        """K-space (..., H, W) and image on the file's grid; the values of the image stay in the units of the recorded one."""
        cropped = sinc_resample(kspace, self.field)
        if self.field == self.size:
            return cropped
        k = crop_or_pad(cropped.kspace, self.size)
        k *= self._gain
        return Resampled(k, sinc_resample(k, self.size).image)

    def sigma(self, sigma: float) -> float:
        """Noise level of a sample of the new k-space inside the measured window, averaged over it; see `resampled_sigma`."""
        return resampled_sigma(sigma, self.recorded, self.field) * self._gain

    def window(self, measured: tuple[int, int], axis: int) -> tuple[int, int]:
        """Rows (axis 0) or columns (axis 1) of the new grid inside a window of the recorded one; (0, 0) if there are none."""
        n, new = self.field[axis], self.size[axis]
        first, stop = (i + new // 2 - n // 2 for i in resampled_columns(measured, self.recorded[axis], n))
        return (max(first, 0), min(stop, new)) if stop > max(first, 0) else (0, 0)

    def plane(self, plane: Geometry) -> Geometry:
        """The plane of the new grid, from that of the recorded one."""
        return plane.resized(self.recorded, self.field).resampled(self.field, self.size)

    @property
    def _gain(self) -> float:
        return sqrt(prod(self.size) / prod(self.field))


def resampled_sigma(sigma: float, old_size: tuple[int, int], new_size: tuple[int, int]) -> float:
    """Sigma of a k-space sample after `sinc_resample`, averaged over k-space.

    Cropping the image does not change it, since the noise of the pixels is white. Padding spreads the same energy over more
    samples and correlates neighbours: sigma' = sigma sqrt(product over the axes of min(1, n / N)).

    >>> resampled_sigma(2.0, (640, 80), (320, 320))
    1.0
    """
    return sigma * sqrt(prod(min(1.0, n / m) for n, m in zip(old_size, new_size, strict=True)))


def sinc_resample(kspace: NDArray[np.complexfloating], size: tuple[int, int]) -> Resampled:
    """K-space of the same image in a field of view of `size` pixels: F R F^-1 k.

    F is the centred orthonormal FFT with its origin at index n//2 of each axis, and R crops or zero-pads the image so that
    index n//2 maps to N//2. The pixels keep their size, so a readout oversampled by two loses its outer half here.

    The image stays in FFT order (origin first) between the two transforms, so R only removes or inserts its middle.
    Each axis is cropped as soon as it is transformed. One CPU thread is enough; torch uses as many as it is set to.

    Args:
        kspace: (..., H, W), complex64 or complex128, any leading axes (slices, coils); it is not modified.
        size: (h, w) of the new grid; each side may be smaller, equal or larger, even or odd.

    Returns:
        k-space and image (..., h, w) in the precision of the input. With an unchanged size the k-space is a plain copy.

    Raises:
        ValueError: the type is not complex64 or complex128, there are fewer than two axes, or an axis is empty.

    >>> k = np.full((6, 9), 1 / np.sqrt(6 * 9), np.complex128)  # a delta at the origin
    >>> (sinc_resample(k, (4, 5)).kspace * np.sqrt(4 * 5)).round(9)[0]
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j])
    """
    old = _checked(kspace, size)
    native = kspace.astype(kspace.dtype.newbyteorder("="), copy=False)
    wrapped = torch.from_numpy(np.fft.ifftshift(native, (-2, -1)))  # torch's shifts take twice as long
    for axis in sorted((-2, -1), key=lambda axis: size[axis] / old[axis]):  # the axis that is cropped most goes first
        wrapped = torch.fft.ifft(wrapped, dim=axis, norm="ortho")
        wrapped = _crop_or_pad_wrapped(wrapped, axis, size[axis])
    image = np.fft.fftshift(wrapped.numpy(), (-2, -1))  # (..., h, w)
    if old == size:
        return Resampled(np.array(kspace, image.dtype), image)
    return Resampled(np.fft.fftshift(torch.fft.fft2(wrapped, norm="ortho").numpy(), (-2, -1)), image)


def _checked(kspace: NDArray, size: tuple[int, int]) -> tuple[int, ...]:
    """(H, W) of the k-space; raises ValueError if it cannot be resampled to this size."""
    if kspace.dtype.kind != "c" or kspace.dtype.itemsize not in (8, 16):
        raise ValueError(f"k-space of type {kspace.dtype}, expected complex64 or complex128")
    if kspace.ndim < 2 or 0 in kspace.shape:
        raise ValueError(f"k-space of shape {kspace.shape}, expected (..., H, W) and nothing empty")
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size {size}, expected (rows, columns) of at least 1")
    return tuple(kspace.shape[-2:])


def _crop_or_pad_wrapped(x: Tensor, axis: int, size: int) -> Tensor:
    """Crop or zero-pad an axis in FFT order: indices 0 to ceil(n/2) - 1, then -floor(n/2) to -1."""
    n = x.shape[axis]
    kept = min(n, size)
    first, last = x.narrow(axis, 0, (kept + 1) // 2), x.narrow(axis, n - kept // 2, kept // 2)
    if size <= n:
        return x if size == n else torch.cat((first, last), axis)
    gap = list(x.shape)
    gap[axis] = size - n
    return torch.cat((first, x.new_zeros(gap), last), axis)


def resampled_columns(window: tuple[int, int], width: int, new_width: int) -> tuple[int, int]:
    """Columns of the new grid that lie inside the measured window of the old one.

    Column i of n has the frequency (i - n//2)/n, in cycles per pixel. A new column is inside if its frequency lies between
    those of the first and the last measured column. A window of all columns is a whole period of k-space: then every new
    column is inside.

    Args:
        window: first and one past the last measured column of the old grid.
        width: columns of the old grid.
        new_width: columns of the new grid.

    Returns:
        first and one past the last new column inside; (0, 0) if no new frequency lies in the window.

    Raises:
        ValueError: the window is empty or not within the old grid.

    >>> resampled_columns((20, 352), 372, 320)
    (18, 302)
    """
    start, stop = window
    if not 0 <= start < stop <= width or new_width < 1:
        raise ValueError(f"window {window} of {width} columns to {new_width}: expected 0 <= start < stop <= width")
    if (start, stop) == (0, width):
        return 0, new_width
    low, high = (start - width // 2) * new_width, (stop - 1 - width // 2) * new_width  # frequencies x width x new_width
    first, last = new_width // 2 - (-low // width), new_width // 2 + high // width
    return (first, last + 1) if first <= last else (0, 0)
