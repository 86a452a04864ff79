"""Command line of data_prep: raw files in, one HDF5 file of slices out."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from data_prep import commands_digits, commands_images
from data_prep.cli import Out, Overwrite, Salt, WithoutImage, Workers, end, exit_on_user_error
from data_prep.run.manifest import MAX_SEED

app = typer.Typer(
    help="Turns raw images into one HDF5 file of slices for training and evaluation.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
demo_app = typer.Typer(help="Demo data made from what installed packages hold: nothing is downloaded.", no_args_is_help=True)
app.add_typer(demo_app, name="demo")
for commands in (commands_images, commands_digits):
    commands.register(app, demo_app)

Acceleration = Annotated[float, typer.Option(help="Width / measured lines of the one sampling mask.", min=1)]
CenterFraction = Annotated[float, typer.Option(help="Fraction of the lines that the centre always measures.", min=0, max=1)]
Sigma = Annotated[
    float, typer.Option(help="Noise on each real and imaginary part of a measured sample, for images in [0, 1].", min=0)
]
Seed = Annotated[
    int, typer.Option(help="Seed of the noise and the split, and of the mask without --mask-seed.", min=0, max=MAX_SEED)
]
MaskSeed = Annotated[int | None, typer.Option(help="Seed of the mask.", min=0, max=MAX_SEED, show_default="that of --seed")]
DemoMaskSeed = Annotated[
    int | None,
    typer.Option(
        help="Seed of the mask. Rotations and flips of a mask can only teach what one of them measures: the default is among "
        "the best of 40 seeds in the share of k-space, weighted by 1 / (1 + |k|^2), that the mask and its eight images cover.",
        min=0,
        max=MAX_SEED,
    ),
]
Normalise = Annotated[
    Literal["slice", "volume"],
    typer.Option(help="Min-max range that becomes [0, 1]; the paper normalises each slice. The scale is stored."),
]
Views = Annotated[int, typer.Option(help="Views of the scanner, evenly spaced over 180 degrees.", min=1)]
SinogramSigma = Annotated[
    float, typer.Option(help="Noise on a sample of the sinogram, for images in [0, 1] and an operator of norm 1.", min=0)
]
Photons = Annotated[
    float | None,
    typer.Option(
        help="Count so many photons on a ray through air (Poisson noise, e.g. 1e4), in place of --sigma, and store the "
        "logarithm of the counts. A field of view of 400 mm and water at 70 keV are assumed.",
        min=1,
    ),
]


@app.callback()
def main() -> None:
    """Turns raw images into one HDF5 file of slices for training and evaluation."""


@app.command()
def fastmri(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively) or one .h5 file of fastMRI volumes.")],
    out: Out,
    slices: Annotated[Literal["middle", "all"], typer.Option(help="Slices of each volume; the paper: middle.")] = "middle",
    acceleration: Acceleration = 8,
    center_fraction: CenterFraction = 0.03,
    sigma: Annotated[
        float | None,
        typer.Option(
            help="Noise on each real and imaginary part. Synthetic: of the simulated samples, for images in [0, 1] (default "
            "0.005). Real: of the recorded samples in the file's units, in place of the estimate.",
            min=0,
            show_default="0.005, or estimated",
        ),
    ] = None,
    measurements: Annotated[
        Literal["synthetic", "real"],
        typer.Option(help="Simulate k-space from magnitude images (the paper's main setting), or use the recorded k-space."),
    ] = "synthetic",
    added_noise: Annotated[
        float, typer.Option(help="Real: noise to add on each part, for images whose low-resolution maximum is 1.", min=0)
    ] = 0.0,
    virtual_coils: Annotated[int, typer.Option(help="Real, multi-coil: compress to at most so many coils.", min=1)] = 8,
    whiten: Annotated[bool, typer.Option(help="Real, multi-coil: remove the correlation of the noise between coils.")] = True,
    native_width: Annotated[
        bool,
        typer.Option("--native-width", help="Real: keep the recorded columns; needed for files that are undersampled."),
    ] = False,
    mask_from: Annotated[
        Path | None,
        typer.Option(help="Real: use the mask of this slice file, with its acceleration and centre, in place of a new one."),
    ] = None,
    seed: Seed = 0,
    mask_seed: MaskSeed = None,
    train: Annotated[
        float, typer.Option(help="Volumes for training and validation. With fewer than TRAIN + TEST, only the ratio counts.")
    ] = 900,
    test: Annotated[float, typer.Option(help="Volumes for test. TRAIN + TEST of at most 1 are fractions.")] = 73,
    val: Annotated[
        int | None, typer.Option(help="Validation volumes, taken from the training ones.", show_default="about 5 %")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Crop or zero-pad each image to SIZE x SIZE.", min=16, show_default="its own, or 320 where sizes differ"
        ),
    ] = None,
    coils: Annotated[Literal["single", "multi"], typer.Option(help="Kind of k-space to expect.")] = "single",
    target: Annotated[
        Literal["auto", "esc", "rss"],
        typer.Option(
            help="Ground truth. Synthetic: the stored reconstruction, auto: esc, else rss. Real: auto: the complex image of "
            "k-space (multi-coil: combined with the sensitivity maps), rss: root sum of squares of the coils."
        ),
    ] = "auto",
    normalise: Annotated[
        Literal["slice", "volume"] | None,
        typer.Option(
            help="Synthetic: min-max range that becomes [0, 1]; the paper normalises each slice. Real: always each slice, by "
            "the maximum of its low-resolution image. The scale is stored.",
            show_default="slice",
        ),
    ] = None,
    without_image: WithoutImage = False,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every file; write nothing.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """FastMRI volumes (and ISMRMRD raw files, with --measurements real), undersampled by one mask.

    Synthetic: the ground truth is reconstruction_esc or reconstruction_rss, or the image of fully sampled k-space where there
    is neither; its k-space is simulated once. Undersampled files without reconstruction are skipped.

    Real: the recorded k-space is resampled (sinc, free of aliasing) to the grid of the reconstruction; the noise level of
    each slice is estimated and stored. The scale, coil compression and sensitivity maps (ESPIRiT, extra `coils`) use measured
    lines only.

    The split keeps the volumes of a patient together. A folder as OUT gets fastmri.h5; a manifest (.manifest.json) is
    written beside it. A second run with the same input and options does nothing; an interrupted one leaves nothing and
    starts again. Exit status 1: a file failed, or nothing could be written.
    """
    from rich.console import Console

    from data_prep.mri import fastmri as command
    from data_prep.mri.options import Options
    from data_prep.run.manifest import default_salt, output_path
    from data_prep.run.workers import default_workers, worker_pool

    options = Options(
        slices, acceleration, center_fraction, sigma, seed, train, test, val, size, coils, target, normalise or "slice",
        not without_image, mask_seed, measurements, added_noise, virtual_coils, whiten, native_width,
    )  # fmt: skip
    with exit_on_user_error():
        options = options if mask_from is None else options.with_mask_of(mask_from)
        options.check(normalise)
        path = output_path(out, "fastmri.h5")
        threads = workers or default_workers()
        with worker_pool(threads) as pool:
            job = command.Job(src, path, options, salt or default_salt(seed), threads, pool, Console())
            succeeded = command.run(job, dry_run, overwrite)
    end(succeeded)


@app.command()
def lidc(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively, by content) or one DICOM file.")],
    out: Out,
    slices: Annotated[
        str, typer.Option(help="Slices of each series: `middle` by position, `all`, or `every:N` about the middle.")
    ] = "middle",
    series: Annotated[
        Literal["one", "all"] | None,
        typer.Option(
            help="Series of each patient; one: what a scanner made before reformatted images, axial, with the most slices.",
            show_default="one with --slices middle, else all",
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="Rows and columns of the stored images, by averages over areas.", min=16)] = 256,
    views: Views = 50,
    sigma: SinogramSigma = 0.001,
    photons: Photons = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise and the split.", min=0, max=MAX_SEED)] = 0,
    train: Annotated[
        float, typer.Option(help="Patients for training and validation. With fewer than TRAIN + TEST, only the ratio counts.")
    ] = 900,
    test: Annotated[float, typer.Option(help="Patients for test. TRAIN + TEST of at most 1 are fractions.")] = 110,
    val: Annotated[
        int | None, typer.Option(help="Validation patients, taken from the training ones.", show_default="about 5 %")
    ] = None,
    intercept: Annotated[
        float | None,
        typer.Option(
            help="For files without rescale intercept: Hounsfield units = stored + INTERCEPT (often -1024; 0 when they are).",
            show_default="stored values must look like Hounsfield units",
        ),
    ] = None,
    without_image: WithoutImage = False,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be taken, and why the rest is not; write nothing.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """CT slices of a DICOM archive (LIDC-IDRI as downloaded, or any other), with simulated sparse-view sinograms.

    Files are found by their content and gathered by SeriesInstanceUID; localizers, secondary captures, X-rays, segmentations
    and reports are left out and listed. Slices are ordered along their normal, brought to Hounsfield units by each file's own
    rescale, clipped to [-1000, 1000], averaged over areas to SIZE x SIZE (slices that are not square in mm are padded with
    air first) and stored in [0, 1]. Compressed files need the extra `dicom`.

    The split keeps the slices of a patient together. A folder as OUT gets lidc.h5; a manifest (.manifest.json) is written
    beside it; neither holds identifiers, only salted hashes. A second run with the same input and options does nothing.
    Exit status 1: a file failed, or nothing could be written.
    """
    from rich.console import Console

    from data_prep.ct import lidc as command
    from data_prep.run.manifest import default_salt, output_path
    from data_prep.run.workers import default_workers, worker_pool

    with exit_on_user_error():
        options = command.Options(
            slices, series, size, views, sigma, seed, train, test, val, intercept, not without_image, photons
        )
        path = output_path(out, "lidc.h5")
        threads = workers or default_workers()
        with worker_pool(threads) as pool:
            job = command.Job(src, path, options, salt or default_salt(seed), threads, pool, Console())
            succeeded = command.run(job, dry_run, overwrite)
    end(succeeded)


@demo_app.command("mri")
def demo_mri(
    out: Out,
    size: Annotated[int, typer.Option(help="Height and width of the slices, pixels.", min=16, max=512)] = 64,
    acceleration: Acceleration = 4,
    center_fraction: CenterFraction = 0.08,
    sigma: Sigma = 0.005,
    seed: Seed = 0,
    mask_seed: DemoMaskSeed = 5,
    val: Annotated[int, typer.Option(help="Validation slices, in one block.", min=0)] = 10,
    test: Annotated[int, typer.Option(help="Test slices, in two blocks.", min=0)] = 20,
    gap: Annotated[int, typer.Option(help="Slices left out on either side of each held-out block.", min=0)] = 2,
    normalise: Normalise = "slice",
    without_image: WithoutImage = False,
    overwrite: Overwrite = False,
) -> None:
    """Axial slices of the ICBM152 T1 brain template (extra `demo`), with simulated undersampled noisy k-space.

    Training, validation and test slices are contiguous blocks with a gap between them, so nothing leaks. A folder as
    OUT gets demo_mri.h5. A second run with the same options does nothing.
    """
    from rich.console import Console

    from data_prep.demo import brain as demo
    from data_prep.run.manifest import output_path

    options = demo.Options(
        size, acceleration, center_fraction, sigma, seed, val, test, gap, normalise, not without_image, mask_seed
    )
    with exit_on_user_error():
        demo.run(output_path(out, "demo_mri.h5"), options, overwrite, Console())


@demo_app.command("kspace")
def demo_kspace(
    out: Annotated[Path, typer.Argument(help="Folder for the files.")],
    size: Annotated[int, typer.Option(help="Rows and columns of the reconstruction, pixels.", min=16, max=512)] = 64,
    coils: Annotated[int, typer.Option(help="Receive coils; 0 for single-coil files.", min=0)] = 8,
    sigma: Annotated[
        float, typer.Option(help="Noise on each part of a sample, for images with a maximum of 1.", min=0)
    ] = 0.005,
    volumes: Annotated[int, typer.Option(help="Files, each of a patient of its own.", min=1)] = 12,
    slices: Annotated[int, typer.Option(help="Slices of each.", min=1)] = 9,
    gap: Annotated[int, typer.Option(help="Slices left out between volumes.", min=0)] = 2,
    seed: Annotated[int, typer.Option(help="Seed of phase, coils and noise.", min=0, max=MAX_SEED)] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Raw complex k-space in fastMRI's layout, as input of `fastmri --measurements real` (extra `demo`).

    The magnitude is the ICBM152 T1 brain template; its phase, coils and noise are simulated, as each file says. A second run
    with the same options does nothing.
    """
    from rich.console import Console

    from data_prep.demo import kspace as command

    with exit_on_user_error():
        command.run(out, command.Options(size, coils, sigma, volumes, slices, gap, seed), overwrite, Console())


