"""The options of `data_prep sinogram`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from data_prep.run.manifest import PrepError
from data_prep.run.options import seed_option, test_option, train_option, val_option
from data_prep.run.splits import Shares


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
    reference: Annotated[
        bool, typer.Option("--reference", help="Keep a regularised least-squares image of all views as reference.")
    ] = False
    seed: Annotated[int, seed_option("Seed of the split.")] = 0
    train: Annotated[float, train_option("Files")] = 0.8
    test: Annotated[float, test_option("Files")] = 0.2
    val: Annotated[int | None, val_option("files")] = None

    def __post_init__(self) -> None:
        if self.slices not in {"middle", "all"}:
            self.rows(1)
        for name in ("pixel", "scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise PrepError(f"--{name} {value:g}: expected a positive number")

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
