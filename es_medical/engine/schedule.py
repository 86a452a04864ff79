"""Learning rate of every step: a schedule over the epochs times a linear warm-up over the first steps.

Why not a composition of torch's schedulers: those are stepped together, whereas these two factors follow epochs and steps.
Torch's cosine is also a recursion over the epochs that rounds differently: learning rates would change in their last bits,
and a training of version 0.1 would not resume bit for bit.
"""

import math
import warnings
from collections.abc import Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

SCHEDULES = ("step", "cosine")


class Schedule(LRScheduler):
    """Learning rate lr r(e) w(k) of step k (counted from 1 over the whole training) in epoch e (from 0 to E - 1).

    "step":    r(e) = factor^(number of milestones <= e), as in the paper.
    "cosine":  r(e) = end + (1 - end) (1 + cos(pi e / (E - 1))) / 2: from 1 to `end` in the last epoch.
    warm-up:   w(k) = min(1, k / warmup).

    It depends on e and k alone, not on earlier calls, so a resumed training continues bit for bit. Call `step` at the end
    of each epoch and `warm_up` at the start of each step.

    Args:
        optimizer: its current learning rates are lr.
        kind: "step" or "cosine".
        milestones: epochs at which "step" multiplies by `factor`.
        factor: factor of "step".
        epochs: E, for "cosine".
        end: fraction of lr in the last epoch, for "cosine".
        warmup: number of warm-up steps, 0 for none.

    Raises:
        ValueError: an unknown kind, or a number out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        kind: str = "step",
        milestones: Sequence[int] = (),
        factor: float = 1.0,
        epochs: int = 1,
        end: float = 0.01,
        warmup: float = 0,
    ) -> None:
        if kind not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {kind!r}")
        if not 0 <= end <= 1:
            raise ValueError(f"the cosine schedule ends at a fraction of lr from 0 to 1, got {end}")
        if warmup < 0 or warmup != int(warmup):
            raise ValueError(f"warmup must be a whole number of steps, 0 for none, got {warmup}")
        self.kind, self.milestones, self.factor = kind, list(milestones), factor
        self.epochs, self.end, self.warmup = epochs, end, int(warmup)
        self.iteration = self.warmup  # full rate if `warm_up` is never called
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]  # never tensors here
        """Return the current learning rate of every parameter group."""
        return [self._epoch_rate(float(lr)) * self._ramp() for lr in self.base_lrs]

    def warm_up(self, iteration: int) -> None:
        """Set the learning rate of step `iteration`, counted from 1 over the whole training."""
        self.iteration = iteration
        self._last_lr = [*self.get_lr()]
        for group, lr in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = lr

    def _epoch_rate(self, lr: float) -> float:
        """Return lr r(e); milestones multiply one after another, as torch's MultiStepLR rounds."""
        if self.kind == "cosine":
            done = min(self.last_epoch / max(self.epochs - 1, 1), 1.0)
            return lr * (self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2)
        for milestone in self.milestones:
            lr = lr * self.factor if milestone <= self.last_epoch else lr
        return lr

    def _ramp(self) -> float:
        return min(1.0, self.iteration / self.warmup) if self.warmup else 1.0


def replay(scheduler: LRScheduler | None, steps: int, iteration: int = 0) -> None:
    """Set the learning rate to that after `steps` of the configured schedule and warm-up, bit for bit."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)  # no step is skipped
        for _ in range(steps if scheduler is not None else 0):
            scheduler.step()  # type: ignore[union-attr]
    if isinstance(scheduler, Schedule):
        scheduler.warm_up(iteration)