@demo_app.command("ct")
def demo_ct(
    out: Out,
    size: Annotated[int, typer.Option(help="Rows and columns of the slices, pixels.", min=16, max=512)] = 64,
    views: Views = 16,
    sigma: SinogramSigma = 0.001,
    photons: Photons = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise, the split, and of the phantom.", min=0, max=MAX_SEED)] = 0,
    source: Annotated[
        Literal["auto", "pycerr", "phantom"],
        typer.Option(help="Lung CT slices of an installed pycerr, or a parametric chest; auto: pycerr where it is installed."),
    ] = "auto",
    without_image: WithoutImage = False,
    overwrite: Overwrite = False,
) -> None:
    """CT slices of the chest with simulated sparse-view sinograms, split by patient.

    Real ones (4 patients, CC BY-NC) where you have installed them: `pip install --no-deps pycerr==2.5.1`. Otherwise a
    parametric chest phantom, written as DICOM files and read back like any archive. A folder as OUT gets demo_ct.h5.
    """
    from rich.console import Console

    from data_prep.demo import chest as command
    from data_prep.run.manifest import output_path

    options = command.Options(size, views, sigma, seed, source, not without_image, photons)
    with exit_on_user_error():
        succeeded = command.run(output_path(out, "demo_ct.h5"), options, overwrite, Console())
    end(succeeded)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a stopped run, too, removes its temporary file
    app(prog_name="python -m data_prep")
