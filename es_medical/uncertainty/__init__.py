"""Intervals for images, calibrated without ground truth."""

from es_medical.uncertainty.bootstrap import EquivariantBootstrap, Estimator, Passes, Replica, Resampler
from es_medical.uncertainty.calibration import FILE, Calibration
from es_medical.uncertainty.coverage import LEVELS, Coverage, coverage, curve
from es_medical.uncertainty.distances import Distances, heldout_distances, image_distances, joined
from es_medical.uncertainty.intervals import IntervalInferer, Intervals, SelfCalibration, estimator, pixel_error, with_level
from es_medical.uncertainty.scale import Scale, heldout_scale, scaled

__all__ = [
    "FILE",
    "LEVELS",
    "Calibration",
    "Coverage",
    "Distances",
    "EquivariantBootstrap",
    "Estimator",
    "IntervalInferer",
    "Intervals",
    "Passes",
    "Replica",
    "Resampler",
    "Scale",
    "SelfCalibration",
    "coverage",
    "curve",
    "estimator",
    "heldout_distances",
    "heldout_scale",
    "image_distances",
    "joined",
    "pixel_error",
    "scaled",
    "with_level",
]
