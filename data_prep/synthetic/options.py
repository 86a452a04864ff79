"""The options of `python -m data_prep synthetic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from data_prep.run.manifest import PrepError
from data_prep.run.options import WithImage, seed_option

PERIOD = 20  # of 20 slices, one is for validation and one for test


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions:
    """Options that decide what the file holds: see `python -m data_prep synthetic --help`.

    Raises:
        PrepError: too few slices for validation and test.
    """

    n: Annotated[int, typer.Option(help="Slices: of 20, 18 for training, 1 for validation and 1 for test.", min=PERIOD)] = 1500
    kind: Annotated[
        str,
        typer.Option(
            help="Kind of images: mr, mr_phase, ct, photograph, digit or leaves (docs/synthetic.md).",
            show_default="what resembles LIKE by its header",
        ),
    ] = "auto"
    seed: Annotated[int, seed_option("Seed of images and noise.")] = 0
    with_image: WithImage = True
    licence: str = "images drawn from random numbers by es_medical: Apache-2.0"

    def __post_init__(self) -> None:
        if self.n < PERIOD:
            raise PrepError(f"n {self.n}: expected at least {PERIOD}, of which one slice is for validation and one for test")
