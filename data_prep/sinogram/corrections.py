"""From the values of a detector row to line integrals, and the rays that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter, median_filter, minimum_filter, rank_filter

from data_prep.run.manifest import PrepError
from data_prep.sinogram.options import SinogramOptions
from data_prep.sinogram.scan import Array, Raw, Scan

Bools = NDArray[np.bool_]

MAD = 1.4826  # standard deviation of normal numbers / their median absolute deviation
DIM = 0.05  # share of the usual white field below which a bin sees no radiation
NEIGHBOURS = 5  # rays and bins of a neighbourhood
DEAD = 4  # how many times farther than they a dead bin is from its neighbours
OTHERS = np.array([[True, True, False, True, True]])  # bins whose median a dead bin is compared with
OFTEN = 0.95  # share of the views, those nearest to the neighbours, that count
HALF = 0.5  # share of the views in which a live bin must be usable
NO_COUNT = 1e30  # from here on, values are no numbers: their squares would overflow
AIR = 0.05  # share of the detector, at each end, that is taken for air
CROSSED = 0.1  # share of the largest line integral that air must not reach
ENOUGH_FRAMES = 3  # white frames from which counts per photon can be told
ROBUST_FRAMES = 5  # frames of which the median is taken, not the mean


class Row(NamedTuple):
    """One detector row, corrected.

    Attributes:
        p: line integrals (V, D), without unit; 0 where a ray is not usable.
        usable: (V, D), False where a ray must not be used.
        variance: (V, D) of the counting noise of p, or None where counts do not tell it.
        notes: what was found and corrected, in words.
    """

    p: Array
    usable: Bools
    variance: Array | None = None
    notes: tuple[str, ...] = ()


def corrected_row(scan: Scan, index: int, options: SinogramOptions) -> Row:
    """Read a row and correct it: dark and white field, logarithm, dead bins, outliers, air, beam hardening, rings.

    Raises:
        PrepError: it cannot be read, or a correction does not apply to it.
    """
    raw = Raw(*(np.where(np.abs(x) < NO_COUNT, x, np.nan) for x in scan.read(index)))
    row = _as_they_are(raw) if scan.values == "attenuation" else _logarithm(raw, scan.values, options)
    if not row.usable.any():
        raise PrepError("no ray is usable: every count is 0 or below the floor, or no number")
    row = _without_bad(row, options)
    if options.air_offset is not None:
        offset = air_level(row) if options.air_offset == "auto" else float(options.air_offset)
        row = row._replace(p=row.p - offset, notes=(*row.notes, f"air read {offset:.4f}: subtracted"))
    if options.powers:
        row = without_hardening(row, options.powers)
    if options.rings:
        row = row._replace(p=without_rings(filled_bins(row), options.rings))
    return row._replace(p=np.where(row.usable, row.p, 0))


def _without_bad(row: Row, options: SinogramOptions) -> Row:
    """The row with dead bins and outliers not usable."""
    n, given = row.p.shape[1], list(options.dead_bins)
    if wrong := [bin for bin in given if not 0 <= bin < n]:
        raise PrepError(f"dead bin {wrong[0]}: the detector has bins 0 to {n - 1}")
    dead = dead_bins(row)
    dead[given] = True
    notes = [f"{dead.sum()} dead bins: masked"] if dead.any() else []
    usable = row.usable & ~dead
    hit = usable & outliers(filled_bins(row._replace(usable=usable)), options.outliers)
    notes += [f"{hit.sum()} outliers: masked"] if hit.any() else []
    return row._replace(usable=usable & ~hit, notes=(*row.notes, *notes))


def _as_they_are(raw: Raw) -> Row:
    usable = np.isfinite(raw.values)
    return Row(np.where(usable, raw.values, 0), usable, None, tuple(_masked(~usable, "values that are no numbers")))


def _logarithm(raw: Raw, values: str, options: SinogramOptions) -> Row:
    """Line integrals p = -log((I - dark) / (white - dark)); rays at or below the floor are not usable.

    The variance of p is g / (I - dark) + g / (n (white - dark)), with g counts for each photon from the white frames.
    """
    dark = _mean(raw.dark, raw.values.shape[1], 0.0)
    white = _mean(raw.white, raw.values.shape[1], 1.0 if values == "transmission" else np.nan) - dark
    if not np.isfinite(white).any():
        raise PrepError(
            "counts without a white field: give `white` (a number, dataset or file), or `air_bins`, in the geometry"
        )
    counts = raw.values - dark
    lit = white > DIM * np.nanmedian(white)
    finite = np.isfinite(counts)
    above = np.where(finite, counts, -1) > options.floor
    usable = above & lit
    p = np.log(np.where(lit, white, 1)) - np.log(np.where(usable, counts, 1))
    gain = counts_of_a_photon(raw.white, raw.dark) if values == "counts" else np.nan
    share = gain * (1 / np.where(usable, counts, 1) + 1 / (max(len(raw.white), 1) * np.where(lit, white, 1)))
    notes = [
        *_masked(~finite, "values that are no numbers"),
        *_masked(finite & ~above, f"counts of {options.floor:g} or below" if options.floor else "counts of 0 or below"),
        *([f"{(~lit).sum()} bins without radiation in the white field: masked"] if not lit.all() else []),
    ]
    return Row(np.where(usable, p, 0), usable, None if np.isnan(gain) else share, tuple(notes))


def _masked(bad: Bools, what: str) -> Iterator[str]:
    if bad.any():
        yield f"{bad.sum()} {what}: masked"


def _mean(frames: Array, bins: int, absent: float) -> Array:
    if not frames.size:
        return np.full(bins, absent)
    return np.asarray(np.median(frames, 0) if len(frames) >= ROBUST_FRAMES else frames.mean(0))


def counts_of_a_photon(white: Array, dark: Array) -> float:
    """Variance / mean of the white frames' counts, the median over bins; NaN with fewer than three frames.

    Frames are brought to the same mean first, so that the source's drift does not count; the variance of dark frames is
    subtracted. A detector that counts photons has 1.
    """
    if len(white) < ENOUGH_FRAMES:
        return float("nan")
    level = _mean(dark, white.shape[1], 0.0)
    signal = white - level
    signal = signal * (signal.mean() / signal.mean(1, keepdims=True))
    noise = signal.var(0, ddof=1) - (dark.var(0, ddof=1).mean() if len(dark) >= ENOUGH_FRAMES else 0.0)
    mean = signal.mean(0)
    lit = mean > DIM * np.median(mean)
    gain = float(noise[lit].mean() / mean[lit].mean()) if lit.any() else 0.0
    return gain if gain > 0 else float("nan")


def dead_bins(row: Row) -> Bools:
    """Bins that stand alone far from their neighbours in many views, (D,); or without usable rays in half of the views.

    The farthest is found first, as it spoils its neighbours' medians.
    """
    dead = row.usable.mean(0) < HALF
    for _ in range(row.p.shape[1]):
        p = filled_bins(row._replace(usable=row.usable & ~dead))
        others = [rank_filter(p, rank, footprint=OTHERS, mode="nearest") for rank in (1, 2)]
        off = np.sort(np.abs(p - sum(others) / 2), axis=0)
        distance = off[: max(int(OFTEN * len(off)), 1)].mean(0)  # without single hits
        usual = maximum_filter(distance, footprint=OTHERS[0], mode="nearest")  # at an edge of the object, neighbours differ too
        excess = distance - DEAD * np.maximum(usual, np.median(distance))
        worst = int(excess.argmax())
        if excess[worst] <= 0 or dead[worst]:
            break
        dead[worst] = True
    return dead


def outliers(p: Array, threshold: float) -> Bools:
    """Rays of line integrals (V, D) with far more radiation than all rays around them, such as hits of gamma rays.

    A line integral is an outlier if it is below the smallest one of the 16 rays around it (two views and two bins away) by more
    than `threshold` times the noise; 0 finds none. Only low values count: a thin dense object reads high.
    """
    if not threshold or min(p.shape) < NEIGHBOURS:
        return np.zeros(p.shape, bool)
    ring = np.ones((NEIGHBOURS, NEIGHBOURS), bool)
    ring[1:-1, 1:-1] = False
    below = minimum_filter(p, footprint=ring, mode="nearest") - p
    d = np.diff(p, axis=0)
    noise = MAD * float(np.median(np.abs(d - np.median(d)))) / np.sqrt(2)
    return np.asarray((below > threshold * noise) & (noise > 0))


def air_level(row: Row) -> float:
    """The median line integral at both ends of the detector.

    Raises:
        PrepError: the object crosses them, or no ray there is usable.
    """
    n = max(round(AIR * row.p.shape[1]), 1)
    ends = np.r_[0:n, row.p.shape[1] - n : row.p.shape[1]]
    air = np.ma.masked_array(row.p[:, ends], ~row.usable[:, ends])
    views = np.ma.median(air, axis=1).compressed()
    if not views.size or np.abs(views).max() > CROSSED * np.abs(row.p).max():
        raise PrepError(f"the object crosses the outer {n} bins in some view: give --air-offset as a number")
    return float(np.ma.median(air))


def without_hardening(row: Row, powers: tuple[float, ...]) -> Row:
    """Line integrals p + A2 p^2 + A3 p^3 ..., for the attenuation of one material at one energy; the variance follows.

    Raises:
        PrepError: the curve falls somewhere in the range of p.
    """
    p = row.p
    slope = np.ones_like(p) + sum(power * c * p ** (power - 1) for power, c in enumerate(powers, start=2))
    if (slope[row.usable] <= 0).any():
        raise PrepError(f"--beam-hardening {powers}: the curve falls within the line integrals, up to {p.max():.3g}")
    straight = p + sum(c * p**power for power, c in enumerate(powers, start=2))
    return row._replace(p=straight, variance=None if row.variance is None else row.variance * slope**2)


def without_rings(p: Array, width: int) -> Array:
    """Subtract from each bin what sets it apart in all views: the median over views of p - its median over `width` bins."""
    return np.asarray(p - np.median(p - median_filter(p, (1, width), mode="nearest"), 0))


def filled_bins(row: Row) -> Array:
    """Line integrals (V, D) with rays that are not usable interpolated from their view: to look for things only."""
    p, bins = row.p.copy(), np.arange(row.p.shape[1])
    for values, good in zip(p, row.usable, strict=True):
        if good.any():
            values[~good] = np.interp(bins[~good], bins[good], values[good])
    return p
