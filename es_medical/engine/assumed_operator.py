"""The operator that a configuration's knobs describe, for a look before there is any data file.

Sizes, seeds and the rest are the defaults of data_prep; what stands in is said in words.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from es_medical.physics import (
    MRI,
    CompressedSensing,
    Inpainting,
    Operator,
    bernoulli_mask,
    even_columns,
    gaussian_line_mask,
    gaussian_matrix,
    random_columns,
)

SEED = 0
"""Seed of masks and matrices: data_prep's default."""

KSPACE_SIDE, CT_SIDE, PHOTO_SIDE, DIGIT_SIDE = 320, 256, 128, 28
"""Rows and columns of the paper's images."""

Knobs = Mapping[str, Any]


class Assumed(NamedTuple):
    """An operator that stands in for that of a data file, and in words what was assumed."""

    physics: Operator
    words: str


def assumed_operator(factory: str, knobs: Knobs, size: int | None = None) -> Assumed:
    """Make the operator of a bundle's knobs.

    Args:
        factory: name of the function that the configuration's `physics` calls: build_physics (k-space), build_scanner (CT),
            build_inpainting or build_sensing.
        knobs: the configuration's plain values; `channels` are those of the network.
        size: rows and columns of the images; None for the paper's.

    Raises:
        ValueError: another factory, or a knob that the operator needs is missing or null.
        ImportError: CT without astra-toolbox.
    """
    makers: dict[str, Callable[[Knobs, int | None], Assumed]] = {
        "build_physics": _kspace,
        "build_scanner": _scanner,
        "build_inpainting": _inpainting,
        "build_sensing": _sensing,
    }
    if factory not in makers:
        raise ValueError(
            f"no operator can be assumed for physics of {factory}: known are {', '.join(makers)}; give a data file"
        )
    return makers[factory](knobs, size)


def _kspace(knobs: Knobs, size: int | None) -> Assumed:
    side, acceleration, center = size or KSPACE_SIDE, _number(knobs, "acceleration"), _number(knobs, "center_fraction")
    mask = gaussian_line_mask(side, acceleration, center, SEED)
    words = (
        f"{side} x {side} k-space of a single coil, {int(mask.sum())} of {side} lines (x{acceleration:g}, Gaussian), {_seed()}"
    )
    return Assumed(MRI(mask, (side, side)), words)


def _scanner(knobs: Knobs, size: int | None) -> Assumed:
    from es_medical.physics.ct import CT
    from es_medical.physics.ct_geometry import ParallelBeam

    side, views = size or CT_SIDE, _whole(knobs, "views")
    geometry = ParallelBeam((side, side), n_views=views)
    words = f"{side} x {side} images, {views} views evenly over 180 degrees, parallel beam, {geometry.shape[1]} detector bins"
    return Assumed(CT(geometry), words)


def _inpainting(knobs: Knobs, size: int | None) -> Assumed:
    side, channels, kind, keep = size or PHOTO_SIDE, _whole(knobs, "channels"), knobs.get("mask"), _number(knobs, "keep")
    masks = {
        "values": lambda: bernoulli_mask((channels, side, side), keep, SEED),
        "pixels": lambda: bernoulli_mask((1, side, side), keep, SEED),
        "random_columns": lambda: random_columns(side, keep, SEED),
        "even_columns": lambda: even_columns(side),
    }
    if kind not in masks:
        raise ValueError(f"mask must be one of {', '.join(masks)}, got {kind!r}")
    seed = "" if kind == "even_columns" else f", {_seed()}"
    words = f"{side} x {side} images of {channels} channels, mask of {str(kind).replace('_', ' ')}, {100 * keep:g} % kept{seed}"
    return Assumed(Inpainting(masks[kind](), (side, side), channels), words)


def _sensing(knobs: Knobs, size: int | None) -> Assumed:
    side, ratio = size or DIGIT_SIDE, _number(knobs, "ratio")
    m, n = round(ratio * side * side), side * side
    words = f"{side} x {side} images, {m} products with a Gaussian matrix of {m} x {n}, {_seed('matrix')}"
    return Assumed(CompressedSensing(gaussian_matrix(m, n, SEED), (side, side)), words)


def _seed(what: str = "mask") -> str:
    return f"{what} seed {SEED} (data_prep's default)"


def _number(knobs: Knobs, name: str) -> float:
    value = knobs.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number to assume an operator without a data file, got {value!r}")
    return value


def _whole(knobs: Knobs, name: str) -> int:
    value = _number(knobs, name)
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value}")
    return int(value)
