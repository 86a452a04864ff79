"""Open a file of sinograms, whatever its format, found by its content."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep.mri.fastmri_file import open_volume
from data_prep.run.manifest import PrepError, SkipError
from data_prep.sinogram.arrays import Table, format_of, matlab_variables, table
from data_prep.sinogram.beam import FULL_TURN, Beam
from data_prep.sinogram.geometry_file import Setup
from data_prep.sinogram.helsinki import helsinki_data, helsinki_scan
from data_prep.sinogram.scan import NO_FRAMES, Array, Raw, Scan

EXCHANGE = "exchange/data"
EXCHANGE_AXES = {"theta": "views", "y": "rows", "x": "bins"}
REPEAT = 0.9  # of the usual change from view to view: below it, the last view is at the first one's angle


def open_scan(paths: Sequence[Path], setup: Setup) -> Scan:
    """The scan in a file, or in several that are its views or rows.

    Args:
        paths: the files, in order.
        setup: what the geometry file says.

    Raises:
        SkipError: not a file of sinograms, or one that needs a geometry file.
        PrepError: the file is damaged, or its content does not fit.
    """
    path, kind = paths[0], format_of(paths[0])
    if kind == "mat" and (data := helsinki_data(matlab_variables(path))) is not None:
        return _overridden(helsinki_scan(data), setup)
    if kind == "hdf5" and setup.dataset is None and _is_exchange(path):
        return _exchange_scan(path, setup)
    if setup.kind is None:
        raise SkipError(f"{kind or 'unknown format'}: neither Helsinki data nor Data Exchange; an array needs --geometry")
    return _array_scan(paths, setup)


def _is_exchange(path: Path) -> bool:
    with open_volume(path) as file:
        return EXCHANGE in file


def _exchange_scan(path: Path, setup: Setup) -> Scan:
    """A scan in Data Exchange layout (De Carlo et al. 2014): parallel unless the setup says more."""
    with open_volume(path) as file:
        frames = {name: f"{EXCHANGE}_{name}" for name in ("white", "dark") if f"{EXCHANGE}_{name}" in file}
        words = str(file[EXCHANGE].attrs.get("axes", "theta:y:x")).split(":")
        theta = file.get("exchange/theta")
        radians = theta is not None and str(theta.attrs.get("units", "")).lower().startswith("rad")
    if sorted(words) != sorted(EXCHANGE_AXES):
        raise PrepError(f"axes {':'.join(words)[:40]} of {EXCHANGE}: expected theta, y and x")
    given = {
        "kind": setup.kind or "parallel",
        "dataset": EXCHANGE,
        "axes": [EXCHANGE_AXES[word] for word in words],
        "values": setup.values or "counts",
    }
    if theta is None and setup.arc is None and setup.angles is None:
        raise PrepError("no exchange/theta: give arc or angles in a geometry file")
    if setup.arc is None and setup.angles is None:
        angles = np.ravel(table(path, "exchange/theta").read(()))
        given["angles"] = np.rad2deg(angles).tolist() if radians else angles.tolist()
    for name, dataset in frames.items():
        if getattr(setup, name) is None and (name == "dark" or setup.air_bins is None):
            given[name] = dataset
    return _array_scan([path], Setup(**(vars(setup) | given)))


def _array_scan(paths: Sequence[Path], setup: Setup) -> Scan:
    stack = _Stack(paths, setup)
    angles, notes = _angles(stack, setup)
    return Scan(
        _beam(setup, angles, stack.bins), stack.rows, setup.values or "counts", stack.row, setup.row_height or math.nan, notes
    )


class _Stack:
    """The arrays of a scan as (views, rows, bins)."""

    def __init__(self, paths: Sequence[Path], setup: Setup) -> None:
        self.path, self.setup = paths[0], setup
        self.tables = [table(path, setup.dataset) for path in paths]
        shape, among = self.tables[0].shape, {"scans": "", "views": "views", "rows": "rows"}[setup.files]
        usual = [axis for axis in ("views", "rows", "bins") if axis != among]
        self.axes = list(setup.axes or (usual if len(shape) == len(usual) else ("views", "bins")))
        if len(shape) != len(self.axes) or among in self.axes:
            raise PrepError(f"array of shape {shape}: expected {', '.join(self.axes)}; say which in `axes` of the geometry")
        if any(one.shape != shape for one in self.tables):
            raise PrepError("its files hold arrays of several shapes")
        size = {"rows": 1} | dict(zip(self.axes, shape, strict=True)) | ({among: len(paths)} if among else {})
        self.views, self.rows, self.bins = size["views"], size["rows"], size["bins"]
        if self.views < 2 or self.bins < 2:
            raise PrepError(f"{self.views} views of {self.bins} bins: expected several")

    def values(self, row: int) -> Array:
        """One row, (V, D)."""

        def part(of: Table) -> Array:
            x = of.read(tuple(row if axis == "rows" else slice(None) for axis in self.axes))
            left = [axis for axis in self.axes if axis != "rows"]
            return x.T if left == ["bins", "views"] else x

        if self.setup.files == "views":
            return np.stack([part(one) for one in self.tables])
        return part(self.tables[row if self.setup.files == "rows" else 0])

    def row(self, row: int) -> Raw:
        """One row, with its white and dark fields."""
        values = self.values(row)
        white, dark = self._frames("white", row), self._frames("dark", row)
        n = self.setup.air_bins
        if n is not None:
            if 2 * n >= self.bins:
                raise PrepError(f"air_bins {n}: the detector has {self.bins} bins")
            white = np.full((1, self.bins), np.median(np.concatenate([values[:, :n], values[:, -n:]], 1)))
        return Raw(values, white, dark)

    def _frames(self, name: str, row: int) -> Array:
        """White or dark frames of a row, (n, D)."""
        given = getattr(self.setup, name)
        if given is None:
            return NO_FRAMES
        if not isinstance(given, str):
            return np.full((1, self.bins), float(given))
        found = named(self.path, given)
        shape = found.shape
        if len(shape) == 3 and shape[1] == self.rows and shape[2] == self.bins:
            return found.read((slice(None), row))
        if shape == (self.rows, self.bins):
            return found.read((slice(row, row + 1),))
        if shape[-1:] == (self.bins,) and (len(shape) == 1 or (len(shape) == 2 and self.rows == 1)):
            return found.read(()).reshape(-1, self.bins)
        raise PrepError(f"{name} of shape {shape}: expected (frames, {self.rows} rows, {self.bins} bins)")


def named(path: Path, name: str) -> Table:
    """The array called `name`: a dataset of the file itself, or a file beside it.

    Raises:
        PrepError: there is neither.
    """
    beside = path.parent / name
    if beside.is_file():
        return table(beside)
    if format_of(path) in ("hdf5", "mat"):
        return table(path, name)
    raise PrepError(f"no file {name!r} beside the data")


def _angles(stack: _Stack, setup: Setup) -> tuple[Array, tuple[str, ...]]:
    """Angle of each view before direction and start, and notes."""
    if setup.arc is not None:
        both = setup.arc >= FULL_TURN - 1e-6 and _last_repeats_first(stack)
        steps = stack.views - both
        notes = ("the last view repeats the first: both ends of the circle are there",) if both else ()
        return np.arange(stack.views) * setup.arc / steps, notes
    if setup.angles is None:
        raise PrepError("geometry: give arc or angles")
    if isinstance(setup.angles, str):
        beside = stack.path.parent / setup.angles
        text = beside.is_file() and not format_of(beside)
        try:
            angles = np.loadtxt(beside, ndmin=1) if text else named(stack.path, setup.angles).read(())
        except ValueError as error:
            raise PrepError(f"angles {setup.angles!r}: not a list of numbers") from error
    else:
        angles = np.asarray(setup.angles, float)
    if angles.size != stack.views:
        raise PrepError(f"{angles.size} angles for {stack.views} views")
    return np.ravel(angles), ()


def _last_repeats_first(stack: _Stack) -> bool:
    """Whether the last view differs less from the first than neighbouring views do."""
    if stack.views < 8:
        return False
    p = stack.values(stack.rows // 2)
    step = (np.abs(p[1] - p[0]).mean() + np.abs(p[-1] - p[-2]).mean()) / 2
    return bool(np.abs(p[-1] - p[0]).mean() < REPEAT * step)


def _beam(setup: Setup, angles: Array, bins: int, base: Beam | None = None) -> Beam:
    """The scanner of a setup; what it does not say is taken from `base`."""
    lengths = ("bin_width", "centre", "source_origin", "source_detector", "mirrored", "kind")
    kept = {} if base is None else {name: getattr(base, name) for name in lengths}
    said = {name: getattr(setup, name) for name in lengths if getattr(setup, name) is not None}
    turned = (-angles if setup.direction == "clockwise" else angles) + setup.start
    return Beam(**({"kind": "parallel"} | kept | said), angles=tuple(turned.tolist()), bins=bins)


def _overridden(scan: Scan, setup: Setup) -> Scan:
    """A scan whose file says everything, with what the setup says in its place."""
    from dataclasses import replace

    angles = np.asarray(scan.beam.angles if setup.angles is None or isinstance(setup.angles, str) else setup.angles)
    if len(angles) != len(scan.beam.angles):
        raise PrepError(f"{len(angles)} angles for {len(scan.beam.angles)} views")
    return replace(scan, beam=_beam(setup, angles, scan.beam.bins, scan.beam))
