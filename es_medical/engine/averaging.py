"""An average of the weights over the steps of a training: it is scored, kept and used; the weights go on being trained."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from es_medical.engine.distributed import unwrapped

LAG = 9  # the average is at first over about the last tenth of the steps so far: random initial weights are soon forgotten


class WeightAverage:
    """Exponential moving average of the parameters of a network.

    After k earlier updates,

        average <- d_k average + (1 - d_k) weights,    d_k = min(decay, k / (k + 9)),

    so that the first update takes the weights. Up to step 9 decay / (1 - decay), 891 for 0.99 and 8991 for 0.999, the average
    is over about the last tenth of the steps, and the decay itself changes nothing.

    Nothing is read back from the device, and only numbers that all processes share are used: each has the same average.
    Buffers, as those of batch normalisation, are not averaged.

    The average is put in place of the weights for as long as it is used, so that whatever holds the network (compiled code,
    a parallel wrapper, the optimiser) needs to know nothing of it.

    Args:
        network: what is trained, on its device; a parallel wrapper is taken off.
        decay: between 0 and 1, e.g. 0.999 to average over about the last 1000 steps.

    Raises:
        ValueError: the decay is not between 0 and 1.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema must be between 0 and 1, or null for no average of the weights, got {decay}")
        self.network, self.decay, self.steps = unwrapped(network), decay, 0
        self._weights: list[Tensor] = list(self.network.parameters())
        self._averages = _copies(self._weights)

    @torch.no_grad()
    def update(self) -> None:
        """Count the weights in; call it after each step of the optimiser."""
        decay = min(self.decay, self.steps / (self.steps + LAG))
        get_ema_multi_avg_fn(decay)(tuple(self._averages), tuple(self._weights), self.steps)
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average in place of the weights; at the end the weights are back, bit by bit. No change before `update`."""
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
        """Return the average, by the names of the network's own state, and the number of updates."""
        with self.applied():
            return {"weights": {name: value.clone() for name, value in self.network.state_dict().items()}, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; the weights of the network stay as they are.

        Raises:
            RuntimeError: the average is of another network.
        """
        trained = _copies(self._weights)
        self.network.load_state_dict(state["weights"])
        _assign(self._averages, self._weights)
        _assign(self._weights, trained)
        self.steps = state["steps"]


def in_use(average: WeightAverage | None) -> AbstractContextManager[None]:
    """Put an average in place of the weights, where there is one (see `WeightAverage.applied`)."""
    return nullcontext() if average is None else average.applied()


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def _assign(targets: list[Tensor], sources: list[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
