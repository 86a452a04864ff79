"""Photon-limited CT: counts behind an object, and the sinogram that they are logged to."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from es_medical.physics.noise import Pair, Poisson, target_share
from es_medical.types import Generator, Measurement, PerItem

WATER = 0.0193
"""Linear attenuation of water at 70 keV, 1/mm (NIST XCOM)."""
FIELD = 400.0
"""Side of the field of view of simulated scans, mm: one for all slices, so that one number says what a sinogram attenuates."""
BRIGHTEST = 2 * WATER
"""Attenuation of an image of 1, which is +1000 HU, 1/mm; 0 is air."""
MOST_PHOTONS = 1e7
"""Counts up to here are found again from a sinogram in float32: rounding moves N by N ln(I0 / N) 2^-24, at most 0.22."""
COUNTED = "transmission"
"""What `to_dict` is called beside a scanner's geometry in a slice file."""
ZERO = 0.75
"""Counts found again below this are 0: no count lies between 1 and the half that replaces 0."""


@dataclass(frozen=True)
class Transmission:
    """N ~ Poisson(I0 exp(-c A x)) counts on each ray, c the attenuation of a sinogram of 1; the sinogram y = -ln(N / I0) / c.

    y is in the units of A x. A ray without a photon has no logarithm: it is logged as if half a photon had come, which stands
    for 0 counts wherever counts are found again. y has approximately independent Gaussian noise of variance 1 / (c^2 N).

    Attributes:
        photons: I0, photons on a ray through air.
        attenuation: c.

    Raises:
        ValueError: I0 is not between 1 and 10^7, or the attenuation not positive and finite.

    >>> Transmission(1000.0, 2.0).post_log(torch.tensor([[1000.0, 0.0]]))
    tensor([[-0.0000, 3.8005]])
    """

    photons: float
    attenuation: float

    def __post_init__(self) -> None:
        if not 1 <= self.photons <= MOST_PHOTONS:
            raise ValueError(f"photons must lie between 1 and {MOST_PHOTONS:g}, got {self.photons:g}")
        if not 0 < self.attenuation < math.inf:
            raise ValueError(f"the attenuation must be positive, got {self.attenuation}")

    @classmethod
    def of_field(cls, photons: float, norm: float, size: int) -> "Transmission":
        """That of images of size x size pixels, [0, 1] for -1000 to 1000 HU, that fill the nominal field of view.

        Args:
            photons: I0.
            norm: |L| of the scanner, what line integrals in pixels are divided by.
            size: pixels along a side.
        """
        return cls(float(photons), BRIGHTEST * FIELD / size * norm)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Transmission":
        """Undo `to_dict`."""
        return cls(float(values["photons"]), float(values["attenuation"]))

    def to_dict(self) -> dict[str, float]:
        """Both numbers, for a file."""
        return asdict(self)

    def transmitted(self, sinogram: Measurement) -> Measurement:
        """exp(-c s), the share of the photons that comes through, for a noiseless sinogram s."""
        return torch.exp(-self.attenuation * sinogram)

    def sample(self, sinogram: Measurement, generator: Generator | None) -> Measurement:
        """Draw counts N of a noiseless sinogram s (B, ...)."""
        return Poisson().sample(self.photons * self.transmitted(sinogram), generator)

    def post_log(self, counts: Measurement, quantum: float = 1.0) -> Measurement:
        """-ln(N / I0) / c, with half a photon in place of none.

        Args:
            counts: N, or thinned counts scaled to the mean of all.
            quantum: what one photon adds to `counts`.
        """
        seen = counts.double().clamp(min=quantum / 2)
        return (-(seen / self.photons).log() / self.attenuation).to(counts.dtype)

    def counts(self, y: Measurement) -> Measurement:
        """N of a post-log sinogram, exactly; the counts of I0 exp(-c y), rounded, of one that is none."""
        found = self.photons * self.transmitted(y.double())
        return torch.where(found < ZERO, 0.0, found.round()).to(y.dtype)

    def recorrupt(self, y: Measurement, alpha: float, generator: Generator | None) -> Pair:
        """Divide the photons of a post-log sinogram y at random, each of them with probability a to the target.

        Returns:
            the post-log sinogram of the share 1 - a, and the counts of the share a, scaled to the mean of N.
        """
        seen, kept = Poisson().recorrupt(self.counts(y), alpha, generator)
        return Pair(self.post_log(seen, 1 / (1 - target_share(alpha))), kept)

    def variance(self, counts: Measurement) -> Measurement:
        """1 / (c^2 N), the approximate variance of y; that of half a photon where there is none."""
        return 1 / (self.attenuation**2 * counts.clamp(min=0.5))

    def noise_level(self, counts: Measurement) -> PerItem:
        """Root mean square over the rays of each item of the noise of y."""
        return self.variance(counts).flatten(1).mean(1).sqrt()
