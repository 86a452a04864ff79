"""Turn the slices of a volume into images of one grid: resample in the plane, crop or pad, clip to percentiles."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn.functional import interpolate

from data_prep.ct.series import step_of
from data_prep.mr_images.grid import Stack
from data_prep.mr_images.options import MROptions
from data_prep.mri.normalisation import VolumeRange, crop_or_pad
from data_prep.run.manifest import PrepError
from es_medical.data.geometry import Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size = tuple[int, int]

SQUARE = 0.01  # relative difference of the sides of a pixel that counts as square
TISSUE = 0.1  # share of the bright end of a volume from which a pixel counts as tissue
LEAST_TISSUE = 0.01  # share of the pixels of a slice that is not empty
LABELS = 8  # a volume of so few values is a mask or label map
LARGEST = 1e30  # of voxels: beyond it their sums and squares overflow
CUT = 0.01  # share of the tissue of a slice that may lie outside the new grid without a note


class Prepared(NamedTuple):
    """A slice before its measurement is simulated: image (H, W) in raw units, its plane, and its number in the volume."""

    image: NDArray[np.float32]
    place: Geometry
    number: int


class PreparedVolume(NamedTuple):
    """The slices of a volume that are taken, the range of their values, and what a user should know."""

    slices: list[Prepared]
    range: VolumeRange
    notes: Counter[str]


def new_spacing(old: tuple[float, float], wanted: float | None) -> tuple[float, float]:
    """Pixel spacing after resampling: the wanted one, or the finer side where pixels are not square.

    Raises:
        PrepError: a spacing is wanted, and that of the image is unknown.

    >>> new_spacing((1.0, 0.9), None), new_spacing((0.9, 0.9001), None), new_spacing((0.7, 0.7), 2.0)
    ((0.9, 0.9), (0.9, 0.9001), (2.0, 2.0))
    """
    if np.isnan(old).any():
        if wanted is not None:
            raise PrepError("no pixel spacing in the header, so --spacing cannot be used")
        return old
    if wanted is not None:
        return wanted, wanted
    return old if max(old) <= (1 + SQUARE) * min(old) else (min(old), min(old))


def new_size(size: Size, old: tuple[float, float], new: tuple[float, float]) -> Size:
    """Rows and columns after resampling from one pixel spacing to another."""
    if old == new or np.isnan(old).any():
        return size
    rows, columns = (max(math.floor(n * (a / b)), 1) for n, a, b in zip(size, old, new, strict=True))
    return rows, columns


def resampled(x: NDArray[np.float32], old: tuple[float, float], new: tuple[float, float]) -> NDArray[np.float32]:
    """Slices (n, H, W) on pixels of another spacing: linear, antialiased, with the outer edge of the first pixel kept."""
    if old == new or np.isnan(old).any():
        return x
    scale = tuple(a / b for a, b in zip(old, new, strict=True))
    options = {"mode": "bilinear", "antialias": True, "align_corners": False, "recompute_scale_factor": False}
    return interpolate(torch.from_numpy(x)[:, None], scale_factor=scale, **options)[:, 0].numpy()  # type: ignore[arg-type]


def chosen(which: str, n: int) -> range:
    """Numbers of the slices to take: all, the middle one, or every N-th about the middle.

    >>> list(chosen("all", 4)), list(chosen("middle", 5)), list(chosen("every:2", 6))
    ([0, 1, 2, 3], [2], [1, 3, 5])
    """
    if which == "all":
        return range(n)
    step = n if which == "middle" else step_of(which)
    return range(n // 2 % step, n, step)


def prepare(stack: Stack, options: MROptions, size: Size) -> PreparedVolume:
    """Choose the slices of a volume that hold tissue, and bring them to one grid.

    Args:
        stack: the slices.
        options: of the command.
        size: rows and columns afterwards.

    Raises:
        PrepError: no image, or no chosen slice holds tissue.
    """
    if len(np.unique(stack.voxels[::2, ::2, ::2])) <= LABELS and len(np.unique(stack.voxels)) <= LABELS:
        raise PrepError(f"no more than {LABELS} different values: a mask or label map, not an image")
    if (largest := float(np.abs(stack.voxels).max())) > LARGEST:
        raise PrepError(f"values up to {largest:g}: expected {LARGEST:g} at most, for which single precision is enough")
    old = stack.planes[0].spacing
    new = new_spacing(old, options.spacing)
    low, high = np.percentile(stack.voxels, options.percentiles).tolist()
    wanted = chosen(options.slices, len(stack.planes))
    x = resampled(np.ascontiguousarray(stack.voxels[wanted.start :: wanted.step]), old, new)  # (n, h, w)
    tissue = x > low + TISSUE * (high - low)
    full = [k for k, inside in enumerate(tissue) if inside.mean() >= LEAST_TISSUE]
    if not full:
        raise PrepError("no chosen slice holds tissue")
    notes = Counter({"empty slices left out": len(x) - len(full)} if len(full) < len(x) else {})
    slices = list[Prepared]()
    for k in full:
        if options.normalise == "slice":
            low, high = np.percentile(x[k], options.percentiles).tolist()
        image = crop_or_pad(x[k].clip(low, high) - np.float32(low), size) + np.float32(low)
        cut = 1 - crop_or_pad(tissue[k], size).sum() / tissue[k].sum()
        notes.update(["tissue cut off by --size"] if cut > CUT else [])
        place = stack.planes[wanted[k]]
        place = (place if new == old or np.isnan(old).any() else place.respaced(new)).resized((x.shape[1], x.shape[2]), size)
        slices.append(Prepared(image, place, wanted[k]))
    low, high = min(float(one.image.min()) for one in slices), max(float(one.image.max()) for one in slices)
    return PreparedVolume(slices, VolumeRange(low, high), notes)
