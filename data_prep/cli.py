"""The commands of `python -m data_prep`: the arguments of each, and the module that does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from data_prep.ct.options import LIDCOptions
from data_prep.demo.cli import app as demo_app
from data_prep.images.options import DIV2KOptions, MNISTOptions
from data_prep.mr_images.options import MROptions
from data_prep.mri.options import FastMRIOptions
from data_prep.run.options import DryRun, Engine, Out, Overwrite, Salt, command, prep_run
from data_prep.sinogram.geometry_file import print_example
from data_prep.sinogram.options import SinogramOptions
from data_prep.synthetic.options import SyntheticOptions

app = typer.Typer(
    help="Turns raw images into one HDF5 file of slices for training and evaluation.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(demo_app, name="demo")


@app.callback()
def main() -> None:
    """Turns raw images into one HDF5 file of slices for training and evaluation."""


@command(app)
def fastmri(
    src: Annotated[
        str,
        typer.Argument(
            help="Folder (searched recursively) or one file of fastMRI volumes or raw data; or an address in an object store: "
            "s3://BUCKET/FOLDER (extra `s3`; access and endpoint by AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and the like)."
        ),
    ],
    out: Out,
    options: FastMRIOptions,
    engine: Engine,
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
    from data_prep.run.store import place

    source = place(src)
    with prep_run("fastmri", out, "fastmri.h5", options, salt, engine=engine, source=source) as run:
        return prepare(run, source, dry_run, overwrite)


@command(app)
def mr(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively) or one file: .nii, .nii.gz, .nrrd or .mha.")],
    out: Out,
    options: MROptions,
    engine: Engine,
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

    with prep_run("mr", out, "mr.h5", options, salt, engine=engine, source=src) as run:
        return prepare(run, src, dry_run, overwrite)


@command(app)
def lidc(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively, by content) or one DICOM file.")],
    out: Out,
    options: LIDCOptions,
    engine: Engine,
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

    with prep_run("lidc", out, "lidc.h5", options, salt, engine=engine, source=src) as run:
        return prepare(run, src, dry_run, overwrite)


@command(app)
def sinogram(
    src: Annotated[Path, typer.Argument(help="Folder (searched recursively, by content) or one file of sinograms.")],
    out: Out,
    options: SinogramOptions,
    engine: Engine,
    example_geometry: Annotated[
        bool, typer.Option("--example-geometry", help="Print a geometry file and end.", callback=print_example, is_eager=True)
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Also write a picture (OUT.preview.png) of up to four slices, without a network.")
    ] = False,
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

    with prep_run("sinogram", out, "sinograms.h5", options, salt, engine=engine, source=src) as run:
        return prepare(run, src, dry_run, overwrite, preview)


@command(app)
def div2k(
    src: Annotated[Path, typer.Argument(help="Folder that holds DIV2K, or any other images (searched recursively).")],
    out: Out,
    options: DIV2KOptions,
    engine: Engine,
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

    with prep_run("div2k", out, "div2k.h5", options, salt, engine=engine, source=src) as run:
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
