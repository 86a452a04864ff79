"""What all slices of an archive share: the scanner, the mask of usable rays, and the scale of the images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_prep.run.manifest import LOST, Outcome, PrepError
from data_prep.run.runner import PrepRun
from data_prep.sinogram.beam import NAN, Acquisition, Beam, even_views, merged_bins, with_centre
from data_prep.sinogram.centre import estimated_centre, other_hand_fits
from data_prep.sinogram.corrections import Row, corrected_row, filled_bins
from data_prep.sinogram.files import open_scan
from data_prep.sinogram.noise import noise_of_counts, noise_of_views
from data_prep.sinogram.options import SinogramOptions
from data_prep.sinogram.scan import Scan
from es_medical.data import SliceHeader
from es_medical.data.schema import MEASURED

if TYPE_CHECKING:
    from es_medical.physics.ct import CT

MM_PER_CM = 10
SAMPLED = 8  # slices that decide the scale
HALF_A_BIN = 0.5
ENOUGH = 0.5  # share of rays that all slices must have
CENTIMETRES = "1/cm"
WRONG_HAND = (
    "WARNING: rays measured from both sides agree much better when the views go the other way round: check `direction` and "
    "`mirrored` of the geometry; images are blurred if they are wrong"
)
OTHER_CENTRE = "its centre of rotation is more than half a bin off the usual one: prepare it on its own"
OTHER_SCANNER = "another scanner than that of most files: prepare it on its own"
BRIGHT = 0.995  # quantile of an image that is stored as about 1


class Item(NamedTuple):
    """One slice to make: its file (or files), their digest, its row and its split."""

    paths: tuple[Path, ...]
    digest: str
    row: int
    split: str


class Corrected(NamedTuple):
    """A row as it is measured: line integrals and usable rays of the acquisition, their noise, and the distance of rows."""

    p: NDArray[np.floating]
    usable: NDArray[np.bool_]
    sigma: float
    whole: Row
    slice_spacing: float


@dataclass(frozen=True)
class Scanner:
    """The acquisition that all slices share.

    Attributes:
        acquisition: views and bins that are taken.
        size: rows and columns of the image.
        pixel: width of a pixel in mm (in bins where their width is unknown).
        mask: usable rays (V, D), the same for all slices.
        scale: attenuation in 1/cm (1/bin) that is stored as 1.
        with_image: whether a reference is stored.
        water: attenuation of water in 1/cm, for Hounsfield units; None keeps the attenuation.
    """

    acquisition: Acquisition
    size: int
    pixel: float
    mask: NDArray[np.bool_]
    scale: float = 1.0
    with_image: bool = False
    water: float | None = None

    @cached_property
    def physics(self) -> CT:
        """The operator A = M L / |L|."""
        from es_medical.physics.ct import CT

        return CT(self.acquisition.geometry(self.size, self.pixel), torch.from_numpy(self.mask))

    def scaled(self, scale: float) -> Scanner:
        """The same scanner with another scale; they share the operator, which takes long to build for large images."""
        other = replace(self, scale=scale)
        vars(other)["physics"] = self.physics  # a cached property
        return other

    @property
    def unit(self) -> str:
        """Unit of the attenuation."""
        return "1/bin" if math.isnan(self.acquisition.beam.bin_width) else CENTIMETRES

    @property
    def length(self) -> float:
        """Width of a pixel in the unit of length of the attenuation."""
        return self.pixel / (1 if self.unit == "1/bin" else MM_PER_CM)

    @property
    def spacing(self) -> tuple[float, float]:
        """Row and column spacing in mm, NaN where unknown."""
        return (math.nan, math.nan) if self.unit == "1/bin" else (self.pixel, self.pixel)

    @property
    def units(self) -> tuple[float, float]:
        """(scale, offset): raw = stored * scale + offset, in 1/cm (1/bin) or Hounsfield units."""
        return (self.scale, 0.0) if self.water is None else (1000 * self.scale / self.water, -1000.0)

    @property
    def divisor(self) -> float:
        """Line integral / stored value."""
        return self.length * self.scale * float(self.physics.norm)

    def header(self) -> SliceHeader:
        """The header of the file."""
        measured = {
            "unit": self.unit if self.water is None else "HU",
            "water": self.water,
            "image": "reference" if self.with_image else None,
            "scale": self.scale,
            "attenuation": self.unit,
            "pixel": self.pixel,
        }
        return SliceHeader(
            sigma=math.nan,
            mask=torch.from_numpy(self.mask),
            modality="CT",
            operator=self.physics.geometry.to_dict() | {MEASURED: measured},
        )

    def stored(self, p: NDArray[np.floating], physics: CT) -> Tensor:
        """Line integrals as y = A x for the stored x: (1, V, D), zero where nothing is measured."""
        y = torch.from_numpy(np.ascontiguousarray(p))[None] / (self.length * self.scale * float(physics.norm))
        return torch.where(physics.mask[0] > 0, y, 0).float()

    def unexplained(self, y: Tensor) -> float:
        """Level of what no image explains of a stored sinogram (1, V, D); see `residual_level`."""
        from es_medical.physics.estimates.residual import residual_level

        return float(residual_level(self.physics, y[None], self.physics._diagonal, torch.Generator().manual_seed(0)))


def read_row(item: Item, acquisition: Acquisition, options: SinogramOptions) -> Corrected:
    """Read and correct the row of an item, and take the acquisition's views and bins of it."""
    scan = open_scan(item.paths, options.setup)
    whole = corrected_row(scan, item.row, options)
    usable = acquisition.usable(whole.usable)
    if whole.variance is not None:
        sigma = noise_of_counts(acquisition.taken(whole.variance), usable, acquisition.merge)
    else:
        every = acquisition._replace(views=tuple(np.flatnonzero(~acquisition.beam.repeated()).tolist()))
        sigma = noise_of_views(every.taken(whole.p), every.usable(whole.usable))
    return Corrected(acquisition.taken(whole.p), usable, sigma, whole, scan.row_height / scan.beam.magnification)


