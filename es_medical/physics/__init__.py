from typing import Any

from es_medical.physics.base import Operator, measure, recorruption
from es_medical.physics.batch import Batch
from es_medical.physics.compressed_sensing import CompressedSensing, gaussian_matrix
from es_medical.physics.masked import MaskedPhysics
from es_medical.physics.masks import bernoulli_mask, even_columns, gaussian_line_mask, random_columns
from es_medical.physics.mri import MRI
from es_medical.physics.multicoil import MultiCoilMRI, MultiCoilProtocol
from es_medical.physics.pixels import Decimation, Inpainting
from es_medical.physics.virtual import VirtualPhysics

__all__ = [
    "CT",
    "MRI",
    "Batch",
    "CompressedSensing",
    "Decimation",
    "Inpainting",
    "MaskedPhysics",
    "MultiCoilMRI",
    "MultiCoilProtocol",
    "Operator",
    "VirtualPhysics",
    "bernoulli_mask",
    "even_columns",
    "gaussian_line_mask",
    "gaussian_matrix",
    "measure",
    "random_columns",
    "recorruption",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any attribute
    """Import CT when it is first asked for: it needs scipy's sparse matrices."""
    if name == "CT":
        from es_medical.physics.ct import CT

        return CT
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
