"""Estimate the noise of k-space: its level, also after resampling, and its covariance between coils.

Sigma is always the standard deviation of the real part, and of the imaginary part, of a sample.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Window = tuple[tuple[int, int], tuple[int, int]]  # first and one past the last measured row, and column: `sampling.Extent`

LEAST = 96  # samples at the edge for a standard error of 7 %
SAME = 0.15  # two levels with at most this relative difference count as equal
EMPTY = 1e-3  # background / periphery below which the background holds no noise
OUTLIER = 4.5  # samples with a modulus above this many sigma are left out: one in 25,000 of pure noise
PER_COIL = 256  # samples per coil for a covariance: 6 % standard error of its eigenvalues
SINGULAR = 1e-6  # smallest / largest eigenvalue below which a covariance counts as singular
RAYLEIGH_MEDIAN = sqrt(2 * np.log(2))
ERROR = 0.72  # standard error of sigma from n complex samples, times sqrt(n) / sigma
SHARES = tuple(2 ** (i / 2) / 16 for i in range(7))  # corner size as a share of the side: 1/16 to 1/2
ENOUGH = 512  # samples for a standard error of 3 %
MEASURED = 0.75  # share of the central samples that must be measured to estimate the background


class NoiseEstimate(NamedTuple):
    """Noise level of one slice.

    Attributes:
        sigma: standard deviation of the noise on the real part, and on the imaginary part, of a k-space sample, in the units of
            k-space; root mean square over coils.
        reliable: True if no test raised a doubt.
        note: the doubt, for the user; empty if reliable.
        periphery: level of the outermost k-space samples: noise plus any signal there.
        background: level of the corners of the image in the units of k-space: noise plus anything else there; NaN where k-space
            is undersampled.
        n: number of k-space samples per coil behind the level of the periphery.
    """

    sigma: float
    reliable: bool
    note: str
    periphery: float
    background: float
    n: int


def estimate_sigma(kspace: NDArray[np.complexfloating], window: Window | None = None) -> NoiseEstimate:
    """Estimate the noise level from the four corners of k-space, where there is least signal, and check it on the background.

    Any signal in the corners of k-space makes their level an upper bound. Signs of signal are a level that falls outwards, and
    a level above that of the image corners, which usually hold air. The background is taken from a tapered low-resolution
    image: the taper prevents ringing of the object. If both levels agree, sigma is their mean; if the periphery holds signal,
    sigma is that of the background; if the background holds more than noise, that of the periphery. A white signal that fills
    the whole field of view cannot be distinguished from noise.

    Exact zeros count as not measured. Undersampled k-space has no usable image background: only its periphery is used.

    Args:
        kspace: (..., H, W) complex, centred; leading axes are coils. Not modified.
        window: measured rows and columns; samples outside are ignored. None: all.

    Returns:
        the estimate, with a note if it may be wrong. For k-space without noise, the level that is found.

    >>> real, imaginary = np.random.default_rng(0).normal(0, 0.5, (2, 96, 96))
    >>> estimate = estimate_sigma(real + 1j * imaginary)
    >>> abs(estimate.sigma / 0.5 - 1) < 0.05, estimate.reliable
    (True, True)
    """
    k = kspace.reshape(-1, *kspace.shape[-2:])  # (coils, H, W)
    window = window or ((0, k.shape[-2]), (0, k.shape[-1]))
    edge, air = periphery(_inside(k, window)), background(k, window)
    sigma, doubt = _decide(edge, air)
    if edge.n < LEAST:
        doubt = f"only {edge.n:.0f} samples at the edge of k-space"
    note = f"noise level uncertain ({doubt}): give --sigma if you know it" if doubt else ""
    return NoiseEstimate(sigma, not doubt, note, edge.sigma, air.sigma, int(edge.n))


def _inside(k: NDArray, window: Window | None) -> NDArray:
    (top, bottom), (left, right) = window or ((0, None), (0, None))
    return k[..., top:bottom, left:right]


def _decide(edge: Level, air: Level) -> tuple[float, str]:
    """Sigma, and the reason to doubt it (empty if there is none)."""
    ratio = air.sigma / edge.sigma if edge.sigma > 0 else 1.0
    if ratio < EMPTY:
        return (edge if edge.plain else air).sigma, "the background of the image is empty: free of noise, or masked"
    if not air.plain:  # an object that fills the field of view, or undersampling
        return edge.sigma, "" if edge.plain else "signal at the edge of k-space and no background in the image"
    error = edge.error(air)
    if abs(ratio - 1) <= 2 * error and edge.plain:
        return sqrt((edge.n * edge.sigma**2 + air.n * air.sigma**2) / (edge.n + air.n)), ""
    if ratio > 1 + max(SAME, 3 * error):  # k-space was filtered, or spikes in it spread over the image
        level = edge if edge.spiked else air
        return level.sigma, f"the background of the image is {ratio:.2g} times as high as the edge of k-space"
    expected = not edge.plain or ratio > 1 - max(SAME, 3 * error)
    return air.sigma, "" if expected else f"the edge of k-space is {1 / ratio:.2g} times as high as the image background"


def noise_covariance(
    kspace: NDArray[np.complexfloating], window: Window | None = None, per_coil: int = PER_COIL
) -> NDArray[np.complex128]:
    """Covariance of the noise between coils, from the outermost samples: Psi = sum_s k_s k_s^H / (2 n).

    The noise of the real parts, and that of the imaginary parts, has the covariance Re Psi, so that Psi_cc = sigma_c^2.
    Samples with a modulus above 4.5 sigma in any coil are left out.

    Args:
        kspace: (C, H, W) complex, centred. Not modified.
        window: measured rows and columns; None: all.
        per_coil: at least `per_coil` * C samples of each coil are used.

    Returns:
        (C, C) complex Hermitian.

    Raises:
        PrepError: fewer than 4 C samples are nonzero in every coil.
    """
    outer, _ = outermost(_inside(kspace, window), max(ENOUGH, per_coil * len(kspace)))
    samples = outer.reshape(len(outer), -1).astype(np.complex128)  # (C, n)
    samples = samples[:, (samples != 0).all(0)]
    coils, n = samples.shape
    if n < 4 * coils:
        raise PrepError(f"{n} noise samples for {coils} coils: a covariance needs at least {4 * coils}")
    sigmas = np.array([rayleigh_sigma(coil[None]) for coil in samples])
    kept = samples[:, (np.abs(samples) < OUTLIER * sigmas[:, None]).all(0)]
    return kept @ kept.conj().T / (2 * kept.shape[1])


def whitening_matrix(covariance: NDArray[np.complexfloating]) -> NDArray[np.complex128]:
    """Prewhitening matrix W, Hermitian with W Psi W^H = (tr Psi / C) I: independent coils, all with the old mean noise power.

    Of all such matrices it changes the coils least; independent noise of equal level gives the identity. Prewhitened k-space is
    `np.tensordot(W, k, 1)`.

    Args:
        covariance: (C, C) complex, Hermitian, in any unit.

    Returns:
        (C, C) complex.

    Raises:
        PrepError: not finite, not Hermitian, or singular (a dead coil, or one that is the sum of others).

    >>> whitening_matrix(np.diag([1.0, 4.0]).astype(complex)).real.round(3).diagonal()
    array([1.581, 0.791])
    """
    if not np.isfinite(covariance).all():
        raise PrepError("noise covariance holds NaN or infinite values")
    n = len(covariance)
    if covariance.shape != (n, n) or np.abs(covariance - covariance.conj().T).max() > 1e-5 * np.abs(covariance).max():
        raise PrepError(f"noise covariance of shape {covariance.shape} is not Hermitian")
    values, vectors = np.linalg.eigh(covariance.astype(np.complex128))  # ascending
    if values[0] <= SINGULAR * values[-1]:
        raise PrepError(f"noise covariance is singular: eigenvalues from {values[0]:.3g} to {values[-1]:.3g}")
    scaled = vectors * np.sqrt(values.mean() / values)
    return scaled @ vectors.conj().T


class Level(NamedTuple):
    """Noise level of a set of samples.

    Attributes:
        sigma: the level.
        n: number of independent samples behind it.
        plain: whether they look like pure noise.
        spiked: whether single samples are far above the level.
    """

    sigma: float
    n: float
    plain: bool = True
    spiked: bool = False

    def error(self, other: Level) -> float:
        """Standard error of the ratio of two levels, for a ratio near 1."""
        return ERROR * sqrt(1 / max(self.n, 1) + 1 / max(other.n, 1))


def outermost(k: NDArray, enough: int = ENOUGH) -> tuple[NDArray, float]:
    """The smallest corners of k-space (coils, H, W) with enough nonzero samples, else the largest corners.

    Returns:
        (coils, 4, r, c), the outermost sample of each corner first; the corner size as a share of the side.
    """
    for share in SHARES:
        corners = _corners(k, share)
        if np.count_nonzero(corners) >= enough * len(k):
            break
    return corners, share


def periphery(k: NDArray) -> Level:
    """Level of the outermost samples of k-space (coils, H, W), compared with that of the adjacent samples."""
    outer, share = outermost(k)
    n = np.count_nonzero(outer) / len(k)
    sigma = rayleigh_sigma(outer)
    level = Level(sigma, n, spiked=sigma > 0 and _spiked(outer / sigma, n))
    wider = _corners(k, min(share * sqrt(2), 0.5))
    wider[..., : outer.shape[-2], : outer.shape[-1]] = 0  # only the border remains
    border = Level(rayleigh_sigma(wider), np.count_nonzero(wider) / len(k))
    falls = border.sigma > (1 + max(0.1, 3 * level.error(border))) * level.sigma
    return level._replace(plain=not falls and not level.spiked)


def background(k: NDArray, window: Window) -> Level:
    """Level of the corners of the tapered low-resolution image, in units of k-space (coils, H, W).

    With F orthonormal and white noise, each pixel of F^-1 (w k) has the variance sigma^2 sum(w^2 over measured samples) / n.
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
    """Whether the level differs between image corners, or between their outer and inner halves (a receive filter)."""
    energy = (np.abs(corners) ** 2).mean(0)  # (4, r, c)
    r, c = energy.shape[1] // 2, energy.shape[2] // 2
    parts = (*energy, energy[:, :r], energy[:, r:], energy[..., :c], energy[..., c:])
    levels = [sqrt(part.mean()) for part in parts if part.size]
    return max(levels) > (1 + max(0.25, 6 * ERROR / sqrt(n / 4))) * min(levels)