def acquisition_of(beam: Beam, options: SinogramOptions) -> tuple[Acquisition, float, list[str]]:
    """The acquisition of a scanner, the width of its pixels, and notes."""
    pixel = options.pixel or options.setup.pixel or beam.field / options.size
    views, notes = even_views(beam, options.views)
    merge = options.merge or merged_bins(beam, pixel)
    if merge > beam.bins:
        raise PrepError(f"--merge {merge}: the detector has {beam.bins} bins")
    return Acquisition(beam, views, merge), pixel, notes


def stored_scale(scanner: Scanner, rows: Sequence[Corrected]) -> float:
    """The attenuation that is stored as 1: the median over slices of the brightest part of a smooth image, to two digits.

    Args:
        scanner: with a scale of 1.
        rows: slices of the training files.
    """
    physics = scanner.physics
    y = torch.stack([scanner.stored(row.p, physics) for row in rows])
    brightest = [float(image.quantile(BRIGHT)) for image in physics.estimate(y)]
    found = float(np.median(brightest))
    if not 0 < found < math.inf:
        raise PrepError(f"images of attenuation {found:g}: nothing is in the field; give --scale if this is right")
    return float(f"{found:.2g}")


class File(NamedTuple):
    """A file of the archive: its name, its content and the slices to make of it."""

    name: str
    scan: Scan
    items: Sequence[Item]


