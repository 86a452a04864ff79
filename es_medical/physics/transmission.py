"""Photon-limited CT: photon counts behind an object, and their post-log sinogram."""

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
"""Side of the field of view of simulated scans, mm: the same for all slices, so that one c serves all sinograms."""
BRIGHTEST = 2 * WATER
"""Attenuation of the image value 1, which is +1000 HU, 1/mm; 0 is air."""
MOST_PHOTONS = 1e7
"""Counts up to this are recovered from a float32 sinogram: rounding changes N by N ln(I0 / N) 2^-24, at most 0.22."""
COUNTED = "transmission"
"""Key of `to_dict` next to a scanner's geometry in a slice file."""
ZERO = 0.75
"""Recovered counts below this are 0: no count lies between 1 and the half that replaces 0."""


@dataclass(frozen=True)
class Transmission:
    """N ~ Poisson(I0 exp(-c A x)) counts on each ray, c the attenuation of a sinogram of 1; the sinogram y = -ln(N / I0) / c.

    y is in the units of A x. A ray without a photon has no logarithm: it is logged as half a photon, which is read
    back as 0 counts. y has approximately independent Gaussian noise of variance 1 / (c^2 N).

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
        """Return that of images of size x size pixels, [0, 1] for -1000 to 1000 HU, that fill the nominal field of view.

        Args:
            photons: I0.
            norm: |L| of the scanner, by which line integrals in pixels are divided.
            size: pixels along a side.
        """
        return cls(float(photons), BRIGHTEST * FIELD / size * norm)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Transmission":
        """Make it from the values of `to_dict`."""
        return cls(float(values["photons"]), float(values["attenuation"]))

    def to_dict(self) -> dict[str, float]:
        """Return both numbers, for a file."""
        return asdict(self)

    def transmitted(self, sinogram: Measurement) -> Measurement:
        """exp(-c s), the transmitted share of the photons, for a noiseless sinogram s."""
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
        """Recover N from a post-log sinogram, exactly; from any other sinogram return I0 exp(-c y), rounded."""
        found = self.photons * self.transmitted(y.double())
        return torch.where(found < ZERO, 0.0, found.round()).to(y.dtype)

    def recorrupt(self, y: Measurement, alpha: float, generator: Generator | None) -> Pair:
        """Divide the photons of a post-log sinogram y at random: each goes to the target with probability a.

        Returns:
            the post-log sinogram of the share 1 - a, and the counts of the share a, scaled to the mean of N.
        """
        seen, kept = Poisson().recorrupt(self.counts(y), alpha, generator)
        return Pair(self.post_log(seen, 1 / (1 - target_share(alpha))), kept)

    def variance(self, counts: Measurement) -> Measurement:
        """1 / (c^2 N), the approximate variance of y; that of half a photon where N = 0."""
        return 1 / (self.attenuation**2 * counts.clamp(min=0.5))

    def noise_level(self, counts: Measurement) -> PerItem:
        """Root mean square over the rays of each item of the noise of y."""
        return self.variance(counts).flatten(1).mean(1).sqrt()
