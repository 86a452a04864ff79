"""The commands `div2k` and `demo natural`: images with missing values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from data_prep.cli import DryRun, Out, Overwrite, Salt, WithoutImage, Workers, end, exit_on_user_error
from data_prep.run.manifest import MAX_SEED

Mask = Annotated[
    Literal["values", "pixels", "random_columns", "even_columns"],
    typer.Option(
        help="What the one mask keeps or drops: each value of each channel (the paper), whole pixels, or whole columns, drawn "
        "at random or every other one (push-broom scanners)."
    ),
]
Keep = Annotated[
    float | None,
    typer.Option(help="Share that is kept.", min=0, max=1, show_default="0.3, or 0.5 for even_columns, which has no other"),
]
Sigma = Annotated[float, typer.Option(help="Noise on each kept value, for images in [0, 1].", min=0)]
MaskSeed = Annotated[int | None, typer.Option(help="Seed of the mask.", min=0, max=MAX_SEED, show_default="that of --seed")]


def register(app: typer.Typer, demo_app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command()(div2k)
    demo_app.command("natural")(demo_natural)


def div2k(
    src: Annotated[Path, typer.Argument(help="Folder that holds DIV2K, or any other images (searched recursively).")],
    out: Out,
    size: Annotated[int, typer.Option(help="Side of the resized image, before it is cropped.", min=8)] = 256,
    crop: Annotated[int, typer.Option(help="Rows and columns of the stored images, cropped from the centre.", min=8)] = 128,
    resize: Annotated[
        Literal["short", "stretch"],
        typer.Option(
            help="Bring the shorter side to SIZE and keep the proportions, or both sides (the paper, read literally)."
        ),
    ] = "short",
    crops: Annotated[
        int,
        typer.Option(help="Crops of each training image: the central one and random others, for supervised training.", min=1),
    ] = 1,
    mask: Mask = "values",
    keep: Keep = None,
    sigma: Sigma = 0.0,
    seed: Annotated[
        int,
        typer.Option(help="Seed of noise, split and random crops, and of the mask without --mask-seed.", min=0, max=MAX_SEED),
    ] = 0,
    mask_seed: MaskSeed = None,
    train: Annotated[
        float,
        typer.Option(
            help="Images for training and validation. With fewer than TRAIN + TEST, only the ratio counts. Of DIV2K's own "
            "folders: at most so many."
        ),
    ] = 800,
    test: Annotated[float, typer.Option(help="Images for test. TRAIN + TEST of at most 1 are fractions.")] = 100,
    val: Annotated[
        int | None, typer.Option(help="Validation images, taken from the training ones.", show_default="about 5 %")
    ] = None,
    without_image: WithoutImage = False,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> None:
    """DIV2K, or any folder of images, seen through one mask that keeps some of the values.

    DIV2K_train_HR (800 images) goes to training and validation, DIV2K_valid_HR (100) to test, wherever they lie below SRC;
    other images beside them are left out. Any other folder is split by a hash of each file's content. Files of the same
    content, or with the same pixels, are taken once.

    Each image is turned upright (EXIF), brought to RGB in [0, 1] (grayscale: three equal channels; transparent: laid on white;
    animated: the first frame), resized by Pillow's antialiased bicubic resampling and cropped from the centre. No image is
    enlarged: one whose shorter side is below SIZE keeps its pixels, one below CROP is refused.

    A folder as OUT gets div2k.h5; a manifest (.manifest.json) is written beside it; neither holds names or paths. A second run
    with the same input and options does nothing. Nothing is downloaded. Exit status 1: a file failed, or nothing could be
    written.
    """
    from rich.console import Console

    from data_prep.images import div2k as command
    from data_prep.run.manifest import default_salt, output_path
    from data_prep.run.runner import PrepRun
    from data_prep.run.workers import default_workers, worker_pool

    with exit_on_user_error():
        options = command.Options(
            size, crop, resize, crops, mask, keep, sigma, seed, mask_seed, train, test, val, not without_image
        )
        path, threads = output_path(out, "div2k.h5"), workers or default_workers()
        with worker_pool(threads) as pool:
            frame = PrepRun("div2k", options, path, salt or default_salt(seed), threads, pool, Console())
            succeeded = command.prepare(frame, src, options, dry_run, overwrite)
    end(succeeded)


def demo_natural(
    out: Out,
    size: Annotated[int, typer.Option(help="Rows and columns of the crops.", min=16, max=128)] = 64,
    mask: Mask = "values",
    keep: Keep = None,
    sigma: Sigma = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the noise, and of the mask without --mask-seed.", min=0, max=MAX_SEED)] = 0,
    mask_seed: MaskSeed = None,
    without_image: WithoutImage = False,
    overwrite: Overwrite = False,
) -> None:
    """Crops of the photographs in scikit-image and scikit-learn (extra `demo`), seen through one mask.

    Training, validation and test crops come from different photographs. A folder as OUT gets demo_natural.h5. A second run with
    the same options does nothing.
    """
    from rich.console import Console

    from data_prep.demo import photographs as command
    from data_prep.run.manifest import output_path

    options = command.Options(size, mask, keep, sigma, seed, mask_seed, not without_image)
    with exit_on_user_error():
        succeeded = command.prepare(output_path(out, "demo_natural.h5"), options, overwrite, Console())
    end(succeeded)
