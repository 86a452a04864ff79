from es_medical.losses.base import Loss, LossValue, Reconstructor, mean_square
from es_medical.losses.build import METHODS, build_loss
from es_medical.losses.fidelity import MeasurementConsistency, Supervised
from es_medical.losses.splitting import EquivariantSplitting

__all__ = [
    "METHODS",
    "EquivariantSplitting",
    "Loss",
    "LossValue",
    "MeasurementConsistency",
    "Reconstructor",
    "Supervised",
    "build_loss",
    "mean_square",
]
