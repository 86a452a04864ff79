"""The options of `data_prep fastmri`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from data_prep.run.manifest import OMIT_NONE, PrepError
from data_prep.run.options import (
    Acceleration,
    CenterFraction,
    CommandLineType,
    Licence,
    MaskSeed,
    WithImage,
    known_options,
    seed_option,
    test_option,
    train_option,
    val_option,
)
from data_prep.run.splits import Shares

SYNTHETIC_SIGMA = 0.005
VIRTUAL_COILS = 8

Chosen = Literal["middle", "all"]
Coils = Literal["single", "multi"]
Target = Literal["auto", "esc", "rss"]
Normalisation = Literal["slice", "volume"]


@dataclass(frozen=True, kw_only=True)
class FastMRIOptions:
    """Options that decide what the file holds: see `python -m data_prep fastmri --help`.

    `size` is the side of a square grid, or both sides. `mask` describes a given sampling mask, `given`, in place of a drawn
    one: a 0 or 1 for each column, or size and digest of single samples; its acceleration and centre fraction refer to
    `encoded_lines` columns. `pixels`, at inference, are those of the training (see `es_medical.data.pixels.Pixels`): scans with
    others are resampled to them.

    Raises:
        PrepError: an option has no effect on these measurements, or a number is not finite.
        ValueError: `mask_from` holds no mask.
    """

    slices: Annotated[Chosen, typer.Option(help="Slices of each volume; the paper: middle.")] = "middle"
    acceleration: Acceleration = 8
    center_fraction: CenterFraction = 0.03
    sigma: Annotated[
        float | None,
        typer.Option(
            help="Noise on each real and imaginary part. Synthetic: of the simulated samples, for images in [0, 1] (default "
            "0.005). Real: of the recorded samples in the file's units, in place of the estimate.",
            min=0,
            show_default="0.005, or estimated",
        ),
    ] = None
    measurements: Annotated[
        Literal["synthetic", "real"],
        typer.Option(help="Simulate k-space from magnitude images (the paper's main setting), or use the recorded k-space."),
    ] = "synthetic"
    added_noise: Annotated[
        float, typer.Option(help="Real: noise to add on each part, for images whose low-resolution maximum is 1.", min=0)
    ] = 0.0
    virtual_coils: Annotated[int, typer.Option(help="Real, multi-coil: compress to at most so many coils.", min=1)] = (
        VIRTUAL_COILS
    )
    whiten: Annotated[bool, typer.Option(help="Real, multi-coil: remove the correlation of the noise between coils.")] = True
    native_width: Annotated[
        bool,
        typer.Option("--native-width", help="Real: keep the recorded columns; needed for files that are undersampled."),
    ] = False
    mask_from: InitVar[
        Annotated[
            Any,  # or a GivenMask of data_prep.mri.array_file
            CommandLineType(Path | None),
            typer.Option(
                help="Real: use the mask of this file in place of a new one: a slice file, with its acceleration and "
                "centre, or .npy or .mat of 0 and 1 for columns, or for single samples (rows along the readout), of k-space."
            ),
        ]
    ] = None
    mask_variable: InitVar[
        Annotated[str, typer.Option(help="Name of the mask in the .mat file of --mask-from, if it holds several.")]
    ] = ""
    axes: Annotated[
        str | None,
        typer.Option(
            help="Real: read .npy and .mat files too, whose k-space has these axes in this order: names among slice (or "
            "partition: kz), coil, readout, phase, for example readout,phase,coil. Zero frequency is at index n//2.",
            show_default=False,
        ),
    ] = field(default=None, metadata=OMIT_NONE)
    variable: Annotated[
        str | None,
        typer.Option(help="Name of k-space in such .mat files, if they hold several arrays.", show_default=False),
    ] = field(default=None, metadata=OMIT_NONE)
    seed: Annotated[int, seed_option("Seed of the noise and the split, and of the mask without --mask-seed.")] = 0
    mask_seed: MaskSeed = None
    train: Annotated[float, train_option("Volumes")] = 900
    test: Annotated[float, test_option("Volumes")] = 73
    val: Annotated[int | None, val_option("volumes")] = None
    size: Annotated[
        int | tuple[int, int] | None,
        CommandLineType(int | None),
        typer.Option(
            help="Crop or zero-pad each image to SIZE x SIZE.", min=16, show_default="its own, or 320 where sizes differ"
        ),
    ] = None
    coils: Annotated[Coils, typer.Option(help="Kind of k-space to expect.")] = "single"
    target: Annotated[
        Target,
        typer.Option(
            help="Ground truth. Synthetic: the stored reconstruction, auto: esc, else rss. Real: auto: the complex image of "
            "k-space (multi-coil: combined with the sensitivity maps), rss: root sum of squares of the coils."
        ),
    ] = "auto"
    normalise: Annotated[
        Normalisation | None,
        typer.Option(
            help="Synthetic: min-max range that becomes [0, 1]; the paper normalises each slice. Real: always each slice, by "
            "the maximum of its low-resolution image. The scale is stored.",
            show_default="slice",
        ),
    ] = None
    with_image: WithImage = True
    licence: Licence = field(default=None, metadata=OMIT_NONE)
    pixels: tuple[tuple[int, int], tuple[float, float], tuple[float, float]] | None = field(default=None, metadata=OMIT_NONE)
    mask: str = ""
    encoded_lines: int = 0
    given: ClassVar[Any] = None  # a GivenMask, of this object; the configuration holds its description, `mask`

    def __post_init__(self, mask_from: Any, mask_variable: str) -> None:  # noqa: ANN401  as above
        if isinstance(mask_from, Path):
            from data_prep.mri.array_file import read_mask_file

            mask_from = read_mask_file(mask_from, mask_variable)
        object.__setattr__(self, "given", mask_from)
        if mask_from is not None:
            object.__setattr__(self, "mask", mask_from.text)
            for name in ("acceleration", "center_fraction", "encoded_lines"):
                object.__setattr__(self, name, getattr(mask_from, name))
        self._check()
        if self.measurements == "synthetic" and self.sigma is None:
            object.__setattr__(self, "sigma", SYNTHETIC_SIGMA)
        if self.normalise is None:
            object.__setattr__(self, "normalise", "slice")

    def _check(self) -> None:
        """Raise PrepError for options of the other kind of measurements."""
        for name in ("acceleration", "sigma", "added_noise", "train", "test"):
            if not math.isfinite(getattr(self, name) or 0):
                raise PrepError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected a finite number")
        real = {
            "--added-noise": self.added_noise > 0,
            "--virtual-coils": self.virtual_coils != VIRTUAL_COILS,
            "--no-whiten": not self.whiten,
            "--native-width": self.native_width,
            "--mask-from": self.mask != "",
            "--axes": self.axes is not None,
            "--variable": self.variable is not None,
        }
        synthetic = {"--normalise": self.normalise is not None, "--target esc": self.target == "esc"}
        single = {"--target rss": self.target == "rss" and self.coils == "single"}
        wrong = synthetic | single if self.measurements == "real" else real
        given = [name for name, is_given in wrong.items() if is_given]
        if given:
            raise PrepError(f"{', '.join(given)}: without effect on --measurements {self.measurements} --coils {self.coils}")

    @property
    def shares(self) -> Shares:
        """Number or share of volumes for each split."""
        return Shares(self.train, self.test, self.val)


def options_of_training(preparation: Mapping[str, Any]) -> FastMRIOptions:
    """Options that prepare a scan in the same way as the training data, see `es_medical.engine.training_data.preparation`.

    Only the noise differs: the level is estimated for the scan, and no noise is added.

    Raises:
        PrepError: the training data was not made from recorded k-space by `data_prep fastmri`.
    """
    from numpy import asarray

    from data_prep.mri.array_file import GivenMask
    from es_medical.data.pixels import Pixels

    made = preparation.get("configuration", {})
    if made.get("measurements") != "real":
        kind = f"{made.get('command', 'an unknown command')}, measurements {made.get('measurements', 'unknown')}"
        raise PrepError(
            f"the weights were trained on data of another kind ({kind}): prepare the scan by `python -m data_prep` and "
            "give the slice file"
        )
    replaced = ("normalise", "mask", "encoded_lines")
    kept = {name: value for name, value in known_options(FastMRIOptions, preparation).items() if name not in replaced}
    lines = (preparation[name] for name in ("acceleration", "center_fraction", "encoded_lines"))
    own = {"slices": "all", "train": 1, "test": 0, "val": 0, "with_image": False, "size": tuple(preparation["size"])}
    own |= {"mask_from": GivenMask(asarray(preparation["measured"], bool), *lines)}
    own |= {"pixels": Pixels.kept(preparation)}
    own |= {"sigma": None, "added_noise": 0.0}  # the scan has its own noise, and needs no more
    return FastMRIOptions(**(kept | own))
