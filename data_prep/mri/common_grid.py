"""Choose one grid and one mask for volumes that were recorded on different grids."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from data_prep.mri.fastmri_file import FASTMRI_SIZE, unlike
from data_prep.mri.recorded import RecordedVolume
from data_prep.mri.recording import Recording
from data_prep.mri.resample import Regrid
from data_prep.run.manifest import PrepError
from data_prep.run.workers import T
from es_medical.data.pixels import ALIKE, Pixels
from es_medical.physics.masks import center_lines, gaussian_line_mask

if TYPE_CHECKING:
    from data_prep.mri.options import FastMRIOptions

Pair = tuple[float, float]
Size = tuple[int, int]


class Sized(Protocol):
    """What a volume says of its reconstruction."""

    @property
    def size(self) -> Size:
        """Rows and columns."""

    @property
    def spacing(self) -> Pair:
        """Row and column spacing in mm, NaN where unknown."""


class Grid(NamedTuple):
    """The grid of a file: rows and columns, and the spacing of all volumes in mm; None if each keeps its own."""

    size: Size
    spacing: Pair | None = None


def common_grid(volumes: Sequence[Sized], wanted: int | Size | None, trained: Pixels | None = None) -> Grid:
    """The grid of the slices of a file.

    Volumes whose pixels differ from those of a training get its pixels, and the size that covers their field of view.

    The size is the requested one, else that of all reconstructions, else fastMRI's 320 x 320 if they differ. Where they differ
    the pixels are those of most reconstructions of that size, else the largest: then no field of view is cut.
    """
    sizes = {volume.size for volume in volumes}
    size = (wanted, wanted) if isinstance(wanted, int) else wanted or (FASTMRI_SIZE if len(sizes) > 1 else next(iter(sizes)))
    known = [volume for volume in volumes if np.isfinite(volume.spacing).all()]
    if trained is not None and (other := [one for one in known if trained.nearest(one.spacing) != one.spacing]):
        spacing = max(rounded(trained.nearest(one.spacing)) for one in other)
        covering = {field_of(one.size, one.spacing, spacing) for one in known}
        return Grid(size if wanted else covering.pop() if len(covering) == 1 else trained.size, spacing)
    if len(sizes) == 1 or not known:
        return Grid(size)
    of_size = [rounded(volume.spacing) for volume in known if volume.size == size]
    return Grid(size, commonest(of_size) if of_size else max(rounded(volume.spacing) for volume in known))


def rounded(spacing: Pair) -> Pair:
    """A spacing in micrometres, so that those of rounded headers are equal."""
    return round(spacing[0], 3), round(spacing[1], 3)


def field_of(size: Size, wanted: Pair, own: Pair) -> Size:
    """(h, w) pixels of spacing `own` that cover `size` pixels of spacing `wanted`; `size` if they are alike or unknown.

    >>> field_of((320, 320), (0.6875, 0.6875), (0.573, 0.573)), field_of((320, 320), (0.5, 0.5), (0.501, 0.499))
    ((384, 384), (320, 320))
    """
    ratios = [new / old for new, old in zip(wanted, own, strict=True)]
    if not all(math.isfinite(ratio) for ratio in ratios) or all(abs(ratio - 1) < ALIKE for ratio in ratios):
        return size
    rows, columns = (max(round(n * ratio), 1) for n, ratio in zip(size, ratios, strict=True))
    return rows, columns


def grid_note(volume: Sized, grid: Grid, asked: bool) -> str:
    """Say how the pixels and the field of view of a volume differ from those of its reconstruction, or ""."""
    notes, new = list[str](), grid.spacing or volume.spacing
    if grid.spacing is not None and field_of((999, 999), new, volume.spacing) != (999, 999):
        notes.append(f"rescaled from pixels of {_mm(volume.spacing)} to {_mm(new)}")
    elif grid.spacing is not None and not np.isfinite(volume.spacing).all():
        notes.append("pixel size unknown, not rescaled")
    old, kept = field_of(volume.size, volume.spacing, new), grid.size
    if old != kept and not asked:
        cut = any(a > b for a, b in zip(old, kept, strict=True))
        notes.append(f"{'cropped' if cut else 'zero-padded'} from {old[0]} x {old[1]} to {kept[0]} x {kept[1]} pixels")
    return "; ".join(notes)


def pixel_remark(volumes: Sequence[Sized]) -> str:
    """Say that volumes of one size have different pixels, which are kept, or ""."""
    counts = Counter(rounded(volume.spacing) for volume in volumes if np.isfinite(volume.spacing).all())
    most = counts.most_common(1)[0][0] if counts else (1.0, 1.0)
    if all(field_of((999, 999), most, other) == (999, 999) for other in counts):
        return ""
    return "pixel sizes differ and are kept: " + ", ".join(f"{_mm(pixel)} ({n} volumes)" for pixel, n in counts.most_common())


def _mm(spacing: Pair) -> str:
    return f"{spacing[0]:.3g} x {spacing[1]:.3g} mm"


def common_recording(
    volumes: Sequence[RecordedVolume], options: FastMRIOptions, grid: Grid
) -> tuple[Recording, dict[str, str]]:
    """Choose the preparation that all recorded slices share; also return the volumes that do not fit (digest -> cause).

    Without `native_width` every volume is resampled to the grid, and the mask is drawn from the columns that all of them
    encoded. An undersampled volume cannot be resampled: its lines do not lie on another grid. With `native_width` the
    recorded columns are kept, the most frequent width is that of the file, and the most frequent mask of the undersampled
    volumes is used for all.

    Args:
        volumes: at least one.
        options: the options of the command.
        grid: that of the reconstructions.

    Raises:
        PrepError: no volume fits, or the requested mask is impossible.
    """
    size = grid.size
    if options.native_width:
        rows_of = [field_of(volume.size, volume.spacing, volume.pixel)[0] for volume in volumes]
        height = commonest(rows_of) if options.size is None and len({*rows_of}) == 1 else size[0]
        size = (height, commonest([volume.recorded[1] for volume in volumes]))
    misfits = {volume.digest: cause for volume in volumes if (cause := _misfit(volume, size, grid, options.native_width))}
    fitting = [volume for volume in volumes if volume.digest not in misfits]
    stored = [volume.mask for volume in fitting if volume.mask is not None]
    if stored:
        mask = commonest(stored)
        other = "was undersampled by another mask than most volumes: one file has one mask"
        misfits |= {volume.digest: other for volume in fitting if volume.mask not in (None, mask)}
        fitting = [volume for volume in fitting if volume.digest not in misfits]
    if not fitting:
        raise PrepError(
            "no volume fits: " + "; ".join(f"{n} volumes: {cause}" for cause, n in Counter(misfits.values()).items())
        )
    fields = {volume.digest: _field(volume, size, grid, options.native_width) for volume in fitting}
    rows, encoded = (common_window([measured_window(volume, fields, size, axis) for volume in fitting]) for axis in (0, 1))
    chosen = _stored_mask(mask, encoded) if stored else _new_mask(size, rows, encoded, options)
    coils = min([options.virtual_coils, *[volume.coils for volume in fitting]])
    recording = Recording(
        size=size,
        mask=in_rows(chosen[0], rows, size[0]),
        acceleration=chosen[1],
        center_fraction=chosen[2],
        encoded_lines=options.encoded_lines if options.mask and not stored else encoded[1] - encoded[0],
        coils=coils,
        seed=options.seed,
        sigma=options.sigma,
        added_noise=options.added_noise,
        whiten=options.whiten,
        with_image=options.with_image and not stored,
        target_rss=options.target == "rss",
        fields=unusual(fields, size),
    )
    return recording, misfits


def _field(volume: RecordedVolume, size: Size, grid: Grid, native_width: bool) -> Size:
    """(h, w) recorded pixels that cover the grid of the file; recorded columns are kept, and those of undersampled volumes."""
    kept = native_width or volume.mask is not None
    return size if kept else field_of(size, grid.spacing or volume.spacing, volume.pixel)


def unusual(fields: Mapping[str, Size], size: Size) -> dict[str, Size]:
    """The fields that differ from the size; no other volume's part depends on them."""
    return {digest: field for digest, field in fields.items() if field != size}


