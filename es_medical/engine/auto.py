"""Settings that follow from the data: what the value `auto` of a knob stands for, from the measurements alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import default_collate

from es_medical.data import SliceDataset, read_header
from es_medical.losses import build_weighting
from es_medical.physics import Batch, Operator
from es_medical.physics.base import noise_level, recorruption

SLICES = 32
"""Training slices that are read, spread evenly over the file."""

CLEAR = 20.0
"""Ratio of signal to noise (amplitudes; 26 dB) from which measurements count as clear: halfway, in dB, between the MRI demos of
noise 0.028 and 0.005, which want different settings (docs/results.md)."""

HELD = 10.0
"""Power of the signal over that of the noise in W y (10 dB) from which predicting held-out measurements teaches most."""

PRIOR = 0.2
"""Error of the denoiser's image relative to the image, in the first steps of a training."""

STEPS = (1.0, 100.0)
"""Smallest and largest initial step gamma."""


class Evidence(NamedTuple):
    """What the rule reads in the measurements.

    Attributes:
        ratio: rms of the images that `Operator.initial` makes, on the pixels that it reaches and without the noise in them,
            over the noise level; inf without noise.
        weighting: the weighting W that residuals of this operator can have, "frequency" or "ramp"; "none" if it has none.
        weighted: power of the signal over power of the noise in W y; inf without noise.
    """

    ratio: float
    weighting: str
    weighted: float


class Choice(NamedTuple):
    """The value of one knob, and the reason in words."""

    value: float | str | bool
    why: str


@dataclass(frozen=True)
class Settings:
    """Values in force of the knobs that can follow from the data.

    Attributes:
        split_ratio: share of the measured units that the network sees.
        eval_split_input: whether images are averages over splits.
        consistency_weight: weight of the consistency term of the splitting losses.
        weighting: weighting of the measurement residuals.
        step: initial step gamma of the unrolled network.
        why: knob -> the reason, for those that were `auto`.
    """

    split_ratio: float
    eval_split_input: bool
    consistency_weight: float = 1.0
    weighting: str = "none"
    step: float = 1.0
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def chosen(self) -> dict[str, float | str | bool]:
        """The values of the knobs that were `auto`."""
        return {name: getattr(self, name) for name in self.why}


def choose(evidence: Evidence, warm: bool = False) -> dict[str, Choice]:
    """Choose the knobs from what the measurements show.

    With the image's rms a and the noise level sigma (both in the units of y, for an operator of norm 1):

    - step = (PRIOR a / sigma)^2, within STEPS: in the proximal step, argmin gamma |A x - y|^2 + |x - z|^2, gamma is the ratio
      of the variances of z's error and of the noise (Venkatakrishnan et al., GlobalSIP 2013, on plug-and-play priors).
    - weighting: the operator's own if the signal has more power in W y than the noise; else W would teach the noise first.
    - split_ratio: 0.9 for clear measurements, a / sigma >= CLEAR, else the paper's 0.8.
    - consistency_weight: 0.1 if the signal in W y is HELD times the noise in power: what was not seen can be predicted. Else
      most of it is noise, and what can be learnt is denoising, which the consistency term teaches: 4, the paper's plain sum
      s / (1 - s) over all measurements.
    - eval_split_input: images from all of y, but for noisy measurements only after a warm start and with an average over a
      group. A network that was trained on splits alone knows their noise and not the smaller one of y, which a warm start has
      shown it too; without a group an image from all of y is a single pass, and the average over splits has less noise.

    Args:
        evidence: what was measured.
        warm: whether the training has a warm start, and images from all of y are averages over a group.

    >>> {name: choice.value for name, choice in choose(Evidence(50.6, "frequency", 128.5)).items()}
    {'split_ratio': 0.9, 'eval_split_input': False, 'consistency_weight': 0.1, 'weighting': 'frequency', 'step': 100.0}
    >>> {name: choice.value for name, choice in choose(Evidence(2.5, "frequency", 0.3), warm=True).items()}
    {'split_ratio': 0.8, 'eval_split_input': False, 'consistency_weight': 4.0, 'weighting': 'none', 'step': 1.0}
    """
    clear, level = evidence.ratio >= CLEAR, f"signal / noise {_decibels(evidence.ratio**2)}"
    limit = f"{level}, {'at least' if clear else 'below'} {_decibels(CLEAR**2)}"
    start = f", {'with' if warm else 'not with'} a warm start and an average over a group" * (not clear)
    step = min(max((PRIOR * evidence.ratio) ** 2, STEPS[0]), STEPS[1])
    return {
        "split_ratio": Choice(0.9 if clear else 0.8, limit),
        "eval_split_input": Choice(not clear and not warm, limit + start),
        "consistency_weight": _consistency(evidence),
        "weighting": _weighting(evidence),
        "step": Choice(
            float(f"{step:.2g}"), f"{level}; (signal / noise / {1 / PRIOR:g})^2 within {STEPS[0]:g} and {STEPS[1]:g}"
        ),
    }