def _smooth(corners: NDArray) -> bool:
    """Whether pixels correlate with those two rows or columns away, as in an object; tapered noise is not correlated so far."""
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
    """The four corners of (coils, H, W), each flipped so that its outermost sample comes first: (coils, 4, r, c)."""
    rows, columns = (max(1, min(round(share * n), n // 2)) for n in x.shape[-2:])
    flipped = (x, x[:, ::-1], x[:, :, ::-1], x[:, ::-1, ::-1])
    return np.stack([y[:, :rows, :columns] for y in flipped], 1)


def rayleigh_sigma(samples: NDArray) -> float:
    """Sigma of samples (coils, ...): from the median modulus of each coil (exact zeros ignored), root mean square over coils.

    Coils without samples are ignored.
    """
    medians = [_median(m[m > 0]) for m in np.abs(samples.reshape(len(samples), -1)) if m.any()]
    return float(np.sqrt(np.mean(np.square(medians or [0.0], dtype=np.float64)))) / RAYLEIGH_MEDIAN


def _median(x: NDArray) -> float:
    """As np.median, whose checks take longer than so few samples."""
    n = len(x)
    middle = np.partition(x, [(n - 1) // 2, n // 2])[(n - 1) // 2 : n // 2 + 1]
    return middle.mean()


def _spiked(scaled: NDArray, n: float) -> bool:
    """Whether samples in units of their level have a larger root mean square than pure noise (single high samples)."""
    moduli = np.abs(scaled[scaled != 0])
    return moduli.size > 0 and sqrt(np.mean(np.square(moduli, dtype=np.float64)) / 2) > 1.1 + 3 / sqrt(n)
