"""Intervals in a bundle's inference: their kind, and the factor by which calibration widens them."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from es_medical.data import file_digest
from es_medical.engine.checkpoint import BEST
from es_medical.engine.config import positive_int
from es_medical.engine.weights.identity import changed
from es_medical.groups import Group
from es_medical.inferers import Inferer, complete
from es_medical.methods import current_name
from es_medical.uncertainty import FILE, Calibration, EquivariantBootstrap, IntervalInferer, SelfCalibration

logger = logging.getLogger(__name__)

CALIBRATIONS = ("scan", "file", "none")

FEWER = 8
"""Number of resampled images for each fold of held-out measurements: one per element of D4."""

CALIBRATE = "python -m monai.bundle run --config_file \"['configs/train.yaml','configs/calibrate.yaml']\""


def with_intervals(
    inferer: Inferer,
    group: Group,
    level: float | None,
    n_bootstrap: float,
    ckpt_dir: str | Path,
    calibrate_by: str = "scan",
    method: str = "network",
) -> Inferer | IntervalInferer:
    """Add intervals of a nominal level to an inferer; with level None, return the inferer unchanged.

    Args:
        inferer: makes the reconstructions.
        group: group of the bootstrap.
        level: nominal level, for example 0.9.
        n_bootstrap: number of resampled reconstructions per slice; each costs as much as the reconstruction itself.
        ckpt_dir: folder of the weights.
        calibrate_by: "scan" widens the intervals of each slice by its own held-out measurements (`heldout_scale`; 45 more
            reconstructions), "file" widens all by the factor in `calibration.json` next to the weights, "none" widens none.
        method: method of the weights; a calibration of another method is refused.

    Raises:
        ValueError: a level or number out of range, another `calibrate_by`, or a calibration of other weights or settings.
        FileNotFoundError: there is no calibration file.
    """
    if calibrate_by not in CALIBRATIONS:
        raise ValueError(f"calibrate_by must be {', '.join(CALIBRATIONS)}, got {calibrate_by!r}")
    if level is None:
        return inferer
    bootstrap = EquivariantBootstrap(group, positive_int("n_bootstrap", n_bootstrap), inferer.seed, inferer.transmission)
    if calibrate_by == "file":
        settings = interval_settings(inferer, group, ckpt_dir, method)
        return IntervalInferer(inferer, bootstrap, level, read_factor(Path(ckpt_dir) / FILE, level, settings))
    if calibrate_by == "none":
        logger.warning("intervals are not calibrated: those of the bootstrap are often too narrow")
        return IntervalInferer(inferer, bootstrap, level)
    fewer = EquivariantBootstrap(group, FEWER, inferer.seed, inferer.transmission)
    return IntervalInferer(inferer, bootstrap, level, by_itself=SelfCalibration(fewer, seed=inferer.seed))


def read_factor(path: Path, level: float, settings: Mapping[str, Any]) -> float:
    """Read the factor of intervals from a file of `CalibrationJob`, after checking that its settings are these.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it was made with other settings, or its factor is infinite.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: calibrate by {CALIBRATE}, or let each slice calibrate itself: --calibrate_by scan")
    calibration = Calibration.load(path)
    check_settings(path, calibration.settings, settings)
    factor = calibration.factor(level)
    if not math.isfinite(factor):
        raise ValueError(f"{path} has an infinite factor: its resampled images do not vary; calibrate with another group")
    if level > calibration.highest_level:
        text = "%d calibration items are enough for levels up to %.3g, %g is asked for: intervals may be too narrow"
        logger.warning(text, calibration.n, calibration.highest_level, level)
    logger.info(
        "intervals of level %g: %.3g times the mean error of the bootstrap, calibrated on %d items",
        level,
        factor,
        calibration.n,
    )
    return factor


def interval_settings(inferer: Inferer, group: Group, ckpt_dir: str | Path, method: str) -> dict[str, Any]:
    """Return the settings that a calibration is valid for: weights, method, settings of the inferer, and group."""
    own = {"method": current_name(method), "group": type(group).__name__, "n_samples": inferer.n_samples}
    own |= {"whole_group": inferer.whole_group, "weights": file_digest(Path(ckpt_dir) / BEST)}
    return own | dict(inferer.settings)


def check_settings(path: Path, kept: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise ValueError if a calibration was made with other weights or settings; the message names what differs."""
    different = [f"{name} {before} and {now}" for name, (before, now) in changed(complete(kept), given).items()]
    if different:
        raise ValueError(f"{path} was made for something else ({'; '.join(different)}): calibrate anew by {CALIBRATE}")
