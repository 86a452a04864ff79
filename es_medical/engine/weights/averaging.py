"""Moving average of the weights over the training steps: it is scored, saved and used, while the weights are trained."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

LAG = 9  # early on, the average spans about the last tenth of the steps so far: random initial weights are soon forgotten


class WeightAverage:
    """Exponential moving average of the parameters of a network.

    After k earlier updates,

        average <- d_k average + (1 - d_k) weights,    d_k = min(decay, k / (k + 9)),

    so that the first update takes the weights. Up to step 9 decay / (1 - decay), 891 for 0.99 and 8991 for 0.999, the average
    spans about the last tenth of the steps and does not depend on the decay.

    Nothing is read back from the device. Only numbers shared by all processes are used, so each has the same average.
    Buffers, such as those of batch normalisation, are not averaged.

    While in use, the average is copied into the network's own parameters, so compiled code and the
    optimiser need no change.

    Args:
        network: the network in training, on its device.
        decay: between 0 and 1, e.g. 0.999 to average over about the last 1000 steps.

    Raises:
        ValueError: the decay is not between 0 and 1.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema must be between 0 and 1, or null for no average of the weights, got {decay}")
        self.network, self.decay, self.steps = network, decay, 0
        self._weights: list[Tensor] = list(self.network.parameters())
        self._averages = _copies(self._weights)

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average; call this after each optimiser step."""
        decay = min(self.decay, self.steps / (self.steps + LAG))
        get_ema_multi_avg_fn(decay)(tuple(self._averages), tuple(self._weights), self.steps)
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average in place of the weights, then restore them bit for bit. Does nothing before the first `update`."""
        if self.steps == 0:
            yield
            return
        trained = _copies(self._weights)
        _assign(self._weights, self._averages)
        try:
            yield
        finally:
            _assign(self._weights, trained)

    def state_dict(self) -> dict[str, Any]:
        """Return the average, under the names of the network's state dict, and the number of updates."""
        with self.applied():
            return {"weights": {name: value.clone() for name, value in self.network.state_dict().items()}, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the network's weights are unchanged.

        Raises:
            RuntimeError: the average belongs to another network.
        """
        trained = _copies(self._weights)
        self.network.load_state_dict(state["weights"])
        _assign(self._averages, self._weights)
        _assign(self._weights, trained)
        self.steps = state["steps"]


def in_use(average: WeightAverage | None) -> AbstractContextManager[None]:
    """Use the average, if there is one, in place of the weights (see `WeightAverage.applied`)."""
    return nullcontext() if average is None else average.applied()


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def _assign(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
