from es_medical.losses.base import Loss, LossValue, Reconstructor, mean_square
from es_medical.losses.fidelity import MeasurementConsistency, Supervised
from es_medical.losses.splitting import EquivariantSplitting

__all__ = [
    "EquivariantSplitting",
    "Loss",
    "LossValue",
    "MeasurementConsistency",
    "Reconstructor",
    "Supervised",
    "mean_square",
]
