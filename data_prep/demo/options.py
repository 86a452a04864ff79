"""The options of the demo commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from data_prep.ct.options import Photons, SinogramSigma, Views
from data_prep.images.options import Keep, Mask, MatrixSeed, MatrixSeeds, ProductSigma, Ratio, ValueSigma
from data_prep.mri.options import Normalisation
from data_prep.run.manifest import PrepError
from data_prep.run.options import Acceleration, CenterFraction, MaskSeed, WithImage, seed_option

BrainMaskSeed = Annotated[
    int | None,
    seed_option(
        "Seed of the mask. Rotations and flips of a mask can only teach what one of them measures: the default is among "
        "the best of 40 seeds in the share of k-space, weighted by 1 / (1 + |k|^2), that the mask and its eight images cover."
    ),
]


@dataclass(frozen=True, kw_only=True)
class BrainOptions:
    """Options of `python -m data_prep demo mri`."""

    size: Annotated[int, typer.Option(help="Height and width of the slices, pixels.", min=16, max=512)] = 64
    acceleration: Acceleration = 4
    center_fraction: CenterFraction = 0.08
    sigma: Annotated[
        float, typer.Option(help="Noise on each real and imaginary part of a measured sample, for images in [0, 1].", min=0)
    ] = 0.005
    seed: Annotated[int, seed_option("Seed of the noise and the split, and of the mask without --mask-seed.")] = 0
    mask_seed: BrainMaskSeed = 5
    val: Annotated[int, typer.Option(help="Validation slices, in one block.", min=0)] = 10
    test: Annotated[int, typer.Option(help="Test slices, in two blocks.", min=0)] = 20
    gap: Annotated[int, typer.Option(help="Slices left out on either side of each held-out block.", min=0)] = 2
    normalise: Annotated[
        Normalisation,
        typer.Option(help="Min-max range that becomes [0, 1]; the paper normalises each slice. The scale is stored."),
    ] = "slice"
    with_image: WithImage = True
    licence: str = (
        "ICBM 152 template, copyright 1993-2009 Louis Collins, McConnell Brain Imaging Centre, Montreal Neurological "
        "Institute, McGill University: may be used, copied, changed and passed on for any purpose without fee, with this notice"
    )


@dataclass(frozen=True, kw_only=True)
class KspaceOptions:
    """Options of `python -m data_prep demo kspace`, which simulates scans.

    K-space has 2 `size` rows (readout) and 9/8 `size` columns. `sigma` is the standard deviation of the noise on the real, and
    on the imaginary, part, root mean square over coils. Slices are 1 mm apart.
    """

    size: Annotated[int, typer.Option(help="Rows and columns of the reconstruction, pixels.", min=16, max=512)] = 64
    coils: Annotated[int, typer.Option(help="Receive coils; 0 for single-coil files.", min=0)] = 8
    sigma: Annotated[float, typer.Option(help="Noise on each part of a sample, for images with a maximum of 1.", min=0)] = 0.005
    volumes: Annotated[int, typer.Option(help="Files, one patient each.", min=1)] = 12
    slices: Annotated[int, typer.Option(help="Slices of each.", min=1)] = 9
    gap: Annotated[int, typer.Option(help="Slices left out between volumes.", min=0)] = 2
    seed: Annotated[int, seed_option("Seed of phase, coils and noise.")] = 0

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of k-space: the readout is oversampled by two, the phase encoding by 9/8."""
        return 2 * self.size, self.size + self.size // 8

    def check(self) -> None:
        """Raise PrepError if an option is out of range."""
        least = {"size": 16, "coils": 0, "sigma": 0, "volumes": 1, "slices": 1, "gap": 0, "seed": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if not bound <= value < float("inf"):
                raise PrepError(f"{name} {value}: expected at least {bound}")


@dataclass(frozen=True, kw_only=True)
class ChestOptions:
    """Options of `python -m data_prep demo ct`."""

    size: Annotated[int, typer.Option(help="Rows and columns of the slices, pixels.", min=16, max=512)] = 64
    views: Views = 16
    sigma: SinogramSigma = 0.001
    photons: Photons = None
    seed: Annotated[int, seed_option("Seed of the noise, the split, and of the phantom.")] = 0
    source: Annotated[
        Literal["auto", "pycerr", "phantom"],
        typer.Option(help="Lung CT slices of an installed pycerr, or a parametric chest; auto: pycerr where it is installed."),
    ] = "auto"
    with_image: WithImage = True


@dataclass(frozen=True, kw_only=True)
class PhotographOptions:
    """Options of `python -m data_prep demo natural`."""

    size: Annotated[int, typer.Option(help="Rows and columns of the crops.", min=16, max=128)] = 64
    mask: Mask = "values"
    keep: Keep = None
    sigma: ValueSigma = 0.0
    seed: Annotated[int, seed_option("Seed of the noise, and of the mask without --mask-seed.")] = 0
    mask_seed: MaskSeed = None
    with_image: WithImage = True
    licence: str = (
        "of each photograph: scikit-image, skimage/data/README.txt; scikit-learn, sklearn/datasets/images/README.txt (CC BY); "
        "matplotlib's grace_hopper.jpg, public domain"
    )


@dataclass(frozen=True, kw_only=True)
class DigitOptions:
    """Options of `python -m data_prep demo digits`."""

    n: Annotated[int, typer.Option(help="Digits in all, as many of each class.", min=20, max=5000)] = 5000
    ratio: Ratio = 0.3
    sigma: ProductSigma = 0.0
    seed: MatrixSeeds = 0
    matrix_seed: MatrixSeed = None
    val: Annotated[int, typer.Option(help="Validation digits.", min=0)] = 100
    test: Annotated[int, typer.Option(help="Test digits.", min=0)] = 200
    with_image: WithImage = True
    licence: str = "MNIST (Y. LeCun, C. Cortes, C. Burges): CC BY-SA 3.0"
