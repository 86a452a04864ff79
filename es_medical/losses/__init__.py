from es_medical.losses.base import Loss, LossValue, Reconstructor, Weighting, mean_product, mean_square
from es_medical.losses.build import build_loss
from es_medical.losses.equivariant_imaging import EquivariantImaging
from es_medical.losses.fidelity import MeasurementConsistency, Supervised, SupervisedOnSplits, Untrained
from es_medical.losses.photon import LOG_DOMAINS, PhotonSplitting
from es_medical.losses.splitting import EquivariantSplitting, SeveralSplits
from es_medical.losses.sure import Sure
from es_medical.losses.unsure import Unsure, attach_multiplier, noise_level_of
from es_medical.losses.weighting import WEIGHTINGS, FrequencyWeighting, RampWeighting, build_weighting

__all__ = [
    "LOG_DOMAINS",
    "WEIGHTINGS",
    "EquivariantImaging",
    "EquivariantSplitting",
    "FrequencyWeighting",
    "Loss",
    "LossValue",
    "MeasurementConsistency",
    "PhotonSplitting",
    "RampWeighting",
    "Reconstructor",
    "SeveralSplits",
    "Supervised",
    "SupervisedOnSplits",
    "Sure",
    "Unsure",
    "Untrained",
    "Weighting",
    "attach_multiplier",
    "build_loss",
    "build_weighting",
    "mean_product",
    "mean_square",
    "noise_level_of",
]
