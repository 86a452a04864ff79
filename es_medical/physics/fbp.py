"""Filtered back-projection for parallel and fan beams."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from es_medical.physics.ct_geometry import FanBeam, Geometry
from es_medical.types import Image, Mask, Measurement

Filter = Literal["ramp", "hann"]


def fbp(y: Measurement, geometry: Geometry, mask: Mask, filter: Filter = "ramp") -> Image:
    """Reconstruct line integrals y (B, 1, V, D), lengths in pixels, by filtered back-projection; differentiable in y.

    Missing bins of a view are interpolated linearly between its measured ones; where a whole view is missing, the weights
    of the others grow in proportion. Each view is weighted by half the arc between its neighbours. A shift of the detector
    is followed; pixels that it leaves outside a view get nothing from it, so values fall beyond `geometry.field_of_view`.

    Args:
        y: sinograms; values where nothing was measured are ignored.
        geometry: scanner; a fan beam needs views over the full circle.
        mask: measured rays, (B or 1, 1, V or 1, D or 1).
        filter: "ramp", or "hann", a ramp that falls to zero at the highest frequency.

    Raises:
        ValueError: an unknown filter, or a fan beam over less than a full circle.

    Source: Kak and Slaney (1988), chapter 3.
    """
    mask = mask.expand(len(mask), 1, *geometry.shape).to(y)
    y, weights = fill_gaps(y, mask), _view_weights(geometry, mask).to(y)  # (B or 1, V)
    if isinstance(geometry, FanBeam):
        y = y * _kept(_cosines, (geometry,), y.dtype, y.device)
    filtered = apply_filter(y, geometry.pitch / _magnification(geometry), filter)[:, 0] * weights[..., None]
    return _back_project(filtered, geometry)[:, None]


def apply_filter(y: Tensor, pitch: float, filter: Filter = "ramp") -> Tensor:
    """Apply the ramp filter |f| along the last axis, without wrapping around.

    Args:
        y: (..., D).
        pitch: distance of neighbouring bins, in pixels of the image.
        filter: see `fbp`.
    """
    n = y.shape[-1]
    padded = max(64, 2 ** int(np.ceil(np.log2(2 * n))))
    response = _kept(ramp, (padded, filter), y.dtype, y.device)
    return torch.fft.irfft(torch.fft.rfft(y, padded) * response, padded)[..., :n] / pitch


def ramp(n: int, filter: Filter = "ramp") -> np.ndarray:
    """Return the n // 2 + 1 values of the ramp filter in cycles per sample, from 0 to 1/2, times the window.

    It is the transform of the band-limited kernel 1/4, 0 (even), -1 / (pi k)^2 (odd), which has the right mean; n is even.

    >>> ramp(64).round(3)[[0, 1, 16, 32]]
    array([0.003, 0.015, 0.25 , 0.497])
    """
    if filter not in ("ramp", "hann"):
        raise ValueError(f"filter must be ramp or hann, got {filter!r}")
    k = np.minimum(np.arange(n), n - np.arange(n))
    kernel = np.where(k % 2, -1 / (np.pi * np.maximum(k, 1)) ** 2, 0.0)
    kernel[0] = 0.25
    response = np.fft.rfft(kernel).real
    return response * (0.5 + 0.5 * np.cos(2 * np.pi * np.fft.rfftfreq(n))) if filter == "hann" else response


def fill_gaps(y: Measurement, mask: Mask) -> Measurement:
    """Interpolate unmeasured bins linearly between the nearest measured ones of their view (beyond the last: constant).

    >>> y, mask = torch.tensor([[[[1.0, 0, 0, 4]]]]), torch.tensor([[[[1.0, 0, 0, 1]]]])
    >>> fill_gaps(y, mask).flatten().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    n, measured = mask.shape[-1], mask > 0
    bins = torch.arange(n, device=y.device)
    left = torch.where(measured, bins, -1).cummax(-1).values
    right = torch.where(measured, bins, n).flip(-1).cummin(-1).values.flip(-1)
    left, right = torch.where(left < 0, right, left), torch.where(right >= n, left, right)
    share = (bins - left) / (right - left).clamp(min=1)
    left, right = left.clamp(0, n - 1).expand(y.shape), right.clamp(0, n - 1).expand(y.shape)
    below, above = y.gather(-1, left), y.gather(-1, right)
    filled = below + share.to(y) * (above - below)
    return torch.where(measured.any(-1, keepdim=True), filled, 0)  # a view without any measured bin