def _consistency(evidence: Evidence) -> Choice:
    of = "" if evidence.weighting == "none" else f" weighted by {evidence.weighting}"
    clear, limit = evidence.weighted >= HELD, _decibels(HELD)
    why = f"signal / noise of measurements{of} {_decibels(evidence.weighted)}, {'at least' if clear else 'below'} {limit}"
    return Choice(0.1 if clear else 4.0, why)


def _weighting(evidence: Evidence) -> Choice:
    name, power = evidence.weighting, evidence.weighted
    if name == "none":
        return Choice(name, "these measurements have no weighting")
    used = power > 1
    why = f"signal / noise of measurements weighted by {name} {_decibels(power)}, {'above' if used else 'not above'} 0 dB"
    return Choice(name if used else "none", why)


def evidence(data_file: str, physics: Operator, sigma: float | None = None, sigma_factor: float = 1.0) -> Evidence:
    """Measure signal and noise in the training slices of a file; no image is read.

    Noise is drawn at the assumed level and taken through the same linear maps, so that its part can be subtracted. With a
    Gaussian matrix A^T y is larger than the image by a factor of sqrt(1 + n / m), which counts as signal.

    Args:
        data_file: HDF5 file of slices (schema 1).
        physics: its operator.
        sigma: assumed noise level; None for that of each slice.
        sigma_factor: factor that multiplies sigma.
    """
    training = read_header(data_file).splits.get("train", 0) > 0  # a file to diagnose may have none
    dataset = SliceDataset(data_file, "train" if training else None, with_image=False, limit=SLICES)
    name = weighting_of(physics)
    weigh = build_weighting(name) or (lambda residual: residual)
    image, image_noise, unit, weighted, weighted_noise = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(dataset)):
        batch = Batch.of(default_collate([dataset[i]]), physics, physics.mask.device)
        a, assumed = batch.physics, sigma_factor * noise_level(sigma, batch.sigma)
        omega = recorruption(a, batch.y, assumed, batch.generators(0, "auto"))
        noise = a.initial(omega)
        image, image_noise = image + _power(a.initial(batch.y)), image_noise + _power(noise)
        unit += float(assumed) ** 2 * int((noise != 0).sum())
        weighted, weighted_noise = weighted + _power(weigh(a.mask * batch.y)), weighted_noise + _power(weigh(omega))
    return Evidence(math.sqrt(_ratio(image, image_noise, unit)), name, _ratio(weighted, weighted_noise, weighted_noise))


def weighting_of(physics: Operator) -> str:
    """Return the weighting that residuals of an operator can have: "frequency" of k-space, "ramp" of sinograms, else "none"."""
    return {"lines": "frequency", "views": "ramp"}.get(physics.units[0] if physics.units else "", "none")


def _ratio(total: float, noise: float, unit: float) -> float:
    """(total - noise) / unit, at least 0; inf without noise."""
    return max(total - noise, 0.0) / unit if unit > 0 else math.inf


def _power(x: Tensor) -> float:
    return float(x.square().sum())


def _decibels(power: float) -> str:
    return "without limit (no noise)" if math.isinf(power) else f"{10 * math.log10(max(power, 1e-9)):.1f} dB"