def shared_scanner(prep: PrepRun[SinogramOptions], files: Sequence[File]) -> tuple[Scanner, list[str], list[Outcome]]:
    """The scanner of most files with its mask and scale, notes, and outcomes of the files that were not measured by it.

    Every slice is read once.

    Raises:
        PrepError: no centre of rotation, or too few usable rays.
    """
    options = prep.options
    beam, notes, deviating = shared_beam(prep, files)
    acquisition, pixel, more = acquisition_of(beam, options)
    more += _hand_notes(beam, files[0].items[0], options)
    left_out = {outcome.name for outcome in deviating}
    items = [item for file in files if file.name not in left_out for item in file.items]

    mask = np.ones(acquisition.geometry(options.size, pixel).shape, bool)
    for row in prep.mapped(partial(_or_failure, acquisition=acquisition, options=options), items, "rays", _lost):
        mask &= row.usable if isinstance(row, Corrected) else True
    if mask.mean() < ENOUGH:
        raise PrepError(f"only {mask.mean():.0%} of the rays are usable in all slices: see --outliers, --floor and --slices")
    scanner = Scanner(acquisition, options.size, pixel, mask, options.scale or 1.0, options.reference, options.water)
    if options.water is not None and scanner.unit != CENTIMETRES:
        raise PrepError("--water needs lengths in mm: give bin_width in the geometry")
    if options.scale is None:
        known = [item for item in items if item.split == "train"] or items
        some = [known[k] for k in sorted({round(k) for k in np.linspace(0, len(known) - 1, SAMPLED)})]
        found = [row for item in some if isinstance(row := _or_failure(item, acquisition, options), Corrected)]
        scanner = scanner.scaled(stored_scale(scanner, found)) if found else scanner
    return scanner, [*notes, *more], deviating


def shared_beam(prep: PrepRun[SinogramOptions], files: Sequence[File]) -> tuple[Beam, list[str], list[Outcome]]:
    """The scanner of most files with its centre of rotation, notes, and outcomes of files of another scanner or centre."""
    kinds = Counter(repr(with_centre(file.scan.beam, NAN)) for file in files)  # in text, NaN equals NaN
    usual = max(kinds, key=lambda kind: (kinds[kind], kind))
    same = [file for file in files if repr(with_centre(file.scan.beam, NAN)) == usual]
    deviating = [Outcome(file.name, "failed", OTHER_SCANNER) for file in files if file not in same]
    beam, given = same[0].scan.beam, prep.options.centre
    if given not in (None, "auto"):
        return with_centre(beam, float(given)), [], deviating
    centres: list[float | PrepError]
    if given is None and not any(math.isnan(file.scan.beam.centre) for file in same):
        how, centres = "given", [file.scan.beam.centre for file in same]
    else:
        middle = [file.items[len(file.items) // 2] for file in same]
        how, centres = (
            "estimated",
            list(prep.mapped(partial(_centre, options=prep.options), middle, "centres", _lost)),
        )
    known = [one for one in centres if not isinstance(one, PrepError)]
    if not known:
        raise next(one for one in centres if isinstance(one, PrepError))
    centre = float(np.median(known))
    for file, one in zip(same, centres, strict=True):
        if isinstance(one, PrepError) or abs(one - centre) > HALF_A_BIN:
            deviating.append(Outcome(file.name, "failed", str(one) if isinstance(one, PrepError) else OTHER_CENTRE))
    spread = f", {min(known):.2f} to {max(known):.2f} in single files" if len(known) > 1 else ""
    return with_centre(beam, centre), [f"centre of rotation {how}: bin {centre:.2f}{spread}"], deviating


def _hand_notes(beam: Beam, item: Item, options: SinogramOptions) -> list[str]:
    """A warning if the rays of a fan say that its views go the other way round."""
    try:
        row = corrected_row(open_scan(item.paths, options.setup), item.row, options)
    except PrepError:
        return []
    return [WRONG_HAND] if beam.bins == row.p.shape[1] and other_hand_fits(beam, filled_bins(row)) else []


def _centre(item: Item, options: SinogramOptions) -> float | PrepError:
    try:
        scan = open_scan(item.paths, options.setup)
        return estimated_centre(scan.beam, filled_bins(corrected_row(scan, item.row, options)))
    except PrepError as error:
        return error


def _lost(_: Item) -> PrepError:
    return PrepError(LOST)


def _or_failure(item: Item, acquisition: Acquisition, options: SinogramOptions) -> Corrected | PrepError:
    """The corrected row, or why there is none, which is said when the slice is made."""
    try:
        return read_row(item, acquisition, options)
    except PrepError as error:
        return error
