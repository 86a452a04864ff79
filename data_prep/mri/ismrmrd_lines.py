"""Assign the acquisitions of an ISMRMRD file to slices and k-space lines, from their heads and the header alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_prep.mri.partitions import check_counted, slices_of
from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_prep.mri.ismrmrd_header import Encoding

SKIPPED = (
    "NAVIGATION_DATA",
    "PHASECORR_DATA",
    "HPFEEDBACK_DATA",
    "DUMMYSCAN_DATA",
    "RTFEEDBACK_DATA",
    "SURFACECOILCORRECTIONSCAN_DATA",
    "PHASE_STABILIZATION_REFERENCE",
    "PHASE_STABILIZATION",
)
ONE_IMAGE = ("contrast", "phase", "repetition", "set")  # counters that must have a single value
LARGEST = 2**16  # counters of the format have 16 bits
ALIKE = ("number_of_samples", "active_channels", "discard_pre", "discard_post", "center_sample", "encoding_space_ref")
OTHER_SCAN = ("separate", "external")  # calibration of another contrast: not lines of this image


class Readout(NamedTuple):
    """What all readouts of the images have in common.

    Attributes:
        recorded: number of samples.
        samples: first and one past the last sample that is kept.
        rows: first and one past the last row of the recorded grid that they fill.
        coils: number of receiver channels.
    """

    recorded: int
    samples: tuple[int, int]
    rows: tuple[int, int]
    coils: int


@dataclass(frozen=True)
class Lines:
    """The readouts that form the images, one entry each, and the grid that they fill.

    Attributes:
        index: (n,) row of the file's acquisitions.
        slice: (n,) slice counter; in 3-D the partition, with k = 0 at index n//2.
        column: (n,) column of the recorded grid.
        reverse: (n,) bool, acquired from the last row to the first.
        size: (H, W) of the recorded grid.
        readout: what they have in common.
        averages: smallest and largest number of readouts per line.
        notes: what a user should know.
    """

    index: NDArray[np.int64]
    slice: NDArray[np.int64]
    column: NDArray[np.int64]
    reverse: NDArray[np.bool_]
    size: tuple[int, int]
    readout: Readout
    averages: tuple[int, int]
    notes: tuple[str, ...]

    def columns(self, number: int) -> NDArray[np.bool_]:
        """(W,) which columns of the slice with this counter were acquired."""
        acquired = np.zeros(self.size[1], bool)
        acquired[self.column[self.slice == number]] = True
        return acquired


def flagged(heads: NDArray, names: Iterable[str]) -> NDArray[np.bool_]:
    """(n,) bool: whether any of the flags ``ACQ_IS_...`` is set."""
    from ismrmrd import constants

    bits = sum(1 << (getattr(constants, f"ACQ_IS_{name}") - 1) for name in names)
    return np.asarray(heads["flags"] & np.uint64(bits) != 0)


def encoding_space(heads: NDArray) -> int:
    """Number of the header's encoding space that the imaging readouts refer to.

    Raises:
        PrepError: there are no imaging readouts, or they refer to several encoding spaces.
    """
    imaging, _ = _kinds(heads)
    return _single(heads[imaging], "encoding_space_ref")


def plan_lines(heads: NDArray, encoding: Encoding) -> Lines:
    """Choose the imaging readouts and place each on the grid; k = 0 is at index n//2 of both axes.

    Noise, navigator, phase-correction, feedback and dummy readouts are left out. A calibration line of the same scan counts as
    measured if imaging skipped that line and it fits on the grid.

    Args:
        heads: (acquisitions,) heads of all acquisitions.
        encoding: the header's encoding space of the imaging readouts.

    Raises:
        PrepError: the scan is not Cartesian with one image per slice, or one slab; or its counters contradict each other.
    """
    _check_trajectory(encoding)
    imaging, calibration = _kinds(heads)
    _check_one_image(heads[imaging], encoding)
    height, width = _grid(encoding)
    readout = _readout(heads[imaging], height)
    _check_columns(_columns(heads[imaging], encoding), encoding)
    added, calibration_note = _calibration(heads, imaging, calibration, encoding)
    index = np.concatenate([np.flatnonzero(imaging), added])
    column = _columns(heads[index], encoding)
    slices = slices_of(heads[index], encoding)
    reverse = flagged(heads[index], ["REVERSE"])
    averages = _averages(slices, column, heads["idx"]["average"][index])
    _check_slices(slices, encoding)
    notes = (calibration_note, _direction_note(reverse), _average_note(averages), _row_note(readout, height))
    return Lines(index, slices, column, reverse, (height, width), readout, averages, tuple(note for note in notes if note))


def _direction_note(reverse: NDArray[np.bool_]) -> str:
    mixed = reverse.any() and not reverse.all()
    return "readouts of both directions, without a phase correction between them" if mixed else ""


def _average_note(averages: tuple[int, int]) -> str:
    low, high = averages
    return f"lines are means of {low} to {high} readouts: the noise level differs between lines" if low != high else ""


def _row_note(readout: Readout, height: int) -> str:
    start, stop = readout.rows
    filled = stop - start
    return f"asymmetric echo: {height - filled} of {height} rows were not recorded and are zero" if filled < height else ""


def _kinds(heads: NDArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(n,) bool: imaging readouts; (n,) bool: readouts for calibration only."""
    usable = ~flagged(heads, (*SKIPPED, "NOISE_MEASUREMENT"))
    only = flagged(heads, ["PARALLEL_CALIBRATION"]) & ~flagged(heads, ["PARALLEL_CALIBRATION_AND_IMAGING"])
    if not (usable & ~only).any():
        raise PrepError(f"none of {len(heads)} acquisitions is an imaging readout: only noise, calibration or navigators")
    return usable & ~only, usable & only


