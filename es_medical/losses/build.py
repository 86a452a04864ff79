"""The training methods by name."""

from es_medical.groups import Group, Rotations
from es_medical.losses.base import Loss
from es_medical.losses.fidelity import MeasurementConsistency, Supervised
from es_medical.losses.splitting import EquivariantSplitting
from es_medical.losses.weighting import build_weighting
from es_medical.splits import Split

METHODS = ("es", "supervised", "mc")


def build_loss(
    method: str,
    split: Split,
    sigma: float | None = 0.0,
    alpha: float = 0.5,
    consistency_weight: float = 1.0,
    sigma_factor: float = 1.0,
    weighting: str = "none",
    group: Group | Rotations | None = None,
) -> Loss:
    """Make the loss of a method.

    Args:
        method: "es" (equivariant splitting), "supervised", or "mc" (measurement consistency).
        split: draws M1, for es.
        sigma: noise level that es assumes, 0 for the noiseless loss, None for that of each slice.
        alpha: recorruption strength of es.
        consistency_weight: weight of the consistency term of es.
        sigma_factor: what es multiplies sigma by.
        weighting: of the residuals of es and mc: "none", or "ramp" along the detector of a sinogram.
        group: what es draws an explicit g from (`Rotations`); None where the reconstructor is equivariant.

    Raises:
        ValueError: an unknown method or weighting; the message lists the valid ones.
    """
    weigh = build_weighting(weighting)
    if method == "es":
        return EquivariantSplitting(split, sigma, alpha, consistency_weight, group, sigma_factor, weigh)
    if method == "supervised":
        return Supervised()
    if method == "mc":
        return MeasurementConsistency(weigh)
    raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
