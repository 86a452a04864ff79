from es_medical.networks.artifact_removal import ArtifactRemoval
from es_medical.networks.denoisers import Accelerated, unet
from es_medical.networks.interpolation import Biharmonic
from es_medical.networks.learning_free import Penalised, PseudoInverse, Tikhonov, TotalVariation, learning_free
from es_medical.networks.modl import MoDL
from es_medical.networks.reynolds import ReynoldsAveraging
from es_medical.networks.shift_equivariant import ShiftUNet, shift_unet

__all__ = [
    "Accelerated",
    "ArtifactRemoval",
    "Biharmonic",
    "MoDL",
    "Penalised",
    "PseudoInverse",
    "ReynoldsAveraging",
    "ShiftUNet",
    "Tikhonov",
    "TotalVariation",
    "learning_free",
    "shift_unet",
    "unet",
]
