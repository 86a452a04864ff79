"""Choose one grid and one mask for volumes that were recorded on different grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from data_prep.mri.recorded import RecordedVolume
from data_prep.mri.recording import Recording
from data_prep.mri.resample import resampled_columns
from data_prep.run.manifest import PrepError
from data_prep.run.workers import T
from es_medical.physics.masks import center_lines, gaussian_line_mask

if TYPE_CHECKING:
    from data_prep.mri.options import FastMRIOptions


def common_recording(
    volumes: Sequence[RecordedVolume], options: FastMRIOptions, size: tuple[int, int]
) -> tuple[Recording, dict[str, str]]:
    """Choose the preparation that all recorded slices share; also return the volumes that do not fit (digest -> cause).

    Without `native_width` every volume is resampled to `size`, and the mask is drawn from the columns that all of them
    encoded. An undersampled volume cannot be resampled: its lines do not lie on another grid. With `native_width` the
    recorded columns are kept, the most frequent width is that of the file, and the most frequent mask of the undersampled
    volumes is used for all.

    Args:
        volumes: at least one.
        options: the options of the command.
        size: (H, W) of the reconstructions.

    Raises:
        PrepError: no volume fits, or the requested mask is impossible.
    """
    if options.native_width:
        size = (size[0], commonest([volume.recorded[1] for volume in volumes]))
    misfits = {volume.digest: cause for volume in volumes if (cause := _misfit(volume, size, options.native_width))}
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
    windows = [resampled_columns(volume.encoded, volume.recorded[1], size[1]) for volume in fitting]
    encoded = (max(start for start, _ in windows), min(stop for _, stop in windows))
    chosen = _stored_mask(mask, encoded) if stored else _new_mask(size[1], encoded, options)
    coils = min([options.virtual_coils, *[volume.coils for volume in fitting]])
    recording = Recording(
        size=size,
        mask=chosen[0],
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
    )
    return recording, misfits


def commonest(values: Sequence[T]) -> T:
    """The most frequent value; of several, the one that appears first.

    >>> commonest([368, 372, 372])
    372
    """
    return Counter(values).most_common(1)[0][0]


def _misfit(volume: RecordedVolume, size: tuple[int, int], native_width: bool) -> str:
    width = volume.recorded[1]
    if native_width and width != size[1]:
        return f"has {width} columns, most volumes have {size[1]}: with --native-width one file has one width"
    if not native_width and volume.mask is not None and width != size[1]:
        return (
            f"undersampled on a grid of {width} columns, which can't be resampled to {size[1]}: "
            "give --native-width to keep the recorded columns"
        )
    return ""


def _new_mask(width: int, encoded: tuple[int, int], options: FastMRIOptions) -> tuple[Tensor, float, float]:
    """The given mask, or a drawn one, with its acceleration and centre fraction."""
    if options.mask:
        return _given_mask(options.mask, width, encoded), options.acceleration, options.center_fraction
    seed = options.seed if options.mask_seed is None else options.mask_seed
    mask = gaussian_line_mask(width, options.acceleration, options.center_fraction, seed, encoded)
    return mask, options.acceleration, options.center_fraction


def _given_mask(text: str, width: int, encoded: tuple[int, int]) -> Tensor:
    mask = torch.tensor([digit == "1" for digit in text])
    if len(mask) != width:
        raise PrepError(f"the given mask has {len(mask)} columns, the slices have {width}")
    outside = int(mask[: encoded[0]].sum() + mask[encoded[1] :].sum())
    if outside:
        raise PrepError(f"the given mask measures {outside} columns outside those recorded, {encoded[0]} to {encoded[1] - 1}")
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
