"""Make the loss of a training method from its name."""

from es_medical.groups import Group, Rotations
from es_medical.groups.base import Transform
from es_medical.losses.base import Loss, Weighting
from es_medical.losses.equivariant_imaging import EquivariantImaging
from es_medical.losses.fidelity import MeasurementConsistency, Supervised
from es_medical.losses.splitting import EquivariantSplitting
from es_medical.losses.sure import Sure
from es_medical.losses.unsure import Unsure
from es_medical.losses.weighting import build_weighting
from es_medical.methods import TABLE, TRAINED, current_name
from es_medical.splits import Split


def build_loss(
    method: str,
    split: Split,
    sigma: float | None = 0.0,
    alpha: float = 0.5,
    consistency_weight: float = 1.0,
    sigma_factor: float = 1.0,
    weighting: str = "none",
    group: Group | Rotations | None = None,
    transform: Transform | None = None,
    noisy: bool | None = None,
    equivariance_weight: float = 1.0,
    tau: float | None = None,
) -> Loss:
    """Make the loss of a method; "_neq" names the same loss, for a network that is not equivariant.

    Args:
        method: "es" (equivariant splitting), "es_neq" (the same with an explicit g), "splitting" (the splitting loss
            alone), "supervised", "ei" (equivariant imaging), "ei_alternating" (the same in two passes a step, see
            `EquivariantImaging`), "sure", "unsure", or "mc" (measurement consistency).
        split: draws M1, for es, es_neq and splitting.
        sigma: noise level that es, ei and sure assume, 0 for the noiseless loss, None for that of each slice.
        alpha: recorruption strength of es.
        consistency_weight: weight of the consistency term of es.
        sigma_factor: factor by which es, ei and sure multiply sigma.
        weighting: of measurement residuals: "none", "ramp" along the detector of a sinogram, or "frequency" in k-space.
        group: group from which es draws an explicit g (or `Rotations`); None where the reconstructor is equivariant.
        transform: transformations that ei applies to images.
        noisy: False if all slices are known to be noiseless: sigma None then becomes 0, which saves ei and sure a pass. None
            or True leaves sigma unchanged.
        equivariance_weight: weight of the equivariance term of ei.
        tau: step of the divergence in ei, sure and unsure, in the units of y; None is a tenth of the noise level.

    Raises:
        ValueError: an unknown method or weighting (the message lists the valid ones), or a method lacks its group or transform.
    """
    if current_name(method) not in TRAINED:
        raise ValueError(f"unknown method {method!r}: choose one of {', '.join(TRAINED)}")
    weigh = build_weighting(weighting)
    level = 0.0 if sigma is None and noisy is False else sigma
    method = current_name(method)
    family = TABLE[method].loss
    if method == "es_neq" and group is None:
        raise ValueError("method es_neq draws an explicit g for a network that is not equivariant: give a group")
    if family == "splitting":
        return EquivariantSplitting(split, level, alpha, consistency_weight, group, sigma_factor, weigh)
    if family == "ei":
        alternating = method == "ei_alternating"
        return _equivariant_imaging(transform, equivariance_weight, level, tau, sigma_factor, weigh, alternating)
    if family == "sure":
        return Sure(level, tau, sigma_factor, weigh)
    if family == "unsure":
        return Unsure(tau, weigh)
    return Supervised() if family == "supervised" else MeasurementConsistency(weigh)


def _equivariant_imaging(
    transform: Transform | None,
    weight: float,
    sigma: float | None,
    tau: float | None,
    sigma_factor: float,
    weighting: Weighting | None,
    alternating: bool,
) -> EquivariantImaging:
    if transform is None:
        raise ValueError("equivariant imaging needs a transform of images: Shifts, FineRotations or a group")
    return EquivariantImaging(transform, weight, sigma, tau, sigma_factor, weighting, alternating)
