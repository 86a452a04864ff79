from es_medical.physics.base import Operator, measure, recorruption
from es_medical.physics.line_masks import gaussian_line_mask
from es_medical.physics.mri import MRI
from es_medical.physics.multicoil import MultiCoilMRI, MultiCoilProtocol
from es_medical.physics.virtual import VirtualPhysics

__all__ = [
    "MRI",
    "MultiCoilMRI",
    "MultiCoilProtocol",
    "Operator",
    "VirtualPhysics",
    "gaussian_line_mask",
    "measure",
    "recorruption",
]
