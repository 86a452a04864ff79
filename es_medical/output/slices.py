"""Write measurements that are in memory to a slice file, which the bundles train on."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from es_medical.data import Shapes, SliceHeader, SliceWriter
from es_medical.data.schema import NAN, SliceRecord
from es_medical.physics import MRI, MaskedPhysics, Operator
from es_medical.physics.masks import center_block
from es_medical.types import Image, Measurement

OWN = "own"
"""Kind of an operator that a user wrote, in the header of a slice file; `MaskedPhysics.fingerprint` stands beside it."""


def write_slices(
    path: str | Path,
    physics: Operator,
    y: Measurement,
    splits: Sequence[str],
    images: Image | None = None,
    sigma: float | Tensor = 0.0,
    subjects: Sequence[str] | None = None,
) -> None:
    """Write a slice file, whole or not at all; an older one is replaced.

    Args:
        path: the file, *.h5.
        physics: the operator of all items: `MRI`, or `MaskedPhysics` around any linear operator of deepinv.
        y: measurements (B, ...), scaled so that images lie in about [0, 1].
        splits: "train", "val" or "test" for each item; the items of a subject belong in one of them.
        images: ground truth (B, C, H, W), which only scores are made from; None if there is none.
        sigma: noise level in the units of y, a number or (B,).
        subjects: whose image it is, without a patient's name: it is written to the file; None for another one each.

    Raises:
        ValueError: another operator, a subject in two splits, or shapes that do not fit.
    """
    names = [f"item{i}" for i in range(len(y))] if subjects is None else list(subjects)
    divided = Counter(name for name, _ in set(zip(names, splits, strict=True)))
    torn = [name for name in names if divided[name] > 1]
    if torn or len(names) != len(y):
        raise ValueError(f"subject {torn[0]} is in several splits" if torn else f"{len(names)} subjects for {len(y)} items")
    header, shapes = _described(physics, sigma if isinstance(sigma, int | float) else NAN)
    levels = torch.as_tensor(sigma, dtype=torch.float64).expand(len(y)).tolist()
    with SliceWriter(path, header, physics.image_size, images is not None, shapes=shapes) as writer:
        for i, (name, split) in enumerate(zip(names, splits, strict=True)):
            image = None if images is None else images[i]
            writer.append(SliceRecord(y[i], image, f"item{i}", name, split, data_range=1.0, slice=i, sigma=levels[i]))


def _described(physics: Operator, sigma: float) -> tuple[SliceHeader, Shapes]:
    """Return what the file says of an operator, and the shapes of its slices."""
    size = physics.image_size
    if len(physics.mask) > 1:
        raise ValueError(f"a slice file has one mask for all items, got {len(physics.mask)}")
    if isinstance(physics, MaskedPhysics):
        operator = {"kind": OWN, "class": type(physics.physics).__name__, "fingerprint": physics.fingerprint}
        mask = physics.mask[0].bool().expand(physics.grid)
        return SliceHeader(sigma, mask, modality="IMAGE", operator=operator), Shapes(
            physics.grid, tuple(physics.img_size), (physics.grid,)
        )
    if not isinstance(physics, MRI):
        raise ValueError(
            f"{type(physics).__name__}: expected MRI or MaskedPhysics; other data are made by `python -m data_prep`"
        )
    mask = physics.mask[0, 0].bool().cpu()
    mask = mask[0] if len(mask) == 1 else mask
    rows, columns = center_block(mask.expand(size))
    share = columns / size[1] if rows == size[0] else NAN
    return SliceHeader(sigma, mask, mask.numel() / float(mask.sum()), share), Shapes.kspace(size)
