"""Equivariant splitting: image-reconstruction networks trained from the measurements of one operator, without ground truth.

The names here are those that a script needs (docs/tutorials); each is imported when it is first used.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from es_medical.diagnostics.explanation import diagnose_operator
    from es_medical.groups import D4, Flips, Shifts
    from es_medical.inferers import Inferer
    from es_medical.losses import EquivariantSplitting
    from es_medical.metrics import psnr
    from es_medical.networks import MoDL, ReynoldsAveraging, TotalVariation, unet
    from es_medical.output.slices import write_slices
    from es_medical.physics import CT, MRI, Batch, Inpainting, MaskedPhysics, MultiCoilMRI, gaussian_line_mask, measure
    from es_medical.splits import Split

__all__ = [
    "CT",
    "D4",
    "MRI",
    "Batch",
    "EquivariantSplitting",
    "Flips",
    "Inferer",
    "Inpainting",
    "MaskedPhysics",
    "MoDL",
    "MultiCoilMRI",
    "ReynoldsAveraging",
    "Shifts",
    "Split",
    "TotalVariation",
    "diagnose_operator",
    "gaussian_line_mask",
    "measure",
    "psnr",
    "unet",
    "write_slices",
]

_ROOMS = {
    "diagnostics.explanation": ("diagnose_operator",),
    "groups": ("D4", "Flips", "Shifts"),
    "inferers": ("Inferer",),
    "losses": ("EquivariantSplitting",),
    "metrics": ("psnr",),
    "networks": ("MoDL", "ReynoldsAveraging", "TotalVariation", "unet"),
    "output.slices": ("write_slices",),
    "physics": ("CT", "MRI", "Batch", "Inpainting", "MaskedPhysics", "MultiCoilMRI", "gaussian_line_mask", "measure"),
    "splits": ("Split",),
}

try:
    __version__ = version("es_medical")
except PackageNotFoundError:  # a source tree that was not installed, as on a bare GPU machine
    __version__ = "0.0.0+source"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any attribute
    """Import a name when it is first asked for: `import es_medical` alone loads no torch."""
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"es_medical.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names of the module, for completion."""
    return sorted({*globals(), *__all__})
