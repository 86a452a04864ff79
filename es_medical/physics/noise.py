"""Noise of the natural exponential family: samples, and two independent measurements made from one (generalised R2R)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from es_medical.randomness import generators_of_items, normal
from es_medical.types import Generator, Measurement, PartGenerator


class Pair(NamedTuple):
    """Two measurements made from one y: independent given A x, each with mean A x."""

    input: Measurement
    """y_1, the input of a network, with the share 1 - a of the information in y."""
    target: Measurement
    """y_2, the target, with the share a."""


class Noise(Protocol):
    """A noise model: how y is drawn given A x, and how it is recorrupted."""

    def sample(self, clean: Measurement, generator: Generator | None) -> Measurement:
        """Return y for the noiseless measurement A x, whose first axis is the batch."""

    def recorrupt(self, y: Measurement, alpha: float, generator: Generator | None) -> Pair:
        """Return (y_1, y_2) with Var y_1 = Var y / (1 - a), Var y_2 = Var y / a, a = `target_share(alpha)`."""


def target_share(alpha: float) -> float:
    """Return a = alpha^2 / (1 + alpha^2): what deepinv's R2RLoss calls alpha, for the alpha of the paper.

    Raises:
        ValueError: alpha is not positive.

    >>> target_share(0.5)
    0.2
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be > 0, got {alpha}")
    return alpha**2 / (1 + alpha**2)


@dataclass(frozen=True)
class Gaussian:
    """y = A x + epsilon, epsilon ~ N(0, sigma^2): recorrupted by omega ~ N(0, sigma^2) as y + alpha omega, y - omega / alpha.

    Attributes:
        sigma: standard deviation in the units of y.

    Raises:
        ValueError: sigma is negative.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not self.sigma >= 0:
            raise ValueError(f"sigma must be >= 0, got {self.sigma}")

    def sample(self, clean: Measurement, generator: Generator | None) -> Measurement:
        """Draw y."""
        return clean + self._noise(clean, generator)

    def recorrupt(self, y: Measurement, alpha: float, generator: Generator | None) -> Pair:
        """Draw one omega for both measurements."""
        target_share(alpha)
        omega = self._noise(y, generator)
        return Pair(y + alpha * omega, y - omega / alpha)

    def _noise(self, y: Tensor, generator: Generator | None) -> Tensor:
        return self.sigma * normal(tuple(y.shape), generator, y.device).to(y.dtype)


@dataclass(frozen=True)
class Poisson:
    """y = gain z, z ~ Poisson(A x / gain): recorrupted by binomial thinning.

    Each photon goes to the target with probability a: omega ~ Bin(z, a), y_1 = gain (z - omega) / (1 - a),
    y_2 = gain omega / a. Thinned Poisson counts are independent.

    Attributes:
        gain: what one photon adds to y; with a gain other than that of the data, y_1 and y_2 are dependent.

    Raises:
        ValueError: the gain is not positive.
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        if not self.gain > 0:
            raise ValueError(f"the gain must be > 0, got {self.gain}")

    def sample(self, clean: Measurement, generator: Generator | None) -> Measurement:
        """Draw y; raises ValueError where A x is negative."""
        _check_positive(clean, "Poisson")
        return (self.gain * draw(torch.poisson, generator, clean.double() / self.gain)).to(clean.dtype)

    def recorrupt(self, y: Measurement, alpha: float, generator: Generator | None) -> Pair:
        """Thin the counts of y, rounded to whole photons."""
        a = target_share(alpha)
        z = (y.double() / self.gain).round().clamp(min=0)  # float64: float32 draws lose photons above 10^7
        omega = draw(torch.binomial, generator, z, torch.full_like(z, a))
        return Pair((self.gain / (1 - a) * (z - omega)).to(y.dtype), (self.gain / a * omega).to(y.dtype))


@dataclass(frozen=True)
class Gamma:
    """y ~ Gamma(l, rate l / A x), speckle of l looks: mean A x, variance (A x)^2 / l; recorrupted by a Beta split.

    omega ~ Beta(l a, l (1 - a)), y_1 = y (1 - omega) / (1 - a), y_2 = y omega / a.

    Attributes:
        l: number of looks.

    Raises:
        ValueError: l is not positive.
    """

    l: float  # noqa: E741 - the paper's and deepinv's name

    def __post_init__(self) -> None:
        if not self.l > 0:
            raise ValueError(f"l must be > 0, got {self.l}")

    def sample(self, clean: Measurement, generator: Generator | None) -> Measurement:
        """Draw y; raises ValueError where A x is negative."""
        _check_positive(clean, "Gamma")
        return clean / self.l * self._gamma(clean, 1.0, generator)

    def recorrupt(self, y: Measurement, alpha: float, generator: Generator | None) -> Pair:
        """Split y by one omega for both measurements."""
        a = target_share(alpha)
        to_target, to_input = self._gamma(y, a, generator), self._gamma(y, 1 - a, generator)
        omega = to_target / (to_target + to_input)  # Beta(l a, l (1 - a))
        return Pair(y * (1 - omega) / (1 - a), y * omega / a)

    def _gamma(self, y: Tensor, share: float, generator: Generator | None) -> Tensor:
        looks = torch.full_like(y, self.l * share, dtype=torch.float64)
        return draw(torch._standard_gamma, generator, looks).to(y.dtype)


def draw(law: Callable[..., Tensor], generator: Generator | None, *parameters: Tensor) -> Tensor:
    """Draw from a distribution of torch that takes tensors of parameters, the batch first, and `generator=`.

    torch.distributions, which deepinv's R2RLoss draws from, take no generator.

    Args:
        law: `torch.poisson`, `torch.binomial`, ...
        generator: one for the batch, or one for each item so that an item's numbers never depend on its batch.
        parameters: of the law, (B, ...).

    Raises:
        ValueError: the numbers of generators and items differ.
    """
    device = parameters[0].device
    if isinstance(generator, PartGenerator):
        generator = generators_of_items(generator)
    if generator is None or isinstance(generator, torch.Generator):
        source = device if generator is None else generator.device
        return law(*(parameter.to(source) for parameter in parameters), generator=generator).to(device, non_blocking=True)
    if len(generator) != len(parameters[0]):
        raise ValueError(f"{len(generator)} generators for a batch of {len(parameters[0])} items: give one for each item")
    rows = [
        law(*(parameter[i].to(own.device).contiguous() for parameter in parameters), generator=own)
        for i, own in enumerate(generator)
    ]
    return torch.stack(rows).to(device, non_blocking=True)


def _check_positive(clean: Tensor, name: str) -> None:
    if bool((clean < 0).any()):
        raise ValueError(f"{name} noise needs A x >= 0, got {float(clean.min()):g}")
