"""The scanner of a measured sinogram in millimetres, and the part of it that becomes the acquisition."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from es_medical.physics.ct_geometry import FanBeam, ParallelBeam

Kind = Literal["parallel", "fan"]
NAN = float("nan")
FULL_TURN = 360.0
HALF_A_PIXEL = 0.5
SEVERAL = 10  # views that together turn by more than a few degrees
FEW = 2 * math.pi + 0.1  # degrees; so much is a full turn in radians
NARROWEST, WIDEST = 0.1, 170.0  # degrees of a fan; else its lengths have several units


@dataclass(frozen=True, kw_only=True)
class Beam:
    """The scanner of a file. Lengths are in mm, angles in degrees, counter-clockwise as in `es_medical.physics.ct_geometry`.

    Attributes:
        kind: "parallel" or "fan" (flat detector).
        angles: angle of each view.
        bins: number of detector bins.
        bin_width: distance of neighbouring bins on the detector; NaN if unknown: then it is the unit of length.
        centre: index of the bin, counted from 0 and not whole, on which the centre of rotation falls; NaN if unknown.
        source_origin: from the source to the centre of rotation (fan).
        source_detector: from the source to the detector (fan).
        mirrored: whether the bins run from right to left, seen with the source below the object.
    """

    kind: Kind
    angles: tuple[float, ...]
    bins: int
    bin_width: float = NAN
    centre: float = NAN
    source_origin: float = NAN
    source_detector: float = NAN
    mirrored: bool = False

    def __post_init__(self) -> None:
        if not np.isfinite(self.angles).all():
            raise PrepError("an angle is not a number")
        if len(self.angles) >= SEVERAL and (span := float(np.ptp(self.angles))) < FEW:
            raise PrepError(f"{len(self.angles)} views within {span:.3g} degrees: are the angles in radians? Expected degrees")
        if self.bin_width <= 0 or math.isinf(self.bin_width):
            raise PrepError(f"bin width {self.bin_width:g} mm: expected a positive number")
        if self.kind == "fan" and not 0 < self.source_origin <= self.source_detector < math.inf:
            raise PrepError(
                f"source to origin {self.source_origin:g} mm, source to detector {self.source_detector:g} mm: expected two "
                "positive lengths, the second not the smaller one"
            )
        if self.kind == "fan" and math.isnan(self.bin_width):
            raise PrepError("a fan beam needs the width of its bins in mm")
        wide = 2 * math.degrees(math.atan2(self.bins * self.bin_width / 2, self.source_detector)) if self.kind == "fan" else 1.0
        if not NARROWEST < wide < WIDEST:
            raise PrepError(
                f"a detector of {self.bins * self.bin_width:.3g} mm, {self.source_detector:.3g} mm from the source, is a fan "
                f"of {wide:.2g} degrees: are all lengths in mm?"
            )
        if not math.isnan(self.centre) and not 0 <= self.centre <= self.bins - 1:
            raise PrepError(f"centre of rotation at bin {self.centre:g}: the detector has bins 0 to {self.bins - 1}")

    @property
    def unit(self) -> float:
        """Width of a bin in mm, or 1 where it is unknown."""
        return 1.0 if math.isnan(self.bin_width) else self.bin_width

    @property
    def magnification(self) -> float:
        """Width on the detector / width at the centre of rotation."""
        return self.source_detector / self.source_origin if self.kind == "fan" else 1.0

    @property
    def field(self) -> float:
        """Diameter in mm of the circle that the shorter side of the detector sees in every view."""
        half = self.unit * (min(self.centre, self.bins - 1 - self.centre) + 0.5)
        if self.kind == "parallel":
            return 2 * half
        return 2 * self.source_origin * half / math.hypot(half, self.source_detector)

    def positions(self) -> NDArray[np.floating]:
        """Position of each bin on the detector in mm, in the order of the file; the centre of rotation is at 0."""
        along = self.unit * (np.arange(self.bins, dtype=np.float64) - self.centre)
        return -along if self.mirrored else along

    def repeated(self) -> NDArray[np.bool_]:
        """Views at an angle that an earlier view has too, such as the last one of 0 to 360 degrees with both ends, (V,)."""
        angles = np.round(np.mod(np.asarray(self.angles) + 1e-4, FULL_TURN), 3)
        first = np.zeros(len(angles), bool)
        first[np.unique(angles, return_index=True)[1]] = True
        return ~first


class Acquisition(NamedTuple):
    """What is taken of a file: some views, and means over neighbouring bins, from left to right.

    Attributes:
        beam: the scanner of the file, with a known centre.
        views: index of each view.
        merge: number of neighbouring bins that make one.
    """

    beam: Beam
    views: tuple[int, ...]
    merge: int = 1

    @property
    def n_bins(self) -> int:
        """Number of bins that are left; bins beyond a multiple of `merge` are left out at the end of the detector."""
        return self.beam.bins // self.merge

    def taken(self, p: NDArray[np.floating]) -> NDArray[np.floating]:
        """The mean over merged bins of the views of line integrals (V, D)."""
        p = p[list(self.views), : self.n_bins * self.merge].reshape(len(self.views), self.n_bins, self.merge).mean(-1)
        return p[:, ::-1] if self.beam.mirrored else p

    def usable(self, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The merged rays of which every part is usable."""
        return self.taken(usable.astype(float)) > 1 - 1e-9

    def geometry(self, size: int, pixel: float) -> ParallelBeam | FanBeam:
        """The scanner for images of `size` x `size` pixels of `pixel` mm.

        Raises:
            ValueError: the source lies inside the image.
        """
        from es_medical.physics.ct_geometry import geometry_from_dict

        beam = self.beam
        places = self.taken(np.broadcast_to(beam.positions(), (len(beam.angles), beam.bins)))[0]
        lengths = {"pitch": beam.unit * self.merge, "shift": float(places[0] + places[-1]) / 2}
        if beam.kind == "fan":
            lengths |= {"source_distance": beam.source_origin, "detector_distance": beam.source_detector - beam.source_origin}
        angles = tuple(beam.angles[view] for view in self.views)
        shape = {"geometry": beam.kind, "size": (size, size), "angles": angles, "n_detectors": self.n_bins}
        return geometry_from_dict(shape | {name: length / pixel for name, length in lengths.items()})


