"""Geometry of a CT scanner in two dimensions: parallel or fan beam."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

SMALLEST_SHIFT = 1e-6
"""Shifts below this, in bins, are rounding errors and count as 0."""


@dataclass(frozen=True)
class Geometry(ABC):
    """What parallel and fan beam share. Lengths are in pixels, angles in degrees.

    The image's first row is at the top, x points right and y up, the origin is the centre of the image, also for an even
    number of pixels. At angle 0 the rays are vertical and the first detector bin is at the left; views turn
    counter-clockwise. That is scikit-image's `radon` with its axes exchanged, up to the centre of rotation: `radon`
    turns about pixel n // 2, half a pixel to the right and below of the centre when n is even.

    Args:
        size: (H, W) of the image.
        angles: angle of each view; or give `n_views`, evenly spaced over `arc` (its end excluded).
        n_detectors: bins of the detector, centred; by default as many as see the whole image.
        pitch: width of a bin.
        shift: position of the detector's centre, 0 where the ray through the centre of the image (of a fan, its central
            ray) hits it; towards higher bins is positive. It stands for a centre of rotation that is off the middle.

    Raises:
        ValueError: sizes that are not positive, both or neither of `angles` and `n_views`.
    """

    size: tuple[int, int]
    angles: tuple[float, ...] = ()
    n_detectors: int = 0
    pitch: float = 1.0
    shift: float = field(default=0.0, kw_only=True)
    n_views: InitVar[int | None] = None
    arc: InitVar[float | None] = None

    kind: ClassVar[str]
    full_arc: ClassVar[float]

    def __post_init__(self, n_views: int | None, arc: float | None) -> None:
        """Convert the fields to plain numbers, and check them."""
        if (n_views is None) == (not self.angles):
            raise ValueError(f"give either angles or n_views, got {len(self.angles)} angles and n_views={n_views}")
        if n_views is not None:
            _positive(n_views=n_views)
            span = self.full_arc if arc is None else arc
            self._set(angles=[span * view / n_views for view in range(n_views)])
        self._set(size=tuple(int(side) for side in self.size), angles=tuple(float(angle) for angle in self.angles))
        self._set(pitch=float(self.pitch), shift=float(self.shift))
        if len(self.size) != 2 or not np.isfinite([*self.angles, self.shift]).all():
            given = f"got {self.size}, {self.angles} and {self.shift}"
            raise ValueError(f"size is (height, width), angles and shift are finite, {given}")
        _positive(height=self.size[0], width=self.size[1], pitch=self.pitch)
        if abs(self.shift) < SMALLEST_SHIFT * self.pitch:
            self._set(shift=0.0)
        if not self.n_detectors:
            self._set(n_detectors=math.ceil((self._needed_width() + 2 * abs(self.shift)) / self.pitch - 1e-9))
        self._set(n_detectors=int(self.n_detectors))
        _positive(n_detectors=self.n_detectors)

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, int]:
        """(views, detectors) of a sinogram."""
        return len(self.angles), self.n_detectors

    @property
    def radius(self) -> float:
        """Half the diagonal of the image."""
        return math.hypot(*self.size) / 2

    @property
    def spacing(self) -> float:
        """Angle from one view to the next (median); an angle that is measured several times counts once."""
        angles = np.sort(np.mod(self.angles, self.full_arc))
        gaps = np.diff(angles, append=angles[0] + self.full_arc)
        return float(np.median(gaps[gaps > 1e-9]))

    @property
    def bins(self) -> NDArray[np.floating]:
        """Position of each bin's centre on the detector, (D,)."""
        return self.pitch * (np.arange(self.n_detectors, dtype=np.float64) - (self.n_detectors - 1) / 2) + self.shift

    @property
    def reach(self) -> float:
        """Distance from the detector's point 0 to its nearer end, 0 if it does not cover that point."""
        return max(self.n_detectors * self.pitch / 2 - abs(self.shift), 0.0)

    @property
    @abstractmethod
    def field_of_view(self) -> float:
        """Radius of the circle that every view sees as a whole."""

    @abstractmethod
    def _needed_width(self) -> float:
        """Width of a detector without shift that sees the whole image in every view."""

    def turned(self, angle: float) -> "Geometry":
        """Return the scanner with its views turned by -angle: it sees an image as this one sees the image turned by +angle."""
        return replace(self, angles=tuple(view - angle for view in self.angles))

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists that JSON holds, without a shift of 0; see `geometry_from_dict`."""
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if not self.shift:
            del fields["shift"]  # older files, and the names of kept matrices, have none
        return {"geometry": self.kind, **fields}


@dataclass(frozen=True)
class ParallelBeam(Geometry):
    """Parallel beam: bin s of the view at angle a integrates along x cos a + y sin a = s. Arguments: see `Geometry`.

    >>> ParallelBeam((256, 256), n_views=50).shape
    (50, 363)
    """

    kind: ClassVar[str] = "parallel"
    full_arc: ClassVar[float] = 180.0

    @property
    def field_of_view(self) -> float:
        """Radius of the circle that every view sees as a whole, to the nearer end of the detector."""
        return self.reach

    def _needed_width(self) -> float:
        return 2 * self.radius


@dataclass(frozen=True)
class FanBeam(Geometry):
    """Fan beam with a flat detector. At angle 0 the source is below the image and the detector above. See `Geometry`.

    Args:
        source_distance: from the source to the centre of rotation; the source is outside the image.
        detector_distance: from the centre of rotation to the detector, not negative.

    >>> FanBeam((256, 256), n_views=50, pitch=1.5, source_distance=512, detector_distance=256).shape
    (50, 388)
    """

    source_distance: float = field(kw_only=True)
    detector_distance: float = field(kw_only=True)

    kind: ClassVar[str] = "fan"
    full_arc: ClassVar[float] = 360.0

    def _needed_width(self) -> float:
        sine = self.radius / self.source_distance
        return 2 * self.focal_length * sine / math.sqrt(1 - sine * sine)

    def __post_init__(self, n_views: int | None, arc: float | None) -> None:
        """Check the distances, then the fields of every geometry."""
        self._set(source_distance=float(self.source_distance), detector_distance=float(self.detector_distance))
        if not self.source_distance > self.radius or not self.detector_distance >= 0:
            raise ValueError(
                f"the source must be farther from the centre than the corners ({self.radius:.1f} pixels) and the detector's "
                f"distance not negative, got {self.source_distance:g} and {self.detector_distance:g} pixels"
            )
        super().__post_init__(n_views, arc)

    @property
    def focal_length(self) -> float:
        """Distance from the source to the detector."""
        return self.source_distance + self.detector_distance

    @property
    def field_of_view(self) -> float:
        """Radius of the circle that every view sees as a whole: it touches the nearer of the outermost rays."""
        return self.source_distance * self.reach / math.hypot(self.reach, self.focal_length)


def geometry_from_dict(values: Mapping[str, Any]) -> ParallelBeam | FanBeam:
    """Make a geometry from a dictionary: the fields of its class, and "geometry": "parallel" or "fan".

    Raises:
        ValueError: the kind is missing or unknown, or a field is.

    >>> geometry_from_dict({"geometry": "parallel", "size": [8, 8], "n_views": 3}).n_detectors
    12
    """
    kinds: dict[str, type[ParallelBeam | FanBeam]] = {"parallel": ParallelBeam, "fan": FanBeam}
    if values.get("geometry") not in kinds:
        raise ValueError(f"geometry must be one of {', '.join(kinds)}, got {values.get('geometry')!r}")
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name != "geometry"
    }
    try:
        return kinds[values["geometry"]](**given)
    except TypeError as error:
        names = "size, angles or n_views and arc, n_detectors, pitch, shift; fan beam: source_distance, detector_distance"
        raise ValueError(f"CT geometry with {', '.join(given)}: {error}; known are {names}") from error


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive, got {value}")
