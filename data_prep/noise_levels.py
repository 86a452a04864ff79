"""Levels of noise: of the outermost samples of k-space, and of the background of its image.

The modulus of complex noise is Rayleigh-distributed with the median sigma sqrt(2 ln 2), and a median is not moved far by a
few samples, however wrong: sigma = median |k| / sqrt(2 ln 2), the median absolute deviation of complex numbers of mean zero.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Window = tuple[tuple[int, int], tuple[int, int]]  # first and one past the last measured row, and column: `sampling.Extent`

RAYLEIGH_MEDIAN = sqrt(2 * np.log(2))
ERROR = 0.72  # standard error of sigma from n complex samples, times sqrt(n) / sigma
SHARES = tuple(2 ** (i / 2) / 16 for i in range(7))  # of a side, at each of its ends: 1/16 to 1/2
ENOUGH = 512  # samples for a standard error of 3 %
MEASURED = 0.75  # share of the central samples that have to be there for a background


class Level(NamedTuple):
    """Level of samples.

    Attributes:
        sigma: the level.
        n: independent samples that it rests on.
        plain: whether they look like noise and nothing else.
        spiked: whether single ones stand far above the level.
    """

    sigma: float
    n: float
    plain: bool = True
    spiked: bool = False

    def error(self, other: Level) -> float:
        """Standard error of the ratio of two levels near one."""
        return ERROR * sqrt(1 / max(self.n, 1) + 1 / max(other.n, 1))


def outermost(k: NDArray, enough: int = ENOUGH) -> tuple[NDArray, float]:
    """The smallest corners of k-space (coils, H, W) with enough samples in each coil, if there are.

    Returns:
        (coils, 4, r, c), the outermost sample of each corner first; their share of each end of a side.
    """
    for share in SHARES:
        corners = _corners(k, share)
        if np.count_nonzero(corners) >= enough * len(k):
            break
    return corners, share


def periphery(k: NDArray) -> Level:
    """Level of the outermost samples of k-space (coils, H, W), compared with that of the samples that border on them."""
    outer, share = outermost(k)
    n = np.count_nonzero(outer) / len(k)
    sigma = rayleigh_sigma(outer)
    level = Level(sigma, n, spiked=sigma > 0 and _spiked(outer / sigma, n))
    wider = _corners(k, min(share * sqrt(2), 0.5))
    wider[..., : outer.shape[-2], : outer.shape[-1]] = 0  # leaves the border
    border = Level(rayleigh_sigma(wider), np.count_nonzero(wider) / len(k))
    falls = border.sigma > (1 + max(0.1, 3 * level.error(border))) * level.sigma
    return level._replace(plain=not falls and not level.spiked)


def background(k: NDArray, window: Window) -> Level:
    """Level of the corners of the tapered low-resolution image, in units of k-space (coils, H, W).

    With F orthonormal and white noise, each pixel of F^-1 (w k) has the variance sigma^2 sum(w^2 over the measured) / n.
    """
    low, inside = _centre(k, window)  # (coils, h, w), (h, w)
    h, w = inside.shape
    measured = (low != 0).any(0) & inside
    taper = np.outer(_taper(h), _taper(w)) * measured
    gain = sqrt(np.mean(taper**2))
    if measured.sum() < MEASURED * inside.sum() or gain == 0:
        return Level(float("nan"), 0, False)
    x = np.fft.ifft2(low * taper.astype(low.real.dtype), norm="ortho")
    corners = _corners(np.fft.fftshift(x, (-2, -1)), 1 / 8 if h * w >= 128 * 128 else 3 / 16)  # (coils, 4, r, c)
    n = 0.55 * corners[0].size  # the taper correlates neighbours: (mean w^2)^2 / mean w^4, on each axis
    sigma = rayleigh_sigma(corners)
    if sigma == 0:
        return Level(0, n)
    corners = corners / sigma
    return Level(sigma / gain, n, not (_uneven(corners, n) or _smooth(corners) or _spiked(corners, n)))


def _uneven(corners: NDArray, n: float) -> bool:
    """Whether the level differs between corners of the image, or from their outer to their inner half (a receive filter)."""
    energy = (np.abs(corners) ** 2).mean(0)  # (4, r, c)
    r, c = energy.shape[1] // 2, energy.shape[2] // 2
    parts = (*energy, energy[:, :r], energy[:, r:], energy[..., :c], energy[..., c:])
    levels = [sqrt(part.mean()) for part in parts if part.size]
    return max(levels) > (1 + max(0.25, 6 * ERROR / sqrt(n / 4))) * min(levels)


def _smooth(corners: NDArray) -> bool:
    """Whether pixels resemble those two rows or columns away: an object. Tapered noise forgets itself sooner."""
    pairs = ((corners[..., 2:, :], corners[..., :-2, :]), (corners[..., 2:], corners[..., :-2]))
    energy = np.vdot(corners, corners).real
    return any(np.abs((a * b.conj()).sum((-2, -1))).sum() > 0.5 * energy for a, b in pairs)


def _centre(k: NDArray, window: Window) -> tuple[NDArray, NDArray[np.bool_]]:
    """The low frequencies of k-space (coils, h, w), and which of them lie inside the window (h, w)."""
    sides = [min(n, max(128, n // 128 * 32)) for n in k.shape[-2:]]
    starts = [n // 2 - m // 2 for n, m in zip(k.shape[-2:], sides, strict=True)]
    rows, columns = (np.arange(start, start + m) for start, m in zip(starts, sides, strict=True))
    inside = [(first <= i) & (i < stop) for i, (first, stop) in zip((rows, columns), window, strict=True)]
    return k[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], np.outer(*inside)


def _taper(n: int) -> NDArray[np.floating]:
    """Tukey window: flat in its central half, a cosine towards its ends."""
    distance = np.abs(np.arange(n) - n // 2) / (n / 2)  # 0 at the centre, 1 at the ends
    return 0.5 + 0.5 * np.cos(np.pi * np.clip(2 * distance - 1, 0, 1))


def _corners(x: NDArray, share: float) -> NDArray:
    """The four corners of (coils, H, W), each turned so that its outermost sample comes first: (coils, 4, r, c)."""
    rows, columns = (max(1, min(round(share * n), n // 2)) for n in x.shape[-2:])
    turned = (x, x[:, ::-1], x[:, :, ::-1], x[:, ::-1, ::-1])
    return np.stack([y[:, :rows, :columns] for y in turned], 1)


def rayleigh_sigma(samples: NDArray) -> float:
    """Sigma of samples (coils, ...): the median of each coil's without exact zeros, and the root mean square of the coils.

    Coils without samples do not count.
    """
    medians = [np.median(m[m > 0]) for m in np.abs(samples.reshape(len(samples), -1)) if m.any()]
    return float(np.sqrt(np.mean(np.square(medians or [0.0], dtype=np.float64)))) / RAYLEIGH_MEDIAN


def _spiked(scaled: NDArray, n: float) -> bool:
    """Whether samples in units of their level have a larger root mean square than noise alone explains: a mixture."""
    moduli = np.abs(scaled[scaled != 0])
    return moduli.size > 0 and sqrt(np.mean(np.square(moduli, dtype=np.float64)) / 2) > 1.1 + 3 / sqrt(n)
