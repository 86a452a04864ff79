"""Images whose spread estimates the error of a reconstruction: the equivariant bootstrap, and the passes of an inferer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from es_medical.groups import Group
from es_medical.physics.base import measure, noise_level
from es_medical.physics.batch import Batch
from es_medical.physics.transmission import Transmission
from es_medical.randomness import item_generator
from es_medical.types import Image, Measurement

SMALL_GROUP = 16
"""Number of elements up to which all of them are used equally often."""

Estimator = Callable[[Batch], Image]
"""x_hat = f(y, A) of a batch whose items have ids and noise levels."""


class Replica(NamedTuple):
    """One image x_i, made like x_hat from measurements like y."""

    error: Image
    """x_i - x_hat, (B, C, H, W)."""
    measured: Image
    """The same in the frame that A measured, T_g (x_i - x_hat): its part outside the range of A^T is what A missed."""


@runtime_checkable
class Resampler(Protocol):
    """Draws images x_i around x_hat = f(y) whose distances from x_hat estimate that of x_hat from the unknown x."""

    n_samples: int
    """Number N of images for each item."""

    def __call__(self, f: Estimator, x_hat: Image, batch: Batch) -> Iterator[Replica]:
        """Yield N replicas of x_hat = f(batch)."""


class EquivariantBootstrap:
    """x_i = T_g^-1 f(A T_g x_hat + epsilon), g and epsilon drawn anew for each i (Tachella & Pereyra 2023, algorithm 1).

    A parametric bootstrap: x_hat replaces the image, and T_g moves it so that A misses another part of it each time. It shows
    the error of f on images like x_hat. It does not show what x_hat itself lacks, nor an error that f makes on every image
    alike and that T_g does not change. Hence `es_medical.uncertainty.calibration`.

    Args:
        group: the group of T_g; None for the plain bootstrap, which draws only new noise.
        n_samples: N.
        seed: of g and epsilon, which are drawn for each item from its id, whatever its batch.
        transmission: for photon counts; None for additive noise of level sigma.

    Raises:
        ValueError: n_samples is below 2.
    """

    def __init__(
        self, group: Group | None, n_samples: int = 30, seed: int = 0, transmission: Transmission | None = None
    ) -> None:
        self.group, self.n_samples, self.seed, self.transmission = group, _several(n_samples), seed, transmission

    @torch.no_grad()
    def __call__(self, f: Estimator, x_hat: Image, batch: Batch) -> Iterator[Replica]:
        """Yield N replicas; the batch's own y is not used, the measurements are simulated."""
        for i in range(self.n_samples):
            draw = replace(batch, ids=[f"{name}/bootstrap{i}" for name in batch.ids])
            if self.group is None:
                error = f(replace(draw, y=self._measured(x_hat, draw))) - x_hat
                yield Replica(error, error)
                continue
            g = torch.stack([self._element(self.group, i, name) for name in batch.ids]).to(x_hat.device)
            moved = self.group.apply(x_hat, g)
            error = f(replace(draw, y=self._measured(moved, draw))) - moved
            yield Replica(self.group.inverse(error, g), error)

    def _element(self, group: Group, i: int, key: str) -> Tensor:
        """Return the i-th g of an item; each g of a small group is drawn equally often (balanced resampling), in rounds."""
        if group.order > SMALL_GROUP:
            return group.sample(1, item_generator(self.seed, f"{key}/bootstrap{i}", "bootstrap group"))[0]
        cycle, place = divmod(i, group.order)
        order = torch.randperm(group.order, generator=item_generator(self.seed, f"{key}/round{cycle}", "bootstrap group"))
        return group.elements()[order[place]]

    def _measured(self, x: Image, batch: Batch) -> Measurement:
        """Simulate A x + epsilon with the operator, noise levels and ids of a batch, or a post-log sinogram of counts."""
        physics, generators = batch.physics, batch.generators(self.seed, "bootstrap")
        if self.transmission is None:
            return measure(physics, x, noise_level(None, batch.sigma), generators)
        counts = self.transmission.sample(physics.A(x).clamp(min=0), generators)
        return physics.mask * self.transmission.post_log(counts)


class Passes:
    """x_i = f_i(y): single passes of a network, each with its own split, noise and g, which make up the spread.

    Args:
        one_pass: the estimator of a single pass, whose randomness is drawn from the ids.
        n_samples: N.

    Raises:
        ValueError: n_samples is below 2.
    """

    def __init__(self, one_pass: Estimator, n_samples: int = 30) -> None:
        self.one_pass, self.n_samples = one_pass, _several(n_samples)

    @torch.no_grad()
    def __call__(self, f: Estimator, x_hat: Image, batch: Batch) -> Iterator[Replica]:
        """Yield N replicas; f is not used: the passes draw the randomness."""
        for i in range(self.n_samples):
            error = self.one_pass(replace(batch, ids=[f"{name}/pass{i}" for name in batch.ids])) - x_hat
            yield Replica(error, error)


def _several(n_samples: float) -> int:
    if n_samples < 2 or n_samples != int(n_samples):
        raise ValueError(f"n_samples must be a whole number, at least 2, got {n_samples}")
    return int(n_samples)
