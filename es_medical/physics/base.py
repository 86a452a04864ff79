"""The contract of every forward operator A, and noisy measurements of it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from deepinv.physics import LinearPhysics
from torch import Tensor

from es_medical.randomness import normal
from es_medical.types import Generator, Image, Mask, Measurement


class Operator(LinearPhysics):
    """A linear operator that is never changed after it is made.

    `A(x)`, `A_adjoint(y)` (the exact transpose), `A_dagger(y)` and `prox_l2(z, y, gamma)` are those of
    `deepinv.physics.LinearPhysics`; an operator without a closed form uses deepinv's conjugate gradients.
    A and its restrictions M A share storage.
    """

    mask: Mask
    """Indicator of measured entries, broadcastable to y."""

    baseline = "zero-filled"
    """Name of the reconstruction `initial`, for tables and pictures."""

    measured = "measurements"
    """Name of the measurements y, for messages."""

    estimated = "initial"
    """Name and constants of `estimate`, which weights that were trained from it depend on."""

    units: tuple[str, ...] = ()
    """Units into which `es_medical.splits.Split` can divide y."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Sizes of the trailing axes of y that a unit is a part of, for example (H, W) of k-space."""
        raise TypeError(f"{type(self).__name__} can't be split: it defines no grid")

    def initial(self, y: Measurement) -> Image:
        """Return the linear reconstruction (B, C, H, W) that networks start from and are compared with: A^T y."""
        return self.A_adjoint(y)

    def estimate(self, y: Measurement) -> Image:
        """Return the best cheap reconstruction (B, C, H, W) without training, a better start than `initial` where there is one.

        It scales with y, and that of A T_g is T_g^-1 of that of A.
        """
        return self.initial(y)

    def masked(self, m: Mask) -> "Operator":
        """Return the operator M A that keeps the measured entries where m is 1; m broadcasts to y."""
        raise TypeError(f"{type(self).__name__} can't be split: it defines no masked(m)")

    def of(self, batch: Mapping[str, Any]) -> "Operator":
        """Return the operator of a batch of slices; A itself unless each slice has its own (sensitivity maps)."""
        return self

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of the images that A takes."""
        return self.img_size[-2], self.img_size[-1]

    @property
    def _items(self) -> int:
        """Number of items of a batch, where each has a mask of its own; else 1."""
        return len(self.mask)

    def _check(self, x: Tensor, shape: Sequence[int]) -> None:
        """Raise ValueError when x is not (B, *shape), or its number of items is not that of the masks."""
        n = self._items
        if tuple(x.shape[1:]) != tuple(shape) or (n > 1 and len(x) != n):
            sides = ", ".join(map(str, shape))
            raise ValueError(f"this operator takes ({'B' if n == 1 else n}, {sides}), got {tuple(x.shape)}")


class Projection(Operator):
    """An operator with A A^T = M, also after masking: A^dagger = A^T, and A^T A is a projection."""

    def A_dagger(self, y: Measurement) -> Image:
        """Pseudo-inverse of A, which is its adjoint."""
        return self.A_adjoint(y)

    def prox_l2(self, z: Image, y: Measurement, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2 = z + gamma / (1 + gamma) (A^T y - A^T A z), gamma a number or (B,)."""
        gamma = per_item(gamma, z)
        return z + gamma / (1 + gamma) * (self.A_adjoint(y) - self.A_adjoint_A(z))


class Moved(Operator):
    """A of transformed images: y, its mask, and how it can be split are those of A itself."""

    @property
    @abstractmethod
    def _origin(self) -> Operator:
        """A."""

    @property
    def mask(self) -> Mask:  # type: ignore[override]
        """Indicator of measured entries: that of A."""
        return self._origin.mask

    @property
    def measured(self) -> str:  # type: ignore[override]
        """What y is: that of A."""
        return self._origin.measured

    @property
    def estimated(self) -> str:  # type: ignore[override]
        """What `estimate` is: that of A."""
        return self._origin.estimated

    @property
    def units(self) -> tuple[str, ...]:  # type: ignore[override]
        """What a split can divide y into: those of A."""
        return self._origin.units

    @property
    def grid(self) -> tuple[int, ...]:
        """Sizes that a split divides: those of A."""
        return self._origin.grid

    @property
    def baseline(self) -> str:  # type: ignore[override]
        """What `initial` is: that of A."""
        return self._origin.baseline


def measure(physics: Operator, x: Image, sigma: float | Tensor, generator: Generator | None) -> Measurement:
    """Simulate y = A x + epsilon, equation (1) of the paper.

    Args:
        physics: the operator A.
        x: images (B, C, H, W).
        sigma: standard deviation of the noise on every measured number (real and imaginary part each), in the units of y.
        generator: source of the noise, one for the batch or one for each item.

    Returns:
        y, with noise on measured entries only.
    """
    y = physics.A(x)
    return y + recorruption(physics, y, sigma, generator)


def recorruption(physics: Operator, y: Measurement, sigma: float | Tensor, generator: Generator | None) -> Measurement:
    """Draw omega ~ N(0, sigma^2) on the measured entries of y; sigma is a number or one for each item, (B,)."""
    return per_item(sigma, y) * normal(tuple(y.shape), generator, y.device).to(y.dtype) * physics.mask


def noise_level(assumed: float | Tensor | None, given: Tensor | None) -> float | Tensor:
    """Return the noise level that a loss or inferer assumes; if it assumes none, that of the data, one for each item.

    Raises:
        ValueError: neither is given.
    """
    if assumed is not None:
        return assumed
    if given is None:
        raise ValueError("no noise level: give sigma here, or data with a noise level")
    return given


def per_item(value: float | Tensor, x: Tensor) -> float | Tensor:
    """Reshape one number for each item, (B,), to broadcast to x (B, ...); return a single number unchanged."""
    if not isinstance(value, Tensor):
        return value
    return value.to(x).view(-1, *[1] * (x.ndim - 1)) if value.ndim else value.to(x.dtype)
