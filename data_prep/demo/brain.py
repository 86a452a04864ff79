"""Demo data without a download: axial slices of the ICBM152 T1 template in the nilearn wheel.

Neighbouring slices look alike, so training, validation and test slices are contiguous blocks with a gap between them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn.functional import interpolate

from data_prep.demo.options import BrainOptions
from data_prep.demo.packages import shipped
from data_prep.mr_images.image_file import read_file
from data_prep.mri.normalisation import Acquisition, VolumeRange, crop_or_pad
from data_prep.run.manifest import Outcome, PrepError, check_replaceable
from data_prep.run.plan import Inventory, Made, Plan, Tally, Task
from data_prep.run.runner import PrepRun, measured_by, run
from es_medical.data import Shapes, SliceHeader, file_digest
from es_medical.data.geometry import Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEMPLATE = "mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
LEAST_TISSUE = 0.01  # share of the pixels of a slice above a tenth of the volume's maximum


def template_path() -> Path:
    """Path of the T1 template that nilearn ships; see `shipped`."""
    return shipped("nilearn", f"datasets/data/{TEMPLATE}", "brain template")


def axial_slices(path: Path, size: int) -> tuple[NDArray, list[Geometry]]:
    """Axial slices with tissue, anterior up and the patient's left on the left, and their planes.

    Returns:
        slices (n, size, size) float32, and the plane of each.
    """
    slices, planes = read_file(path, "RPS")  # columns to the right, rows to the back, slices upwards
    side = max(slices.shape[1:])
    padded = torch.from_numpy(crop_or_pad(slices, (side, side)))
    small = interpolate(padded[:, None], (size, size), mode="bilinear", antialias=True, align_corners=False)[:, 0].numpy()
    tissue = (small > 0.1 * small.max()).mean((1, 2)) >= LEAST_TISSUE
    sizes = (slices.shape[1], slices.shape[2]), (side, side), (size, size)
    return small[tissue], [planes[z].resized(*sizes[:2]).rescaled(*sizes[1:]) for z in np.flatnonzero(tissue).tolist()]


def blocks(n: int, val: int, test: int, gap: int) -> list[tuple[str, range]]:
    """Contiguous blocks train | test | train | val | train | test | train with `gap` slices left out between them.

    Two test blocks (one for a single test slice) show more than one region. The training blocks have about the same length.

    Raises:
        PrepError: nothing would be left to train on.

    >>> blocks(20, val=2, test=4, gap=1)
    [('train', range(0, 2)), ('test', range(3, 5)), ('train', range(6, 8)), ('val', range(9, 11)), \
('train', range(12, 14)), ('test', range(15, 17)), ('train', range(18, 20))]
    """
    if min(val, test, gap) < 0:
        raise PrepError(f"val {val}, test {test}, gap {gap}: expected no negative number")
    held_out = [(name, k) for name, k in (("test", (test + 1) // 2), ("val", val), ("test", test // 2)) if k > 0]
    training = n - val - test - 2 * gap * len(held_out)
    if training < len(held_out) + 1:
        raise PrepError(f"{n} slices leave none to train on: val {val}, test {test}, gap {gap}")
    lengths = [training * (i + 1) // (len(held_out) + 1) - training * i // (len(held_out) + 1) for i in range(4)]
    layout, start = [("train", range(lengths[0]))], lengths[0]
    for (name, k), length in zip(held_out, lengths[1:], strict=False):
        layout.append((name, range(start + gap, start + gap + k)))
        start += k + 2 * gap
        layout.append(("train", range(start, start + length)))
        start += length
    return layout


class Block(NamedTuple):
    """A block of neighbouring slices: their indices, their split, and the hash that stands in for a patient's."""

    indices: range
    split: str
    subject: str


def prepare(prep: PrepRun[BrainOptions], overwrite: bool = False) -> bool:
    """Write the demo data set, unless it is up to date.

    Raises:
        PrepError: no template, OUT exists and is no slice file, or options that leave no training slices.
    """
    check_replaceable(prep.out, overwrite)
    path = template_path()
    digest = file_digest(path)
    inventory, lines = Inventory({TEMPLATE: digest}, [], [digest]), measured_by(describe, prep.out)
    return run(prep, inventory, partial(plan, prep, path), lines, overwrite=overwrite, table=False)


def plan(prep: PrepRun[BrainOptions], path: Path) -> Plan[Block]:
    """Plan one task per block of slices of the template; each slice is made by `Acquisition.record`."""
    options, pseudonyms = prep.options, prep.pseudonyms
    size = (options.size, options.size)
    acquisition = Acquisition(
        size, options.acceleration, options.center_fraction, options.sigma, options.seed, options.with_image, options.mask_seed
    )
    slices, planes = axial_slices(path, options.size)
    volume = VolumeRange(float(slices.min()), float(slices.max()))

    def make(block: Block) -> Made:
        keys = [(i, pseudonyms.of("slice", i)) for i in block.indices]
        by, subject, split = options.normalise, block.subject, block.split
        return Made([acquisition.record(slices[i], volume, by, key, subject, split, planes[i], i) for i, key in keys])

    layout = blocks(len(slices), options.val, options.test, options.gap)
    tasks = [Task(TEMPLATE, Block(part, split, pseudonyms.of("block", k))) for k, (split, part) in enumerate(layout)]
    return Plan(acquisition, Shapes.kspace(size), make, tasks, _outcome)


def _outcome(tally: Tally) -> list[Outcome]:
    return tally.failures or [Outcome(TEMPLATE, "done", slices=tally.n, target="T1 template")]


def describe(header: SliceHeader) -> str:
    """Describe the sampling mask in one line."""
    return f"{int(header.mask.sum())} of {header.mask.shape[-1]} k-space lines (nominal x{header.acceleration:g})"
