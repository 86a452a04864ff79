"""The knobs of `data_prep fastmri`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from data_prep.mri.fastmri_file import Chosen, Coils, Target
from data_prep.mri.normalisation import Normalisation
from data_prep.run.manifest import PrepError
from data_prep.run.splits import Shares
from es_medical.data import read_header

Measurements = Literal["synthetic", "real"]

SYNTHETIC_SIGMA = 0.005


@dataclass(frozen=True)
class Options:
    """Knobs that decide what the file holds: see `python -m data_prep fastmri --help`.

    `mask` is a given sampling mask, one 0 or 1 for each column, in place of a drawn one; `encoded_lines` is the number of
    columns that its acceleration and centre are shares of. `size` is one side of the grid, or both.
    """

    slices: Chosen = "middle"
    acceleration: float = 8
    center_fraction: float = 0.03
    sigma: float | None = None
    seed: int = 0
    train: float = 900
    test: float = 73
    val: int | None = None
    size: int | tuple[int, int] | None = None
    coils: Coils = "single"
    target: Target = "auto"
    normalise: Normalisation = "slice"
    with_image: bool = True
    mask_seed: int | None = None
    measurements: Measurements = "synthetic"
    added_noise: float = 0.0
    virtual_coils: int = 8
    whiten: bool = True
    native_width: bool = False
    mask: str = ""
    encoded_lines: int = 0

    def __post_init__(self) -> None:
        if self.measurements == "synthetic" and self.sigma is None:
            object.__setattr__(self, "sigma", SYNTHETIC_SIGMA)

    def check(self, normalise: Normalisation | None = None) -> None:
        """Refuse knobs of the other kind of measurements: `normalise` as it was given, None for not at all.

        Raises:
            PrepError: a knob that would have no effect, or a number that is not finite.
        """
        for name in ("acceleration", "sigma", "added_noise", "train", "test"):
            if not math.isfinite(getattr(self, name) or 0):
                raise PrepError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected a finite number")
        real = {
            "--added-noise": self.added_noise > 0,
            "--virtual-coils": self.virtual_coils != Options.virtual_coils,
            "--no-whiten": not self.whiten,
            "--native-width": self.native_width,
            "--mask-from": self.mask != "",
        }
        synthetic = {"--normalise": normalise is not None, "--target esc": self.target == "esc"}
        single = {"--target rss": self.target == "rss" and self.coils == "single"}
        wrong = synthetic | single if self.measurements == "real" else real
        given = [name for name, is_given in wrong.items() if is_given]
        if given:
            raise PrepError(f"{', '.join(given)}: without effect on --measurements {self.measurements} --coils {self.coils}")

    def with_mask_of(self, path: Path) -> Options:
        """These knobs with the sampling mask of a slice file; see `read_header` for the errors."""
        header = read_header(path)
        mask = "".join("01"[bool(one)] for one in header.mask.tolist())
        lines = header.encoded_lines or len(mask)
        return replace(
            self, mask=mask, acceleration=header.acceleration, center_fraction=header.center_fraction, encoded_lines=lines
        )

    @property
    def shares(self) -> Shares:
        """Volumes for each split."""
        return Shares(self.train, self.test, self.val)
