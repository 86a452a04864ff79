"""Training engine: MONAI's trainer around the pure training step."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.engines import SupervisedTrainer
from monai.inferers import Inferer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from es_medical.engine.config import positive_int
from es_medical.engine.distributed import SharedBatches, rank, world_size
from es_medical.engine.progress import Progress
from es_medical.engine.schedule import Schedule
from es_medical.engine.step import Pass, training_step
from es_medical.engine.weights.averaging import WeightAverage
from es_medical.losses import Loss
from es_medical.physics import Batch, Operator
from es_medical.randomness import item_generator
from es_medical.types import Part, PartGenerator


class Trainer(SupervisedTrainer):
    """Trains a reconstructor on the measurements of one operator.

    A loss or gradient that is not finite stops the training, with the names of the slices in the batch. On a GPU this is
    checked every `check_interval` steps and at the end of each epoch, before anything is saved.

    Args:
        device: device of the training.
        max_epochs: number of epochs.
        train_data_loader: batches of a slice file.
        network: the reconstructor f(y, A).
        optimizer: optimiser of the network's parameters.
        loss_function: see `es_medical.losses`.
        physics: the operator A.
        inferer: how the loss calls the network (`monai.inferers.SimpleInferer`).
        train_handlers: MONAI or Ignite handlers.
        clip: largest norm of the gradient, None for no limit.
        seed: seed of the splits, noise and g. An item's numbers depend on its place in the batch of all processes, and not
            on the process that has it, so that any number of processes takes the same steps up to rounding.
        check_interval: steps between two checks of the loss on a GPU.
        scheduler: learning rate scheduler; a `Schedule` also gets the number of every step, for its warm-up. The caller
            must step it at the end of each epoch.
        average: average of the weights, updated after every step; None for none.
        accumulate: passes in which the gradient of a batch is added up, of equal parts of it; the step is that of one pass.
    """

    def __init__(
        self,
        device: torch.device | str,
        max_epochs: int,
        train_data_loader: DataLoader,
        network: nn.Module,
        optimizer: Optimizer,
        loss_function: Loss,
        physics: Operator,
        inferer: Inferer,
        train_handlers: Sequence[Any] | None = None,
        clip: float | None = 1.0,
        seed: int = 0,
        check_interval: int = 10,
        scheduler: LRScheduler | None = None,
        average: WeightAverage | None = None,
        accumulate: int = 1,
    ) -> None:
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive, or null for no limit, got {clip}")
        super().__init__(
            device=device,
            max_epochs=positive_int("epochs", max_epochs),
            train_data_loader=train_data_loader,
            network=network,
            optimizer=optimizer,
            loss_function=loss_function,
            inferer=inferer,
            train_handlers=train_handlers,
            decollate=False,
        )
        self.loss, self.physics, self.clip = loss_function, physics, clip
        self.scheduler, self.average = scheduler, average
        self.accumulate = positive_int("accumulate", accumulate)
        self.generator = torch.Generator(self.state.device)
        self.generator.manual_seed(item_generator(seed, "process 0", "training").initial_seed())
        self.check_interval = 1 if self.state.device.type == "cpu" else check_interval
        self._unchecked: list[tuple[int, list[str], Tensor]] = []
        self.progress = Progress(self, "training")
        self.add_event_handler(Events.EPOCH_STARTED, self._shuffle)
        self.add_event_handler(Events.ITERATION_COMPLETED, self._watch)
        self.add_event_handler(Events.EPOCH_COMPLETED, self._check)

    def run(self) -> None:  # type: ignore[override]  # as MONAI does
        """Train up to `max_epochs`; then end the loader's worker processes, also after an error."""
        try:
            super().run()
        finally:
            _end_workers(self.data_loader)

    def _iteration(self, engine: Engine, batchdata: dict[str, Any]) -> dict[str, Tensor]:
        """Take one step; return its loss, the parts of the loss and the gradient norm, as tensors on the device.

        Loss and parts are weighted by the share of this process in the batch: their mean over the processes is that over
        the batch. The gradient, which is averaged over the processes, is that of the mean over the batch.
        """
        self.network.train()
        reconstruct = partial(_reconstruct, self.inferer, self.network)
        if isinstance(self.scheduler, Schedule):
            self.scheduler.warm_up(engine.state.iteration)
        passes = self._passes(batchdata, self._part(engine.state.iteration - 1, len(batchdata["id"])))
        output = training_step(self.loss, reconstruct, self.optimizer, passes, self.clip)
        if self.average is not None:
            self.average.update()
        return output

    def _part(self, step: int, n: int) -> Part:
        """Return what part of the batch of all processes the n items of this process are."""
        batches = self._shared_batches
        return Part(rank() * n, (rank() + 1) * n, world_size() * n) if batches is None else batches.part(step)

    @property
    def _shared_batches(self) -> SharedBatches | None:
        batches = getattr(self.data_loader, "batch_sampler", None)
        return batches if isinstance(batches, SharedBatches) else None

    def _passes(self, read: dict[str, Any], part: Part) -> Iterator[Pass]:
        """Yield the passes over this process's part of a batch."""
        share = world_size() * len(part) / part.n
        part = part if len(part) else Part(0, 1, part.n)
        n, state = min(self.accumulate, len(part)), self.generator.get_state()
        for i in range(n):
            piece = part.divided(i, n)
            if i > 0:  # every pass draws for the whole batch, and keeps the numbers of its items
                self.generator.set_state(state)
            drawn = self.generator if len(piece) == piece.n else PartGenerator(self.generator, piece)
            rows = slice(piece.first - part.first, piece.last - part.first)
            items = read if n == 1 else {name: values[rows] for name, values in read.items()}
            batch = Batch.of(items, self.physics, self.state.device, self.loss.needs_image)
            yield Pass(batch, drawn, share * len(piece) / len(part))

    def _shuffle(self, engine: Engine) -> None:
        if self._shared_batches is not None:
            self._shared_batches.set_epoch(engine.state.epoch)

    def _watch(self, engine: Engine) -> None:
        output: Any = engine.state.output
        batch: Any = engine.state.batch
        self._unchecked.append((engine.state.iteration, list(batch["id"]), output["loss"] + output["grad_norm"]))
        if len(self._unchecked) >= self.check_interval:
            self._check(engine)

    def _check(self, engine: Engine) -> None:
        """Raise FloatingPointError for the first step since the last check whose loss or gradient is not finite."""
        steps, self._unchecked = self._unchecked, []
        if not steps or bool(torch.stack([value for _, _, value in steps]).isfinite().all()):
            return
        iteration, ids = next((step, ids) for step, ids, value in steps if not bool(value.isfinite()))
        source = getattr(getattr(engine.state.dataloader, "dataset", None), "path", "the data set")
        raise FloatingPointError(
            f"loss or gradient is not finite at iteration {iteration} (epoch {engine.state.epoch}); items of the batch: "
            f"{', '.join(ids)} in {source}. No later weights were saved; look at these items, or lower lr"
        )


def _end_workers(loader: Any) -> None:  # noqa: ANN401 - MONAI calls it an iterable
    """End persistent workers: otherwise the garbage collector ends them, and waits 5 s for each in an arbitrary thread."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()
        loader._iterator = None


def _reconstruct(inferer: Inferer, network: nn.Module, y: Tensor, physics: Operator, generator: Any = None) -> Tensor:  # noqa: ANN401
    """Act as a `Reconstructor` through MONAI's inferer, which takes the network as its second argument."""
    return inferer(y, network, physics, generator)
