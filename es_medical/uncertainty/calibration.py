"""Calibration without ground truth: by what factor the resampled intervals are too narrow, on held-out measurements."""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from es_medical.uncertainty.coverage import check_level
from es_medical.uncertainty.distances import Distances

SCHEMA = 1
FILE = "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """Factors that give intervals of error norms nominal coverage (split-conformal; Romano et al. 2019, Angelopoulos 2021).

    For n calibration items with errors e_i of held-out measurements and root mean squares r_i of resampled distances:

        factor(p) = the ceil((n + 1) p)-th smallest of e_i / r_i.

    For another item of the same kind, e <= factor(p) r then holds with probability at least p, however good the network and the
    resampling are, for errors of held-out measurements. For the error of the whole image it holds under one
    assumption, which no measurement can test: **resampling is as much too narrow outside the measured set as it is on the
    held-out part of it**, entries weighted by how many they represent.

    Attributes:
        distances: of the calibration items, over held-out measurements.
        settings: settings that they were found with; intervals made with others need another calibration.
    """

    distances: Distances
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of calibration items."""
        return len(self.distances.error)

    @property
    def highest_level(self) -> float:
        """Highest level for which n items suffice, n / (n + 1); above it the factor is that of this level."""
        return self.n / (self.n + 1)

    def factor(self, level: float) -> float:
        """Return the factor on the root mean square of resampled distances.

        Raises:
            ValueError: a level out of range.
        """
        check_level(level)
        ratios = torch.where(self.distances.error > 0, self.distances.error / self.distances.root_mean_square, 0.0)
        rank = min(math.ceil((self.n + 1) * level - 1e-9), self.n)  # 0.9 (n + 1) may be a whole number up to rounding
        return float(ratios.sort().values[rank - 1])

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        content = {
            "schema": SCHEMA,
            "settings": dict(self.settings),
            "error": self.distances.error.tolist(),
            "resampled": self.distances.resampled.tolist(),
        }
        path.write_text(json.dumps(content | {"checksum": _checksum(content)}, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read the file that `save` wrote.

        Raises:
            FileNotFoundError: there is no file.
            ValueError: the file is no calibration of this version.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as cause:
            raise ValueError(f"{path} is damaged ({cause}): calibrate anew") from cause
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"{path} is no calibration of schema {SCHEMA}: calibrate anew")
        if content.pop("checksum", _checksum(content)) != _checksum(content):
            raise ValueError(f"{path} is not what was written: calibrate anew")
        error, resampled = (torch.tensor(content[name], dtype=torch.float64) for name in ("error", "resampled"))
        return cls(Distances(error, resampled), content["settings"])


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(dict(content), sort_keys=True).encode())