def measured_window(volume: RecordedVolume, fields: Mapping[str, Size], size: Size, axis: int) -> tuple[int, int]:
    """Rows (axis 0) or columns (axis 1) of the file's grid that a volume measured."""
    window = volume.rows if axis == 0 else volume.encoded
    return Regrid(volume.recorded, fields[volume.digest], size).window(window, axis)


def common_window(windows: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """What all windows have in common.

    >>> common_window([(0, 8), (2, 9)])
    (2, 8)
    """
    return max(start for start, _ in windows), min(stop for _, stop in windows)


def in_rows(mask: Tensor, rows: tuple[int, int], height: int) -> Tensor:
    """The mask (W,), or (H, W) without the rows that were not measured: an asymmetric echo, or zero-padding."""
    if rows == (0, height):
        return mask
    measured = torch.zeros(height, dtype=torch.bool)
    measured[rows[0] : rows[1]] = True
    return measured[:, None] & mask


def commonest(values: Sequence[T]) -> T:
    """The most frequent value; of several, the one that appears first.

    >>> commonest([368, 372, 372])
    372
    """
    return Counter(values).most_common(1)[0][0]


def _misfit(volume: RecordedVolume, size: Size, grid: Grid, native_width: bool) -> str:
    width = volume.recorded[1]
    if not native_width and volume.mask is None and (cause := unlike(grid.spacing or volume.spacing, volume.pixel)):
        return f"slices and recorded grid have {cause}"
    if native_width and width != size[1]:
        return f"has {width} columns, most volumes have {size[1]}: with --native-width one file has one width"
    if not native_width and volume.mask is not None and width != size[1]:
        return (
            f"undersampled on a grid of {width} columns, which can't be resampled to {size[1]}: "
            "give --native-width to keep the recorded columns"
        )
    return ""


def _new_mask(
    size: Size, rows: tuple[int, int], encoded: tuple[int, int], options: FastMRIOptions
) -> tuple[Tensor, float, float]:
    """The given mask, or a drawn one, with its acceleration and centre fraction."""
    if options.given is not None:
        mask = _given_mask(torch.from_numpy(options.given.measured), size, rows, encoded)
        return mask, options.acceleration, options.center_fraction
    seed = options.seed if options.mask_seed is None else options.mask_seed
    mask = gaussian_line_mask(size[1], options.acceleration, options.center_fraction, seed, encoded)
    return mask, options.acceleration, options.center_fraction


def _given_mask(mask: Tensor, size: Size, rows: tuple[int, int], encoded: tuple[int, int]) -> Tensor:
    if len(mask) != size[1] and mask.ndim == 1:
        raise PrepError(f"the given mask has {len(mask)} columns, the slices have {size[1]}")
    if mask.ndim == 2 and tuple(mask.shape) != size:
        found, wanted = (" x ".join(map(str, sides)) for sides in (mask.shape, size))
        raise PrepError(f"the given mask has {found} samples, the slices have {wanted}: --size, or --native-width, sets theirs")
    columns = mask if mask.ndim == 1 else mask.any(0)
    outside = int(columns[: encoded[0]].sum() + columns[encoded[1] :].sum())
    if outside:
        raise PrepError(f"the given mask measures {outside} columns outside those recorded, {encoded[0]} to {encoded[1] - 1}")
    outside = int(mask[: rows[0]].sum() + mask[rows[1] :].sum()) if mask.ndim == 2 else 0
    if outside:
        raise PrepError(f"the given mask measures {outside} samples in rows outside those recorded, {rows[0]} to {rows[1] - 1}")
    return mask


def _stored_mask(mask: Sequence[bool], encoded: tuple[int, int]) -> tuple[Tensor, float, float]:
    """A stored mask, its acceleration and its centre fraction; both count encoded columns only."""
    chosen = torch.tensor(mask)
    chosen[: encoded[0]] = False
    chosen[encoded[1] :] = False
    lines, total = int(chosen.sum()), encoded[1] - encoded[0]
    if not bool(chosen[len(mask) // 2]):
        raise PrepError("the stored mask does not contain the zero frequency")
    n_center = next(n for n in range(lines, 0, -1) if bool(chosen[center_lines(len(mask), n)].all()))
    return chosen, total / lines, n_center / total
