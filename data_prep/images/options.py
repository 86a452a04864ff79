"""The options of `data_prep div2k` and `data_prep mnist`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

from data_prep.run.manifest import OMIT_NONE, PrepError
from data_prep.run.options import (
    CommandLineType,
    Licence,
    MaskSeed,
    WithImage,
    seed_option,
    test_option,
    train_option,
    val_option,
)

MaskKind = Literal["values", "pixels", "random_columns", "even_columns"]
Resize = Literal["short", "stretch"]

Mask = Annotated[
    MaskKind,
    typer.Option(
        help="What the one mask keeps or drops: each value of each channel (the paper), whole pixels, or whole columns, drawn "
        "at random or every other one (push-broom scanners)."
    ),
]
Keep = Annotated[
    float | None,
    typer.Option(help="Share that is kept.", min=0, max=1, show_default="0.3, or 0.5 for even_columns, which has no other"),
]
ValueSigma = Annotated[float, typer.Option(help="Noise on each kept value, for images in [0, 1].", min=0)]
Ratio = Annotated[
    float,
    typer.Option(help="Measurements for each pixel, m / n: 0.1 to 0.5 in the paper; 0.3 is 70 % compression.", min=0, max=1),
]
ProductSigma = Annotated[float, typer.Option(help="Noise on each measurement, for images in [0, 1].", min=0)]
MatrixSeeds = Annotated[int, seed_option("Seed of the noise and the split, and of the matrix without --matrix-seed.")]
MatrixSeed = Annotated[int | None, seed_option("Seed of the matrix.", "that of --seed")]


@dataclass(frozen=True, kw_only=True)
class DIV2KOptions:
    """Options that decide what the file holds: see `python -m data_prep div2k --help`.

    Raises:
        PrepError: the crop is larger than the resized image, or there is no crop.
    """

    size: Annotated[int, typer.Option(help="Side of the resized image, before it is cropped.", min=8)] = 256
    crop: Annotated[int, typer.Option(help="Rows and columns of the stored images, cropped from the centre.", min=8)] = 128
    resize: Annotated[
        Resize,
        typer.Option(
            help="Bring the shorter side to SIZE and keep the proportions, or both sides (the paper, read literally)."
        ),
    ] = "short"
    crops: Annotated[
        int,
        typer.Option(help="Crops of each training image: the central one and random others, for supervised training.", min=1),
    ] = 1
    mask: Mask = "values"
    keep: Keep = None
    sigma: ValueSigma = 0.0
    seed: Annotated[int, seed_option("Seed of noise, split and random crops, and of the mask without --mask-seed.")] = 0
    mask_seed: MaskSeed = None
    train: Annotated[float, train_option("Images", " With DIV2K's own folders these are upper limits.")] = 800
    test: Annotated[float, test_option("Images")] = 100
    val: Annotated[int | None, val_option("images")] = None
    with_image: WithImage = True
    licence: Licence = field(default=None, metadata=OMIT_NONE)

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.size:
            raise PrepError(f"crop {self.crop}: expected 1 to {self.size}, the size after resizing")
        if self.crops < 1:
            raise PrepError(f"crops {self.crops}: expected at least 1, the central one")


@dataclass(frozen=True, kw_only=True)
class MNISTOptions:
    """Options that decide what the file holds: see `python -m data_prep mnist --help`. `train` or `test` None takes all.

    Raises:
        PrepError: `train` or `test` is a text that is neither a number nor `all`.
    """

    ratio: Ratio = 0.3
    sigma: ProductSigma = 0.0
    seed: MatrixSeeds = 0
    matrix_seed: MatrixSeed = None
    train: Annotated[
        int | None,
        CommandLineType(str),
        typer.Option(help="Images for training and validation, the first ones, or `all`; with too few, all there are."),
    ] = 20_000
    test: Annotated[int | None, CommandLineType(str), typer.Option(help="Images for test, or `all`.")] = 100
    val: Annotated[
        int | None, typer.Option(help="Validation images, drawn from the training ones.", min=0, show_default="about 5 %")
    ] = None
    with_image: WithImage = True
    licence: Licence = field(default=None, metadata=OMIT_NONE)

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            object.__setattr__(self, name, _count(f"--{name}", getattr(self, name)))


def _count(option: str, given: int | str | None) -> int | None:
    """Number of images requested, None for all."""
    if not isinstance(given, str):
        return given
    if given.strip().lower() == "all":
        return None
    if not given.strip().isdecimal():
        raise PrepError(f"{option} {given!r}: expected a number of images, or all")
    return int(given)
