"""Estimate the centre of rotation on the detector from a sinogram."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from data_prep.run.manifest import PrepError
from data_prep.sinogram.beam import FULL_TURN, Beam, with_centre

Array = NDArray[np.floating]

SEARCHED = 1 / 6  # share of the detector, to each side of its middle
COARSE = 128  # bins of the first search
FINEST = 0.05  # bins
OTHER_HAND = 0.5  # of the disagreement: below it, the other direction is said to fit
COMPARED = 90  # views whose rays are looked for on the other side


def estimated_centre(beam: Beam, p: Array) -> float:
    """The bin, counted from 0, on which the centre of rotation falls.

    Over a full circle every ray is measured twice, from both sides: the centre at which both agree best. A parallel beam over
    180 degrees: the centre at which the sinogram of a full circle, made by mirroring, has the least energy where none can be.

    Args:
        beam: the scanner.
        p: line integrals (V, D).

    Raises:
        PrepError: the views do not cover enough, or the centre is far from the detector's middle.
    """
    step = float(np.median(np.abs(np.diff(beam.angles)))) if len(beam.angles) > 1 else FULL_TURN
    covered = float(np.ptp(beam.angles)) + step
    if covers_circle(beam):
        return _found(beam, p, _from_both_sides)
    if beam.kind == "parallel" and covered > FULL_TURN / 2 - 1.5 * step:
        return _found(beam, p, _outside_the_wedge)
    raise PrepError(f"views cover {covered:.0f} degrees: the centre of rotation cannot be estimated, give --centre")


def covers_circle(beam: Beam) -> bool:
    """Whether the views go all the way round, so that every ray is measured from both sides."""
    angles = np.asarray(beam.angles)
    step = float(np.median(np.abs(np.diff(angles)))) if len(angles) > 1 else FULL_TURN
    return bool(np.ptp(angles) + step > FULL_TURN - 1.5 * step)


def other_hand_fits(beam: Beam, p: Array) -> bool:
    """Whether a fan over a full circle agrees far better with itself when its bins are mirrored: `direction` is wrong, too.

    A parallel beam cannot tell: its image is mirrored.
    """
    if beam.kind != "fan" or not covers_circle(beam):
        return False
    other = replace(beam, mirrored=not beam.mirrored)
    return _from_both_sides(other, p)(beam.centre) < OTHER_HAND * _from_both_sides(beam, p)(beam.centre)


def _found(beam: Beam, p: Array, cost: Callable[[Beam, Array], Callable[[float], float]]) -> float:
    """Search all of the middle third with bins merged, then ever finer around the best."""
    merge = max(beam.bins // COARSE, 1)
    bins = beam.bins // merge
    few = replace(beam, bins=bins, bin_width=beam.bin_width * merge, centre=float("nan"))
    coarse = cost(few, p[:, : bins * merge].reshape(len(p), bins, merge).mean(-1))
    reach = max(int(bins * SEARCHED), 1)
    candidates = (bins - 1) / 2 + np.arange(-reach, reach + 1)
    costs = [coarse(c) for c in candidates]
    if np.argmin(costs) in (0, len(costs) - 1):
        raise PrepError(f"the centre of rotation is not within {reach * merge} bins of the detector's middle: give --centre")
    best, step = float(candidates[np.argmin(costs)]) * merge + (merge - 1) / 2, float(merge)
    fine = cost(beam, p)
    while step > FINEST:
        step /= 4
        around = best + step * np.arange(-5, 6)
        best = float(around[np.argmin([fine(c) for c in around])])
    return round(best, 3)


def _from_both_sides(beam: Beam, p: Array) -> Callable[[float], float]:
    """1 - correlation of each ray with the same ray from the other side.

    The ray at angle b and position u of a flat detector at distance f is seen again at -u, b + 180 - 2 arctan(u / f).
    """
    angles = np.mod(np.asarray(beam.angles), FULL_TURN)
    order = np.argsort(angles, kind="stable")
    known, rows = angles[order], p[order]
    known, rows = np.r_[known, known[0] + FULL_TURN], np.concatenate([rows, rows[:1]])
    some = slice(0, -1, max(len(angles) // COMPARED, 1))

    def cost(centre: float) -> float:
        u = with_centre(beam, centre).positions()
        fan = np.rad2deg(np.arctan(u / beam.source_detector)) if beam.kind == "fan" else np.zeros_like(u)
        seen = np.mod(known[some, None] + FULL_TURN / 2 - 2 * fan, FULL_TURN)  # (views, D)
        view = np.interp(np.where(seen < known[0], seen + FULL_TURN, seen), known, np.arange(len(known)))
        bin = np.broadcast_to(2 * centre - np.arange(beam.bins), view.shape)
        inside = (bin >= 0) & (bin <= beam.bins - 1)
        other = map_coordinates(rows, [view[inside], bin[inside]], order=1)
        return 1 - float(np.corrcoef(rows[some][inside], other)[0, 1])

    return cost


def _outside_the_wedge(_: Beam, p: Array) -> Callable[[float], float]:
    """Mean magnitude of the Fourier transform outside the double wedge that holds the sinogram of a full circle.

    Source: Vo et al. (2014), Optics Express 22(16), 19078.
    """
    views, bins = p.shape
    half = bins // 2
    spectrum = np.fft.rfft(np.pad(p, ((0, 0), (half, half)), mode="edge"))
    frequency = np.fft.rfftfreq(bins + 2 * half)  # cycles per bin
    kept = (frequency > 0.01) & (frequency < 0.25)
    spectrum, frequency = spectrum[:, kept], frequency[kept]
    order = np.abs(np.fft.fftfreq(2 * views))[:, None] * 2 * views  # periods in a full circle
    outside = order > np.pi * bins * frequency + 2

    def cost(centre: float) -> float:
        mirrored = spectrum.conj() * np.exp(-4j * np.pi * frequency * (centre + half))
        return float(np.abs(np.fft.fft(np.concatenate([spectrum, mirrored]), axis=0))[outside].mean())

    return cost