@lru_cache(maxsize=64)
def _kept(values: Callable[..., np.ndarray], arguments: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return constants of a scanner on a device, copied once: a GPU would wait for every copy."""
    return torch.from_numpy(values(*arguments)).to(device, dtype)


def _view_weights(geometry: Geometry, mask: Mask) -> Tensor:
    """Weight of each measured view in the integral over 180 degrees, (B or 1, V); the weights of an item sum to pi."""
    arcs, present = _kept(_arcs, (geometry,), mask.dtype, mask.device), mask.amax((1, 3))
    return present * arcs * arcs.sum() / (present * arcs).sum(1, keepdim=True).clamp(min=1e-30)


def _arcs(geometry: Geometry) -> np.ndarray:
    """Half the arc between each view's neighbours in radians, over 180 degrees (a fan's full circle covers them twice)."""
    period = geometry.full_arc
    angles = np.mod(geometry.angles, period)
    order = np.argsort(angles, kind="stable")
    gaps = np.diff(angles[order], append=angles[order[0]] + period)
    typical = np.median(gaps[gaps > 1e-9])  # an angle may be measured several times
    if isinstance(geometry, FanBeam) and gaps.max() > 2 * typical + 1e-6:
        raise ValueError(
            f"filtered back-projection of a fan beam needs views all the way round, got {len(gaps)} views with a gap of "
            f"{gaps.max():.1f} degrees; use A_dagger"
        )
    gaps = np.minimum(gaps, 2 * typical)  # the end views of a limited arc do not fill the missing wedge
    arcs = np.empty_like(gaps)
    arcs[order] = (gaps + np.roll(gaps, 1)) / 2
    return np.deg2rad(arcs) * 180 / period


def _magnification(geometry: Geometry) -> float:
    return geometry.focal_length / geometry.source_distance if isinstance(geometry, FanBeam) else 1.0


def _cosines(geometry: FanBeam) -> np.ndarray:
    """Cosine of each ray's angle to the central one, (D,)."""
    return geometry.focal_length / np.hypot(geometry.focal_length, geometry.bins)


def _back_project(filtered: Tensor, geometry: Geometry) -> Tensor:
    """Sum over views of filtered sinograms (B, V, D), interpolated linearly where each pixel's ray meets the detector."""
    height, width = geometry.size
    x = torch.arange(width, dtype=torch.float64, device=filtered.device) - (width - 1) / 2
    y = (height - 1) / 2 - torch.arange(height, dtype=torch.float64, device=filtered.device)[:, None]
    image = filtered.new_zeros(len(filtered), height * width)
    for view, angle in enumerate(np.deg2rad(geometry.angles)):
        across, depth = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        position, weight = across, filtered.new_ones(())
        if isinstance(geometry, FanBeam):
            ratio = geometry.source_distance / (geometry.source_distance + depth)  # 1 at the centre of rotation
            position, weight = position * ratio * _magnification(geometry), ratio.square()
        position = (position - geometry.shift) / geometry.pitch
        image = image + (weight.to(filtered) * _sample(filtered[:, view], position)).flatten(1)
    return image.view(-1, height, width)


def _sample(row: Tensor, position: Tensor) -> Tensor:
    """Interpolate rows (B, D) linearly at positions (H, W) in bins from the detector's centre; zero beyond its ends."""
    n = row.shape[-1]
    position = position + (n - 1) / 2
    left = position.floor().clamp(0, max(n - 2, 0)).long()
    share = (position - left).to(row)
    inside = ((position >= 0) & (position <= n - 1)).to(row)
    value = row[:, left] * (1 - share) + row[:, (left + 1).clamp(max=n - 1)] * share
    return inside * value
