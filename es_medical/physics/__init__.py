from typing import Any

from es_medical.physics.base import Operator, measure, recorruption
from es_medical.physics.line_masks import gaussian_line_mask
from es_medical.physics.mri import MRI
from es_medical.physics.multicoil import MultiCoilMRI, MultiCoilProtocol
from es_medical.physics.virtual import VirtualPhysics

__all__ = [
    "CT",
    "MRI",
    "MultiCoilMRI",
    "MultiCoilProtocol",
    "Operator",
    "VirtualPhysics",
    "gaussian_line_mask",
    "measure",
    "recorruption",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any attribute
    """Import CT when it is first asked for: it needs scipy's sparse matrices."""
    if name == "CT":
        from es_medical.physics.ct import CT

        return CT
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
