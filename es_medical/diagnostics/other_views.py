"""Suggest CT views to which D4 adds more: one more or one fewer, or a scan that starts at another angle."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from es_medical.diagnostics.coverage import view_angles
from es_medical.diagnostics.diagnosis import support_of
from es_medical.diagnostics.spectrum import spectrum
from es_medical.physics.base import Operator

SIDE = 32
"""Pixels along a side of the small scanner on which ranks are computed."""

TINY = 4
"""Pixels along a side where only directions are counted."""

FEWEST = 4
"""Least number of views of the small scanner."""

UNEVEN = 1e-3  # of the spacing
NEW = 1.5  # factor in the number of directions from which a change is worthwhile

LATER = {0.25: "a quarter", 0.125: "an eighth"}
LABEL = {"d4": "D4", "flips": "flips"}


class Change(NamedTuple):
    """Other views, with the ranks before and after, as shares of n."""

    text: str
    before: float
    after: float


class Scan(NamedTuple):
    """Views spread evenly over the full arc (180 degrees of a parallel beam, 360 of a fan beam)."""

    views: int
    start: float
    """Angle of the first view, in parts of the spacing."""

    def angles(self, arc: float) -> tuple[float, ...]:
        """Return the angles in degrees."""
        return tuple(arc / self.views * (view + self.start) for view in range(self.views))


def other_views(physics: Operator) -> list[Change]:
    """Find views that show more under D4 (flips where images aren't square) than those of a scanner.

    V views spread evenly over 180 degrees from 0 are mapped onto themselves by every flip, and by turns of 90 degrees when V is
    even: D4 shows no new direction. V - 1 or V + 1 views are turned to midway between each other. Views that start a quarter
    of the spacing later are flipped to midway between each other, for any V; an odd number of views that start an eighth
    later give four times as many directions.

    Directions are counted for the given views. The gain in rank is computed on a scanner of 32 x 32 pixels with
    proportionally fewer views (an even number if V is even) and bins.

    Args:
        physics: a `es_medical.physics.CT` with views spread evenly over the full arc; others get no suggestions.
    """
    scan = scan_of(physics)
    if scan is None:
        return []
    action = "d4" if physics.image_size[0] == physics.image_size[1] else "flips"
    now, few = directions(physics, scan, action), fewer(scan.views, max(physics.image_size))
    changes = []
    for text, (more, later) in _options(physics, scan, action).items():
        new = Scan(scan.views + more, scan.start + later)
        count = directions(physics, new, action)
        if count < NEW * now:
            continue
        before, after = rank(physics, Scan(few, scan.start), action), rank(physics, Scan(few + more, new.start), action)
        alone = rank(physics, Scan(few + more, new.start), "none")
        words = (
            f"{text}: with {LABEL[action]} {count} directions in place of {now}. On a scanner of {SIDE} x {SIDE} "
            f"pixels, {few + more} views in place of {few}: {100 * after:.1f} % of n in place of {100 * before:.1f} % "
            f"({100 * alone:.1f} % without {LABEL[action]})."
        )
        changes.append(Change(words, before, after))
    return changes


def _options(physics: Operator, scan: Scan, action: str) -> dict[str, tuple[int, float]]:
    """List other scans in words, with the views to add and the later start, in parts of the spacing; the smallest first."""
    later = max(LATER, key=lambda part: directions(physics, Scan(scan.views, scan.start + part), action))
    step = physics.geometry.full_arc / scan.views
    start = f"Start the scan at {step * (scan.start + later):.3g} degrees ({LATER[later]} of the spacing later)"
    fewer_views = {f"Measure {scan.views - 1} views": (-1, 0.0)} if scan.views > 1 else {}
    return {start: (0, later)} | fewer_views | {f"Measure {scan.views + 1} views": (1, 0.0)}


def scan_of(physics: Operator) -> Scan | None:
    """Return the scan of a scanner that measures views spread evenly over its full arc; None for any other."""
    geometry = getattr(physics, "geometry", None)
    if geometry is None or not bool(physics.mask.bool().all()) or len(physics.mask) > 1:
        return None
    angles, arc = np.sort(np.mod(geometry.angles, geometry.full_arc)), geometry.full_arc
    spacing = arc / len(angles)
    gaps = np.diff(angles, append=angles[0] + arc)
    if np.abs(gaps - spacing).max() > UNEVEN * spacing:
        return None
    return Scan(len(angles), float(angles[0] / spacing))


def fewer(views: int, side: int) -> int:
    """Scale a number of views to the small scanner, and keep whether it is odd, even or a multiple of 4.

    >>> fewer(50, 256), fewer(51, 256), fewer(64, 512)
    (6, 7, 4)
    """
    target, period = max(views * SIDE / side, FEWEST), math.gcd(views, 4)
    candidates = [n for n in range(FEWEST, max(views, FEWEST) + 4) if math.gcd(n, 4) == period]
    return min(candidates, key=lambda n: abs(n - target))


def directions(physics: Operator, scan: Scan, action: str) -> int:
    """Count the directions from which a scanner like `physics` sees an image with a set of transformations."""
    return len(view_angles(_small(physics, scan, TINY), action))


def rank(physics: Operator, scan: Scan, action: str) -> float:
    """Return the rank of the mean Gram matrix of a small scanner like `physics`, as a share of the pixels in view."""
    small = _small(physics, scan, SIDE)
    found = spectrum(small, action, support_of(small))
    return found.rank() / found.n


def _small(physics: Operator, scan: Scan, side: int) -> Operator:
    """Return the same scanner for an image with fewer pixels: its lengths are scaled, but not the width of its bins."""
    from es_medical.physics.ct import CT

    geometry = physics.geometry
    height, width = geometry.size
    scale = side / max(height, width)
    size = (max(round(height * scale), 1), max(round(width * scale), 1))
    names = ("shift", "source_distance", "detector_distance")
    lengths = {name: scale * getattr(geometry, name) for name in names if hasattr(geometry, name)}
    n_detectors = math.ceil(scale * geometry.n_detectors)
    return CT(replace(geometry, size=size, angles=scan.angles(geometry.full_arc), n_detectors=n_detectors, **lengths))
