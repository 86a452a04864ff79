from es_medical.networks.modl import MoDL
from es_medical.networks.reynolds import ReynoldsAveraging
from es_medical.networks.unet import Accelerated, unet

__all__ = ["Accelerated", "MoDL", "ReynoldsAveraging", "unet"]
