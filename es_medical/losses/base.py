"""Interface of the losses, and the mean squares that they share."""

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from es_medical.physics.base import Operator
from es_medical.physics.batch import Batch
from es_medical.types import Generator, Image, Mask, Measurement, PerItem


@runtime_checkable
class Reconstructor(Protocol):
    """f(y, A): a network that reconstructs y given its operator, with its randomness from `generator`."""

    def __call__(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Return images (B, C, H, W)."""


class LossValue(NamedTuple):
    """The loss of each item of a batch, and the parts of which it is the weighted sum, for the log."""

    total: PerItem
    parts: dict[str, PerItem]


@runtime_checkable
class Loss(Protocol):
    """A training loss. It draws its own randomness from `generator` and keeps no state between calls.

    `batch.sigma` is used only by a loss that assumes a noise level and has none of its own, `batch.image` only where
    `needs_image` is true.
    """

    needs_image: bool
    """Whether the batch must have ground truth."""

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item of the batch and its parts.

        Raises:
            ValueError: the batch lacks the image, or the noise level, that the loss needs.
        """


@runtime_checkable
class Weighting(Protocol):
    """A fixed linear injective map W of a residual: |W r|^2 = 0 only for r = 0."""

    def __call__(self, residual: Measurement) -> Measurement:
        """Return W r, item by item."""


def mean_square(residual: Tensor, mask: Mask, weighting: Weighting | None = None) -> PerItem:
    """|W m r|^2 divided by the number of measured entries of each item: residual (B, ...), mask broadcastable to it.

    Without a weighting W is the identity. W is applied after the mask, so that unmeasured entries never count.
    """
    squares = mask * residual.square() if weighting is None else weighting(mask * residual).square()
    return _per_entry(squares, mask)


def mean_product(a: Tensor, b: Tensor, mask: Mask, weighting: Weighting | None = None) -> PerItem:
    """(W m a)^T W m b divided by the number of measured entries of each item; `mean_square` is the case a = b."""
    products = mask * a * b if weighting is None else weighting(mask * a) * weighting(mask * b)
    return _per_entry(products, mask)


def measured_numbers(y: Measurement, mask: Mask) -> PerItem:
    """Return the number m of measured entries of each item of y (B, ...)."""
    dims = tuple(range(1, y.ndim))
    return mask.expand(len(y), *mask.shape[1:]).sum(dims) * (y[0].numel() / mask[0].numel())


def _per_entry(values: Tensor, mask: Mask) -> PerItem:
    return values.sum(tuple(range(1, values.ndim))) / measured_numbers(values, mask)


def check_noise(sigma: float | Tensor | None, sigma_factor: float) -> None:
    """Raise ValueError for a negative noise level or factor; a tensor is not checked, as a GPU would have to wait."""
    if (isinstance(sigma, int | float) and not sigma >= 0) or not sigma_factor >= 0:
        raise ValueError(f"sigma and sigma_factor must be >= 0, got {sigma} and {sigma_factor}")
