"""The options of `data_prep sinogram`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from data_prep.run.manifest import OMIT_NONE, PrepError
from data_prep.run.options import CommandLineType, Licence, known_options, seed_option, test_option, train_option, val_option
from data_prep.run.splits import Shares
from data_prep.sinogram.geometry_file import Setup, read_geometry


@dataclass(frozen=True, kw_only=True)
class SinogramOptions:
    """Options that decide what the file holds: see `python -m data_prep sinogram --help`.

    Raises:
        PrepError: a number that cannot be.
    """

    size: Annotated[int, typer.Option(help="Rows and columns of the image.", min=16)] = 256
    pixel: Annotated[
        float | None,
        typer.Option(help="Width of a pixel in mm (in bins where their width is unknown).", show_default="the whole field"),
    ] = None
    views: Annotated[
        int | None, typer.Option(help="Number of views of the acquisition, evenly taken.", min=1, show_default="all")
    ] = None
    merge: Annotated[
        int | None,
        typer.Option(help="Neighbouring bins that are averaged to one.", min=1, show_default="as many as fit in half a pixel"),
    ] = None
    slices: Annotated[str, typer.Option(help="Detector rows of each file: `middle`, `all`, or `every:N` about the middle.")] = (
        "all"
    )
    scale: Annotated[
        float | None,
        typer.Option(
            help="Attenuation in 1/cm (1/bin where the bins' width is unknown) that is stored as 1.",
            show_default="so that images fill about [0, 1]",
        ),
    ] = None
    water: Annotated[float | None, typer.Option(help="Attenuation of water in 1/cm: images are then in Hounsfield units.")] = (
        None
    )
    geometry: Annotated[
        Mapping[str, Any] | None,
        CommandLineType(Path | None),
        typer.Option(help="YAML file that says what the files do not (a template: --example-geometry)."),
    ] = None
    centre: Annotated[
        str | None,
        typer.Option(
            help="Centre of rotation: a bin, counted from 0 (296.0), or `auto`, estimated.",
            show_default="what the file or geometry says, else auto",
        ),
    ] = None
    floor: Annotated[float, typer.Option(help="Counts, less the dark field, at or below which a ray is not used.", min=0)] = 0.0
    dead: Annotated[
        str | None,
        typer.Option(help="Bins that are not used, as 314,346; others that stand out are found.", show_default="none"),
    ] = None
    outliers: Annotated[
        float,
        typer.Option(help="Mask rays with more radiation than all around, by so many times the noise; 0 masks none.", min=0),
    ] = 20.0
    air_offset: Annotated[
        str | None,
        typer.Option(help="Line integral to subtract: what air reads, or `auto`, measured at both ends of the detector."),
    ] = None
    beam_hardening: Annotated[
        str | None,
        typer.Option(
            help="A2,A3,...: replace line integrals p by p + A2 p^2 + A3 p^3 ..., the curve of one material.",
            show_default="none",
        ),
    ] = None
    rings: Annotated[
        int,
        typer.Option(
            help="Remove rings: neighbouring bins that each is compared with in all views, e.g. 9; 0 for none.", min=0
        ),
    ] = 0
    noise: Annotated[
        Literal["fit", "detector"],
        typer.Option(
            help="Noise level of a slice. detector: of the counts, else of neighbouring views. fit: the larger of that and "
            "what no image explains: noise, and mismatch of scanner and operator."
        ),
    ] = "fit"
    reference: Annotated[
        bool, typer.Option("--reference", help="Keep a regularised least-squares image of all views as reference.")
    ] = False
    seed: Annotated[int, seed_option("Seed of the split.")] = 0
    train: Annotated[float, train_option("Files")] = 0.8
    test: Annotated[float, test_option("Files")] = 0.2
    val: Annotated[int | None, val_option("files")] = None
    licence: Licence = field(default=None, metadata=OMIT_NONE)

    def __post_init__(self) -> None:
        if self.slices not in {"middle", "all"}:
            self.rows(1)
        if isinstance(self.geometry, Path):
            object.__setattr__(self, "geometry", read_geometry(self.geometry))
        _ = self.dead_bins, self.powers
        for name in ("pixel", "scale", "water"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise PrepError(f"--{name} {value:g}: expected a positive number")
        for name in ("centre", "air_offset"):
            value = getattr(self, name)
            if value not in (None, "auto") and not _is_number(value):
                raise PrepError(f"--{name.replace('_', '-')} {value}: expected a number, or auto")

    @property
    def setup(self) -> Setup:
        """What the geometry file says."""
        return Setup(**(self.geometry or {}))

    @property
    def dead_bins(self) -> tuple[int, ...]:
        """The bins of --dead."""
        return tuple(int(bin) for bin in _numbers("--dead", self.dead))

    @property
    def powers(self) -> tuple[float, ...]:
        """The factors of p^2, p^3 ... of --beam-hardening."""
        return _numbers("--beam-hardening", self.beam_hardening)

    def rows(self, n: int) -> tuple[int, ...]:
        """The detector rows to take of n.

        >>> SinogramOptions(slices="every:2").rows(5), SinogramOptions(slices="middle").rows(4)
        ((0, 2, 4), (2,))
        """
        from data_prep.ct.series import step_of

        if self.slices == "middle":
            return (n // 2,)
        step = 1 if self.slices == "all" else step_of(self.slices)
        return tuple(range(n // 2 % step, n, step))

    @property
    def shares(self) -> Shares:
        """Number or share of files for each split."""
        return Shares(self.train, self.test, self.val)


def options_of_training(preparation: Mapping[str, Any]) -> SinogramOptions:
    """Options that prepare all slices of a scan as the training data were, with their pixels and scale, without reference.

    Args:
        preparation: how the data of the weights was made (see `es_medical.engine.training_data.preparation`).

    Raises:
        PrepError: the weights do not hold the scale of their training.
    """
    units = preparation.get("units")
    if units is None:
        raise PrepError("the weights do not hold the units of their training: prepare the scan by `data_prep sinogram --scale`")
    kept = known_options(SinogramOptions, preparation)
    own = {"slices": "all", "reference": False, "train": 1, "test": 0, "val": 0}
    return SinogramOptions(**(kept | own | {name: units[name] for name in ("scale", "pixel")}))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _numbers(option: str, given: str | None) -> tuple[float, ...]:
    """The numbers of "314,346"."""
    words = [word.strip() for word in (given or "").split(",") if word.strip()]
    if wrong := [word for word in words if not _is_number(word)]:
        raise PrepError(f"{option} {given}: {wrong[0]!r} is no number; expected numbers with commas between")
    return tuple(map(float, words))