def _check_trajectory(encoding: Encoding) -> None:
    if encoding.trajectory != "cartesian":
        raise PrepError(f"trajectory {encoding.trajectory or 'not given in the header'!r}, expected 'cartesian'")


def _grid(encoding: Encoding) -> tuple[int, int]:
    if encoding.recorded is None:
        raise PrepError("the header has no encodedSpace/matrixSize, so the grid is unknown")
    if max(encoding.recorded) > LARGEST:
        raise PrepError(f"encodedSpace/matrixSize {encoding.recorded}: more than the {LARGEST} that acquisitions can count")
    return encoding.recorded


def _values(values: NDArray) -> str:
    distinct = np.unique(values).tolist()
    return ", ".join(map(str, distinct[:6])) + (f", ... ({len(distinct)} values)" if len(distinct) > 6 else "")


def _single(heads: NDArray, name: str) -> int:
    values = np.unique(heads[name])
    if len(values) > 1:
        raise PrepError(f"imaging readouts differ in {name}: {_values(values)}; expected one value")
    return int(values[0])


def _check_one_image(heads: NDArray, encoding: Encoding) -> None:
    steps, slabs = heads["idx"]["kspace_encode_step_2"], heads["idx"]["slice"]
    if encoding.partitions == 1 and (steps > 0).any():
        raise PrepError(f"kspace_encode_step_2 takes {_values(steps)}, but the header announces no partitions")
    if encoding.partitions > 1 and len(np.unique(slabs)) > 1:
        raise PrepError(f"3-D encoding of several slabs (slice counter {_values(slabs)}), expected one: split the file")
    varying = [f"{name} ({_values(heads['idx'][name])})" for name in ONE_IMAGE if len(np.unique(heads["idx"][name])) > 1]
    if varying:
        raise PrepError(f"several images per slice: {'; '.join(varying)}; expected one value of each: split the file")


