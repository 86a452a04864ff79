"""The options of `data_prep lidc`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer

from data_prep.run.manifest import OMIT_NONE, PrepError
from data_prep.run.options import Licence, WithImage, seed_option, test_option, train_option, val_option
from data_prep.run.splits import Shares

SIGMA = 0.001

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


@dataclass(frozen=True, kw_only=True)
class LIDCOptions:
    """Options that decide what the file holds: see `python -m data_prep lidc --help`.

    Raises:
        ValueError: both `sigma` and `photons` are given, photons is out of range, or `slices` is not a valid choice.
    """

    slices: Annotated[
        str, typer.Option(help="Slices of each series: `middle` by position, `all`, or `every:N` about the middle.")
    ] = "middle"
    series: Annotated[
        Literal["one", "all"] | None,
        typer.Option(
            help="Series of each patient; one: what a scanner made before reformatted images, axial, with the most slices.",
            show_default="one with --slices middle, else all",
        ),
    ] = None
    size: Annotated[int, typer.Option(help="Rows and columns of the stored images, by averages over areas.", min=16)] = 256
    views: Views = 50
    sigma: SinogramSigma = SIGMA
    photons: Photons = field(default=None, metadata=OMIT_NONE)
    seed: Annotated[int, seed_option("Seed of the noise and the split.")] = 0
    train: Annotated[float, train_option("Patients")] = 900
    test: Annotated[float, test_option("Patients")] = 110
    val: Annotated[int | None, val_option("patients")] = None
    intercept: Annotated[
        float | None,
        typer.Option(
            help="For files without rescale intercept: Hounsfield units = stored + INTERCEPT (often -1024; 0 when they are).",
            show_default="stored values must look like Hounsfield units",
        ),
    ] = None
    with_image: WithImage = True
    burned_in: Annotated[
        bool | None,
        typer.Option(
            "--burned-in/--no-burned-in",
            help="Take images whose header says that annotations are burned into the pixels: they may show who it is.",
            show_default="no",
        ),
    ] = field(default=None, metadata=OMIT_NONE)
    split_by: Annotated[
        Literal["study", "series"] | None,
        typer.Option(
            help="Keep the slices of a study, or of a series, in one split, for archives whose PatientIDs were all replaced by "
            "one. Two scans of one person may then be in two splits.",
            show_default="patient",
        ),
    ] = field(default=None, metadata=OMIT_NONE)
    licence: Licence = field(default=None, metadata=OMIT_NONE)

    def __post_init__(self) -> None:
        if self.photons is not None:
            from es_medical.physics.transmission import Transmission

            Transmission(self.photons, 1.0)  # checks the number
            if self.sigma not in (0.0, SIGMA):
                raise ValueError(f"--photons {self.photons:g} is the noise: leave out --sigma {self.sigma:g}")
            object.__setattr__(self, "sigma", 0.0)
        if self.slices not in {"middle", "all"}:
            from data_prep.ct.series import step_of

            step_of(self.slices)
        if self.series is None:
            object.__setattr__(self, "series", "one" if self.slices == "middle" else "all")

    @property
    def noise(self) -> str:
        """The noise of the sinograms, in words."""
        return f"sigma {self.sigma:g}" if self.photons is None else f"{self.photons:g} photons on a ray through air"

    @property
    def shares(self) -> Shares:
        """Number or share of patients for each split."""
        return Shares(self.train, self.test, self.val)


def options_of_training(preparation: Mapping[str, Any], burned_in: bool | None = None) -> LIDCOptions:
    """Options that prepare all slices of a scan as the training data were.

    Args:
        preparation: how the data of the weights was made (see `es_medical.engine.training_data.preparation`).
        burned_in: whether to take images with annotations in their pixels; None: as in training.

    Raises:
        PrepError: the training data was not made from CT images.
    """
    made = preparation.get("configuration", {})
    if "views" not in made:
        raise PrepError(f"the weights were trained on data of `data_prep {made.get('command', '(unknown)')}`, not on CT images")
    knobs = {name: made[name] for name in ("size", "views", "sigma", "seed", "intercept")} | {"photons": made.get("photons")}
    taken = made.get("burned_in") if burned_in is None else burned_in
    return LIDCOptions(slices="all", series="all", train=1, test=0, val=0, burned_in=taken or None, **knobs)
