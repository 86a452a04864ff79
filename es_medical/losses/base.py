"""What every loss takes and gives."""

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from es_medical.physics.base import Operator
from es_medical.types import Generator, Image, Mask, Measurement, PerItem


@runtime_checkable
class Reconstructor(Protocol):
    """f(y, A): a network that reconstructs y given its operator, with its randomness from `generator`."""

    def __call__(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Return images (B, C, H, W)."""


class LossValue(NamedTuple):
    """A loss of every item of a batch, and the parts that it is the weighted sum of, for the log."""

    total: PerItem
    parts: dict[str, PerItem]


@runtime_checkable
class Loss(Protocol):
    """A training loss. It draws its own randomness from `generator` and keeps nothing between calls."""

    needs_image: bool
    """Whether x has to be given."""

    def __call__(
        self,
        reconstructor: Reconstructor,
        y: Measurement,
        physics: Operator,
        generator: Generator | None = None,
        x: Image | None = None,
        sigma: PerItem | None = None,
    ) -> LossValue:
        """Return the loss of each item; sigma is the noise level of each, where the data says so."""


@runtime_checkable
class Weighting(Protocol):
    """A fixed linear injective map W of a residual: |W r|^2 = 0 only for r = 0."""

    def __call__(self, residual: Measurement) -> Measurement:
        """Return W r, item by item."""


def mean_square(residual: Tensor, mask: Mask, weighting: Weighting | None = None) -> PerItem:
    """|W m r|^2 divided by the number of measured entries of each item: residual (B, ...), mask broadcastable to it.

    Without a weighting W is the identity. W comes after the mask, so that unmeasured entries never count.
    """
    squares = mask * residual.square() if weighting is None else weighting(mask * residual).square()
    return _per_entry(squares, mask)


def mean_product(a: Tensor, b: Tensor, mask: Mask, weighting: Weighting | None = None) -> PerItem:
    """(W m a)^T W m b divided by the number of measured entries of each item; `mean_square` is that of a = b."""
    products = mask * a * b if weighting is None else weighting(mask * a) * weighting(mask * b)
    return _per_entry(products, mask)


def measured_numbers(y: Measurement, mask: Mask) -> PerItem:
    """Number m of measured entries of y (B, ...), of each item."""
    dims = tuple(range(1, y.ndim))
    return mask.expand(len(y), *mask.shape[1:]).sum(dims) * (y[0].numel() / mask[0].numel())


def _per_entry(values: Tensor, mask: Mask) -> PerItem:
    return values.sum(tuple(range(1, values.ndim))) / measured_numbers(values, mask)