def _readout(heads: NDArray, height: int) -> Readout:
    recorded, pre, post = (_single(heads, name) for name in ("number_of_samples", "discard_pre", "discard_post"))
    coils = _single(heads, "active_channels")
    if recorded <= pre + post or coils == 0:
        raise PrepError(f"readouts of {recorded} samples ({pre} + {post} to discard) and {coils} channels: no samples")
    samples = (pre, recorded - post)
    center = _center(heads, recorded, samples)
    rows = (height // 2 - center + samples[0], height // 2 - center + samples[1])
    about = f"readouts of {recorded} samples with k = 0 at sample {center}"
    if rows[0] < 0 or rows[1] > height:
        raise PrepError(f"{about} do not fit on the {height} encoded rows of the header")
    if max(height // 2 - rows[0], rows[1] - height // 2) < 0.9 * (height // 2):
        raise PrepError(
            f"{about} reach neither end of the {height} encoded rows of the header: "
            "either oversampling was removed without updating the header, or their resolution differs from it"
        )
    return Readout(recorded, samples, rows, coils)


def _center(heads: NDArray, recorded: int, samples: tuple[int, int]) -> int:
    """Index of the sample at k = 0, for lines in order of increasing row."""
    reverse = flagged(heads, ["REVERSE"])
    if reverse.any():
        # stored in order of time; all readers flip the whole line, but they disagree on what center_sample then means
        central = np.isin(heads["center_sample"], [recorded // 2, (recorded - 1) // 2]).all()
        if not central or samples[0] != recorded - samples[1]:
            raise PrepError("reversed readouts with an asymmetric echo: which of their samples is k = 0 is not defined")
        return recorded // 2
    return _single(heads, "center_sample")


def _columns(heads: NDArray, encoding: Encoding) -> NDArray[np.int64]:
    """Column of each line: the header's central encoding step is at column width // 2."""
    width = _grid(encoding)[1]
    step = heads["idx"]["kspace_encode_step_1"].astype(np.int64)
    return np.asarray(step if encoding.center is None else step - encoding.center + width // 2)


def _limits(encoding: Encoding) -> tuple[int, int]:
    """First and one past the last column of the grid within the header's encoding limits."""
    width = _grid(encoding)[1]
    first, stop = encoding.measured or (0, width)
    return first, min(stop, width)


def _check_columns(columns: NDArray[np.int64], encoding: Encoding) -> None:
    low, high, (first, stop) = columns.min(), columns.max(), _limits(encoding)
    if encoding.center is None and (low, high) != (first, stop - 1):
        raise PrepError(
            f"encoding steps {low} to {high} of {stop} columns and no encoding limits: which step is k = 0 is unknown"
        )
    if low < first or high >= stop:
        raise PrepError(f"lines on the columns {low} to {high}, outside {first} to {stop - 1} of the header's encoding limits")


def _calibration(
    heads: NDArray, imaging: NDArray[np.bool_], calibration: NDArray[np.bool_], encoding: Encoding
) -> tuple[NDArray[np.int64], str]:
    """Indices of the calibration lines to use where imaging skipped a line, and a note on the others."""
    candidates = np.flatnonzero(calibration)
    if encoding.calibration in OTHER_SCAN and len(candidates):
        return candidates[:0], f"{len(candidates)} lines of {encoding.calibration} calibration are left out"
    fits = _fits(heads[candidates], heads[imaging], encoding)
    candidates, left_out = candidates[fits], int((~fits).sum())
    taken = set(_line_keys(heads[imaging]))
    new = np.array([key not in taken for key in _line_keys(heads[candidates])], bool)
    return candidates[new], f"{left_out} calibration lines that do not fit on the grid are left out" if left_out else ""


def _line_keys(heads: NDArray) -> list[tuple[int, ...]]:
    """Slice and encoding steps of each readout."""
    names = ("slice", "kspace_encode_step_1", "kspace_encode_step_2")
    return list(zip(*(heads["idx"][name].tolist() for name in names), strict=True))


def _fits(own: NDArray, imaging: NDArray, encoding: Encoding) -> NDArray[np.bool_]:
    """(n,) bool: calibration lines that match the imaging readouts and lie on the grid."""
    columns, (first, stop) = _columns(own, encoding), _limits(encoding)
    fits = (columns >= first) & (columns < stop) & np.isin(slices_of(own, encoding), slices_of(imaging, encoding))
    for name in ALIKE:
        fits &= own[name] == imaging[0][name]
    for name in (*ONE_IMAGE, "slice" if encoding.partitions > 1 else "kspace_encode_step_2"):
        fits &= own["idx"][name] == imaging[0]["idx"][name]
    return fits & (flagged(own, ["REVERSE"]) == flagged(imaging[:1], ["REVERSE"])[0])


def _averages(slices: NDArray[np.int64], column: NDArray[np.int64], average: NDArray) -> tuple[int, int]:
    """Smallest and largest number of readouts per line."""
    keys, count = np.unique(np.stack([slices, column, average.astype(np.int64)]), axis=1, return_counts=True)
    if (count > 1).any():
        where = keys[:, int(np.argmax(count > 1))].tolist()
        raise PrepError(
            f"slice {where[0]} has the line on column {where[1]} {count.max()} times with the same counters, "
            f"expected once (average {where[2]})"
        )
    per_line = np.unique(keys[:2], axis=1, return_counts=True)[1]
    return int(per_line.min()), int(per_line.max())


def _check_slices(slices: NDArray[np.int64], encoding: Encoding) -> None:
    """Raise PrepError if a slice has no readouts: one that the header announces, or a gap in the counters."""
    if encoding.partitions > 1:
        check_counted(slices, encoding)
        return
    numbers = np.unique(slices)
    expected = max(encoding.slices or 0, int(numbers[-1]) + 1)
    missing = np.setdiff1d(np.arange(min(expected, LARGEST)), numbers)
    if len(missing):
        raise PrepError(f"no readouts of slice {_values(missing)}; expected {expected} slices: the scan is not complete")