def even_views(beam: Beam, wanted: int | None) -> tuple[tuple[int, ...], list[str]]:
    """Indices of `wanted` evenly spaced views (None: all), none at an angle that an earlier one has, and notes.

    Of a parallel beam over a full circle they are taken from the first 180 degrees: the others measure the same rays.

    Raises:
        PrepError: there are fewer views.
    """
    repeated = beam.repeated()
    views = np.flatnonzero(~repeated)
    notes = [f"{repeated.sum()} views repeat an angle: left out"] if repeated.any() else []
    if wanted is None or wanted == len(views):
        return tuple(views.tolist()), notes
    angles = np.asarray(beam.angles)
    if beam.kind == "parallel" and np.ptp(angles[views]) > FULL_TURN / 2 + 1:
        views = views[np.abs(angles[views] - angles[views[0]]) < FULL_TURN / 2 - 1e-6]
        notes.append("views of the first 180 degrees")
    if wanted > len(views):
        raise PrepError(f"{len(views)} views, fewer than the {wanted} of --views")
    if len(views) % wanted:
        notes.append(f"{wanted} of {len(views)} views, not quite evenly spaced")
    return tuple(views[np.arange(wanted) * len(views) // wanted].tolist()), notes


def merged_bins(beam: Beam, pixel: float) -> int:
    """As many neighbouring bins as fit into half a pixel at the centre of rotation, at least 1."""
    return max(int(HALF_A_PIXEL * pixel * beam.magnification / beam.unit + 0.01), 1)


def with_centre(beam: Beam, centre: float) -> Beam:
    """The same scanner with its centre of rotation on a bin."""
    return replace(beam, centre=float(centre))
