"""The options of `data_prep mr`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer

from data_prep.mri.options import SYNTHETIC_SIGMA, Normalisation
from data_prep.run.manifest import OMIT_NONE, PrepError
from data_prep.run.options import (
    Acceleration,
    CenterFraction,
    Licence,
    MaskSeed,
    WithImage,
    seed_option,
    test_option,
    train_option,
    val_option,
)
from data_prep.run.splits import Shares

Plane = Literal["acquired", "axial", "coronal", "sagittal"]


@dataclass(frozen=True, kw_only=True)
class MROptions:
    """Options that decide what the file holds: see `python -m data_prep mr --help`.

    Raises:
        PrepError: an option is out of range, or `subject_pattern` is no regular expression.
    """

    plane: Annotated[
        Plane,
        typer.Option(help="Plane of the slices; acquired: across the thickest side of the voxels, axial if they are cubes."),
    ] = "acquired"
    slices: Annotated[
        str, typer.Option(help="Slices of each volume: `all` with tissue, the `middle` one, or `every:N` about the middle.")
    ] = "all"
    spacing: Annotated[
        float | None,
        typer.Option(
            help="Resample in the plane to square pixels of so many mm.",
            min=0.01,
            show_default="as they are; the finer side where they are not square",
        ),
    ] = None
    size: Annotated[
        int | None, typer.Option(help="Crop or zero-pad to SIZE x SIZE.", min=16, show_default="what the largest image needs")
    ] = None
    normalise: Annotated[
        Normalisation,
        typer.Option(help="Whether the percentiles are those of each slice, as in the paper, or of its volume."),
    ] = "slice"
    percentiles: Annotated[
        tuple[float, float],
        typer.Option(
            help="Percentiles of the intensities that become 0 and 1; values beyond are clipped. The scale is stored."
        ),
    ] = (0.0, 99.9)
    acceleration: Acceleration = 4
    center_fraction: CenterFraction = 0.08
    sigma: Annotated[
        float, typer.Option(help="Noise on each real and imaginary part of a measured sample, for images in [0, 1].", min=0)
    ] = SYNTHETIC_SIGMA
    phase: Annotated[bool, typer.Option("--phase", help="Give the images a smooth random phase: they become complex.")] = False
    coils: Annotated[
        int, typer.Option(help="Receive coils in a ring around the body, simulated, their maps stored; 0: single-coil.", min=0)
    ] = 0
    volume: Annotated[int | None, typer.Option(help="Of files with several volumes, take this one, counted from 0.", min=0)] = (
        None
    )
    seed: Annotated[int, seed_option("Seed of the noise and the split, and of the mask without --mask-seed.")] = 0
    mask_seed: MaskSeed = None
    subject_pattern: Annotated[
        str | None,
        typer.Option(
            help="Regular expression found in a file's path below SRC: its first group, or all that it matches, names the "
            "subject. `.+` takes each file for a subject.",
            show_default="DICOM: PatientID; else sub-01, patient01 ..., the folder, or the name without T1, study1 ...",
        ),
    ] = None
    train: Annotated[float, train_option("Volumes")] = 0.8
    test: Annotated[float, test_option("Volumes")] = 0.2
    val: Annotated[int | None, val_option("volumes")] = None
    with_image: WithImage = True
    licence: Licence = field(default=None, metadata=OMIT_NONE)

    def __post_init__(self) -> None:
        low, high = self.percentiles
        if not 0 <= low < high <= 100:
            raise PrepError(f"--percentiles {low:g} {high:g}: expected 0 <= low < high <= 100")
        if self.slices not in {"middle", "all"}:
            from data_prep.ct.series import step_of

            step_of(self.slices)
        try:
            re.compile(self.subject_pattern or "")
        except re.error as error:
            raise PrepError(f"--subject-pattern {self.subject_pattern}: no regular expression ({error})") from None

    @property
    def shares(self) -> Shares:
        """Number or share of volumes for each split."""
        return Shares(self.train, self.test, self.val)
