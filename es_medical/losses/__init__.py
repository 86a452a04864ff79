from es_medical.losses.base import Loss, LossValue, Reconstructor, Weighting, mean_square
from es_medical.losses.build import METHODS, build_loss
from es_medical.losses.fidelity import MeasurementConsistency, Supervised
from es_medical.losses.splitting import EquivariantSplitting
from es_medical.losses.weighting import WEIGHTINGS, RampWeighting, build_weighting

__all__ = [
    "METHODS",
    "WEIGHTINGS",
    "EquivariantSplitting",
    "Loss",
    "LossValue",
    "MeasurementConsistency",
    "RampWeighting",
    "Reconstructor",
    "Supervised",
    "Weighting",
    "build_loss",
    "build_weighting",
    "mean_square",
]
