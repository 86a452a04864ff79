"""Find out whether k-space was fully sampled, from where it is exactly zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Limits = tuple[int, int] | None  # first and one past the last encoded column, None where unknown
TOLERATED = 0.25  # share of a side that may be padding (both edges together), and of the samples between that may be empty

ONE_SIDED = 1 / 16  # share of the side by which one half of k-space may be shorter without being partial Fourier
OFF_CENTER = 32  # the largest sample is expected within 1/32 of the side of zero frequency
CLEAR = 0.5  # of the largest sample: below it, no sample near zero frequency can be its own


class Span(NamedTuple):
    """First and one past the last row or column that counts as measured."""

    start: int
    stop: int


class Extent(NamedTuple):
    """The measured rows and columns of a slice."""

    rows: Span
    columns: Span


def check_fully_sampled(slices: Iterable[NDArray], limits: Limits) -> str:
    """Raise PrepError if k-space was undersampled, no matter what its file says; slices that are zero everywhere are skipped.

    In each slice, no row or column between the first and the last measured one may be empty, nor any column within the
    encoding limits, nor more than a quarter of the samples in that rectangle. Empty edges count as padding: columns outside
    the limits; rows, and columns without limits, up to a quarter of the side (more would be k-space of low resolution). All
    slices must have the same measured rows and columns.

    Args:
        slices: k-space of each slice, (H, W) or (coils, H, W).
        limits: first and one past the last encoded column, None where unknown.

    Returns:
        a note on what was taken as padding only because it is empty, or an empty string.

    Raises:
        PrepError: a rule is broken, or every slice is zero.

    >>> check_fully_sampled([np.array([[1, 1, 1, 1, 0]])], None)
    '1 empty edge columns taken as padding'
    """
    first: tuple[int, Extent] | None = None
    size = (0, 0)
    for i, k in enumerate(slices):
        size = k.shape[-2:]
        filled = (k != 0).reshape(-1, *size).any(0)  # (H, W)
        if not filled.any():
            continue
        extent = _rectangle(filled, limits, i, _span)
        first = first or (i, extent)
        _check_same(extent, i, first[1], first[0])
    if first is None:
        raise PrepError("kspace is zero everywhere")
    return _padding(first[1], size, limits is not None)


def encoding_doubts(k: NDArray, extent: Extent) -> Iterator[str]:
    """Say where a slice was measured on one side of zero frequency alone, and where zero frequency may not be at index n//2.

    A scan's largest sample is a few samples from zero frequency; phase in the image, or one echo of many, moves it.

    Args:
        k: k-space, (H, W) or (coils, H, W).
        extent: its measured rows and columns.

    >>> list(encoding_doubts(np.eye(32)[:, ::-1] + 9 * np.eye(32), Extent(Span(0, 32), Span(8, 32))))
    ['partial Fourier: columns 8 to 31 of 32, k = 0 at 16; the others count as not measured, not as zero']
    """
    size = k.shape[-2:]
    for axis, n, span in zip(Extent._fields, size, extent, strict=True):
        before, after = n // 2 - span.start, span.stop - 1 - n // 2
        if abs(before - after) > max(2, ONE_SIDED * n):
            kind = "partial Fourier" if axis == "columns" else "asymmetric echo"
            found = f"{axis} {span.start} to {span.stop - 1} of {n}, k = 0 at {n // 2}"
            yield f"{kind}: {found}; the others count as not measured, not as zero"
    magnitude = np.sqrt((np.abs(k.astype(np.complex128)) ** 2).reshape(-1, *size).sum(0))
    margins = [max(3, n // OFF_CENTER) for n in size]
    near = [slice(max(n // 2 - margin, 0), n // 2 + margin + 1) for n, margin in zip(size, margins, strict=True)]
    if magnitude[near[0], near[1]].max() < CLEAR * magnitude.max():
        row, column = np.unravel_index(int(magnitude.argmax()), size)
        middle = f"expected at row {size[0] // 2}, column {size[1] // 2}"
        yield f"is k-space centred? its largest sample is at row {row}, column {column}, {middle}"


def measured_extent(k: NDArray, limits: Limits, mask: NDArray | None, index: int) -> Extent:
    """The measured rows and columns of one slice, after a check that its zeros agree with header and mask.

    Without a mask, or with one that leaves nothing out, no row or column between the first and the last measured one may be
    empty. Empty edges count as not measured, even within the header's limits; but if more than a quarter of the side is empty
    there within the limits, the scan is undersampled. With a mask, its lines must hold samples and the others none; lines
    without samples at the edges are padding, even if the mask contains them.

    Args:
        k: k-space, (H, W) or (coils, H, W).
        limits: first and one past the last encoded column, None where unknown.
        mask: (W,) measured columns, or None.
        index: of the slice, for messages.

    Raises:
        PrepError: the slice is zero everywhere, undersampled, or does not fit the mask.

    >>> measured_extent(np.array([[0, 1, 1, 1, 1, 0]]), (0, 5), None, 0).columns
    Span(start=1, stop=5)
    >>> measured_extent(np.array([[1, 0, 1, 0]]), (0, 3), np.array([1, 0, 1, 0]), 0).columns
    Span(start=0, stop=3)
    """
    coils = k.reshape(-1, *k.shape[-2:])
    filled = np.ones(coils.shape[1:], bool) if coils[0].all() else (coils != 0).any(0)  # (H, W)
    if not filled.any():
        raise PrepError(f"kspace slice {index} is zero everywhere")
    if mask is not None:
        acquired, columns = np.asarray(mask, bool), np.asarray(filled.any(0))
        encoded = _encoded_columns(limits, columns, acquired)
        if not bool(acquired[encoded.start : encoded.stop].all()) or bool((columns & ~acquired).any()):
            return _masked_extent(filled, encoded, acquired, index)
    return _rectangle(filled, limits, index, _occupied)


def _rectangle(filled: NDArray, limits: Limits, index: int, span: Callable[[NDArray, Limits, str, int], Span]) -> Extent:
    """Measured rows and columns of a slice (H, W), from `span` of each axis; at least 3/4 of the samples inside must exist."""
    rows = span(np.asarray(filled.any(1)), None, "rows", index)
    columns = span(np.asarray(filled.any(0)), limits, "columns", index)
    inside = filled[rows.start : rows.stop, columns.start : columns.stop]
    empty = inside.size - np.count_nonzero(inside)
    if empty > TOLERATED * inside.size:
        raise _undersampled(index, f"{empty} of {inside.size} encoded samples are empty, at most a quarter expected")
    return Extent(rows, columns)


def _without_gaps(filled: NDArray, limits: Limits, axis: str, index: int) -> Span:
    """From the first to the last row or column that is not empty or is within the limits; empty ones between are an error."""
    occupied = filled.nonzero()[0]
    start, stop = int(occupied[0]), int(occupied[-1]) + 1
    if limits is not None:
        start, stop = min(start, limits[0]), max(stop, min(limits[1], len(filled)))
    gaps = stop - start - len(occupied)
    if gaps:
        raise _undersampled(index, f"{gaps} of {stop - start} encoded {axis} are empty")
    return Span(start, stop)


def _occupied(filled: NDArray, limits: Limits, axis: str, index: int) -> Span:
    """From the first to the last non-empty row or column; within the limits up to a quarter of the side may be empty."""
    start, stop = _without_gaps(filled, None, axis, index)
    first, last = limits or (0, len(filled))
    unexplained = max(start - first, 0) + max(last - stop, 0)
    if unexplained > TOLERATED * len(filled):
        raise _undersampled(
            index, f"{unexplained} encoded {axis} at the edges are empty, at most a quarter of {len(filled)} may be"
        )
    return Span(start, stop)


def _encoded_columns(limits: Limits, columns: NDArray, mask: NDArray) -> Span:
    """Encoded columns: the limits, if they contain every column with samples; otherwise judged from the mask alone.

    If the mask is one contiguous block of at least three quarters of the columns, the others are padding; with any other mask
    all columns count as encoded.
    """
    if limits is not None and not bool(columns[: limits[0]].any() or columns[max(limits[1], 0) :].any()):
        return Span(limits[0], min(limits[1], len(mask)))
    lines, width = np.flatnonzero(mask), len(mask)
    together = len(lines) > 0 and lines[-1] + 1 - lines[0] == len(lines)
    return Span(int(lines[0]), int(lines[-1]) + 1) if together and width - len(lines) <= TOLERATED * width else Span(0, width)


def _masked_extent(filled: NDArray, limits: Span, mask: NDArray, index: int) -> Extent:
    rows, columns = np.flatnonzero(filled.any(1)), np.asarray(filled.any(0))
    lines, empty = np.flatnonzero(columns), np.flatnonzero(mask & ~columns)
    inside = int(((empty > lines[0]) & (empty < lines[-1])).sum())
    if bool((columns & ~mask).any()) or inside:
        raise PrepError(
            f"the stored mask does not fit slice {index}: {int((columns & ~mask).sum())} columns that it leaves out hold "
            f"samples, {inside} of its {int(mask.sum())} columns are empty between others"
        )
    start = max([limits.start, *(empty[empty < lines[0]] + 1).tolist()])
    stop = min([limits.stop, *empty[empty > lines[-1]].tolist()])
    return Extent(Span(int(rows[0]), int(rows[-1]) + 1), Span(start, stop))


def _span(filled: NDArray, limits: Limits, axis: str, index: int) -> Span:
    """From the first to the last row or column that is not empty or is within the limits; the rest is padding."""
    span, n = _without_gaps(filled, limits, axis, index), len(filled)
    padding = n - (span.stop - span.start)
    if limits is None and padding > TOLERATED * n:
        raise _undersampled(index, f"{padding} of {n} {axis} are empty at the edges, at most a quarter is taken as padding")
    return span


def _check_same(extent: Extent, index: int, wanted: Extent, first: int) -> None:
    for axis, found, expected in zip(Extent._fields, extent, wanted, strict=True):
        if found != expected:
            raise _undersampled(
                index, f"{axis} {found.start} to {found.stop - 1}, slice {first} has {expected.start} to {expected.stop - 1}"
            )


def _undersampled(index: int, cause: str) -> PrepError:
    return PrepError(f"kspace is undersampled: slice {index}: {cause}; refused as ground truth")


def _padding(extent: Extent, size: tuple[int, ...], limited: bool) -> str:
    empty = [n - (span.stop - span.start) for n, span in zip(size, extent, strict=True)]
    if limited:
        empty[1] = 0  # the header says so
    return "; ".join(f"{n} empty edge {axis} taken as padding" for n, axis in zip(empty, Extent._fields, strict=True) if n)
