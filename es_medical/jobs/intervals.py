"""Intervals in a bundle's inference: which ones, and how many times wider the calibration makes them."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from es_medical.data import file_digest
from es_medical.engine.checkpoint import BEST
from es_medical.engine.config import positive_int
from es_medical.engine.identity import changed
from es_medical.groups import Group
from es_medical.inferers import Inferer, complete
from es_medical.methods import current_name
from es_medical.uncertainty import FILE, Calibration, EquivariantBootstrap, IntervalInferer, SelfCalibration

logger = logging.getLogger(__name__)

CALIBRATIONS = ("scan", "file", "none")

FEWER = 8
"""Resampled images for each fold of held-out measurements: each element of D4 once."""

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
    """Give an inferer intervals of a nominal level; None leaves it as it is.

    Args:
        inferer: makes the reconstructions.
        group: of the bootstrap.
        level: nominal level, for example 0.9.
        n_bootstrap: reconstructions that are resampled for each item; each costs as much as the reconstruction itself.
        ckpt_dir: folder of the weights.
        calibrate_by: "scan" widens the intervals of each slice by its own held-out measurements (`heldout_scale`; 45 more
            reconstructions), "file" all alike by the factor in `calibration.json` beside the weights, "none" not at all.
        method: of the weights; a file of another method calibrates nothing.

    Raises:
        ValueError: a level or number out of range, another word, or a file that is not of these weights and this inferer.
        FileNotFoundError: there is no file.
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
    """Read the factor of intervals from a file that `CalibrationJob` wrote, once it is of these settings.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is of something else, or its factor is infinite.
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
    """Return what a calibration is valid for: the weights, how they reconstruct, and the group."""
    own = {"method": current_name(method), "group": type(group).__name__, "n_samples": inferer.n_samples}
    own |= {"whole_group": inferer.whole_group, "weights": file_digest(Path(ckpt_dir) / BEST)}
    return own | dict(inferer.settings)


def check_settings(path: Path, kept: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise ValueError where a calibration was made with other weights or settings; the message names what differs."""
    different = [f"{name} {before} and {now}" for name, (before, now) in changed(complete(kept), given).items()]
    if different:
        raise ValueError(f"{path} was made for something else ({'; '.join(different)}): calibrate anew by {CALIBRATE}")
