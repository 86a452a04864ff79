"""Turn Hounsfield units into a stored slice: square field of view, clipped, averaged over areas to the new size, in [0, 1].

Slices that are not square in mm are padded with air along the shorter side, about the centre, so that nothing is distorted or
cropped. The pixel spacing afterwards is old spacing * old size / new size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_prep.ct.pixels import AIR
from data_prep.mri.normalisation import crop_or_pad
from data_prep.run.manifest import PrepError
from es_medical.data.geometry import Geometry, square_field

if TYPE_CHECKING:
    import torchio
    from numpy.typing import NDArray

LOWEST, HIGHEST = AIR, 1000.0  # HU, the window that becomes [0, 1]
SCALE, OFFSET = HIGHEST - LOWEST, LOWEST  # HU = stored * SCALE + OFFSET

LONGEST = 20.0  # largest ratio of the sides of a pixel; reformatted slices of 5 mm at 0.5 mm have 10

Size = tuple[int, int]


class Prepared(NamedTuple):
    """A slice as it is stored.

    Attributes:
        image: (1, size, size) float32 in [0, 1].
        place: the plane of these pixels.
        clipped: pixels that hold values above the window, which were cut.
    """

    image: Tensor
    place: Geometry
    clipped: int = 0


def prepare(hu: NDArray[np.float32], place: Geometry, size: int) -> Prepared:
    """Resample one slice to the stored grid and scale it to [0, 1].

    Args:
        hu: (H, W) Hounsfield units.
        place: the plane of its pixels; unknown spacing counts as square pixels.
        size: rows and columns afterwards.

    Raises:
        PrepError: the pixels are so elongated that their spacing must be wrong.
    """
    old = (hu.shape[0], hu.shape[1])
    field = checked_field(old, place.spacing)
    clipped, above = clip(hu), hu > HIGHEST
    if field != old:
        clipped = crop_or_pad(clipped - AIR, field) + np.float32(AIR)
    n = _cut(above, field, size) if above.any() else 0
    small = area_resize(torch.from_numpy(clipped), (size, size))
    image = small.sub_(OFFSET).div_(SCALE).clamp_(0, 1)
    place = place if field == old else place.resized(old, field)
    return Prepared(image[None].contiguous(), place.rescaled(field, (size, size)), n)


def _cut(above: NDArray[np.bool_], field: Size, size: int) -> int:
    """Number of stored pixels with a part in pixels that were cut (H, W)."""
    padded = crop_or_pad(above.astype(np.float32), field)
    return int((area_resize(torch.from_numpy(padded), (size, size)) > 0).sum())


def clip(hu: NDArray[np.float32]) -> NDArray[np.float32]:
    """Clip Hounsfield units (H, W) to the stored window."""
    return np.asarray(_clamp().clamp(torch.from_numpy(hu)))


@lru_cache(maxsize=1)
def _clamp() -> torchio.Clamp:
    import torchio

    return torchio.Clamp(LOWEST, HIGHEST)


def checked_field(size: Size, spacing: tuple[float, float]) -> Size:
    """The square field of view of a slice, see `square_field`.

    Raises:
        PrepError: the pixels are so elongated that their spacing must be wrong; the field of view could become huge.
    """
    rows, columns = (1.0, 1.0) if np.isnan(spacing).any() else spacing
    if max(rows, columns) > LONGEST * min(rows, columns):
        raise PrepError(f"pixels of {rows:g} x {columns:g} mm: expected sides that differ by a factor of {LONGEST:g} at most")
    return square_field(size, spacing)


def area_resize(x: Tensor, size: Size) -> Tensor:
    """Average x (H, W) over the area of each new pixel, with fractions of old pixels: the mean of the image is preserved.

    >>> area_resize(torch.tensor([[0.0, 3.0, 6.0]]), (1, 2))
    tensor([[1., 5.]])
    """
    if all(old % new == 0 for old, new in zip(x.shape, size, strict=True)):
        n, m = (old // new for old, new in zip(x.shape, size, strict=True))
        rows = sum((x[i::n] for i in range(1, n)), x[::n])
        return sum((rows[:, j::m] for j in range(1, m)), rows[:, ::m]) / (n * m)  # a fifth of the time of torch's pooling
    return _overlaps(x.shape[0], size[0]) @ x @ _overlaps(x.shape[1], size[1]).T


@lru_cache(maxsize=16)
def _overlaps(old: int, new: int) -> Tensor:
    """(new, old) share of each new pixel that each old pixel covers, on an axis of the same field of view."""
    edges_old, edges_new = np.arange(old + 1) / old, np.arange(new + 1) / new
    upper = np.minimum(edges_old[1:], edges_new[1:, None])
    lower = np.maximum(edges_old[:-1], edges_new[:-1, None])
    return torch.from_numpy(np.clip(upper - lower, 0, None) * new).float()
