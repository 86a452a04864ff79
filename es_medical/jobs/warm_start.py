"""Warm start: train a network with synthetic images as ground truth, before it sees the measurements of a data set."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from ignite.engine import Engine, Events
from ignite.utils import manual_seed
from monai.inferers import SimpleInferer
from torch import Tensor, nn

from es_medical.data import file_digest
from es_medical.data.atomic import whole_or_not
from es_medical.engine.checkpoint import Checkpoints, load_first_weights
from es_medical.engine.config import positive_int
from es_medical.engine.distributed import rank, unwrapped, wait, world_size
from es_medical.engine.identity import architecture
from es_medical.engine.schedule import Schedule
from es_medical.engine.setup import build_dataset, build_loader, build_optimizer
from es_medical.engine.synthetic_slices import Likeness, write_synthetic
from es_medical.engine.trainer import Trainer
from es_medical.losses.fidelity import SupervisedOnSplits
from es_medical.physics import Operator
from es_medical.splits import Split
from es_medical.synthetic import draw
from es_medical.tracking import Tracker

logger = logging.getLogger(__name__)

WARM, SLICES = "warm.pt", "synthetic.h5"
LAST_RATE = 0.02  # fraction of the learning rate at the end of the warm start


class WarmKnobs(NamedTuple):
    """How a warm start is trained.

    Attributes:
        images: number of synthetic images; 0 for no training.
        epochs: number of times that each is seen.
        kind: kind of the images (see `es_medical.synthetic`); "auto" chooses it by the data file.
        lr: learning rate at the start; a cosine takes it to 2 % of that, step by step.
        batch_size: images of a step, in each process.
        weight_decay: of AdamW.
        clip: largest norm of the gradient, None for no limit.
        alpha: recorruption strength, in steps on split measurements.
        seed: seed of the images, their noise, and their order.
    """

    images: int = 0
    epochs: int = 2
    kind: str = "auto"
    lr: float = 0.001
    batch_size: int = 2
    weight_decay: float = 1e-8
    clip: float | None = 1.0
    alpha: float = 0.5
    seed: int = 0


class WarmStart:
    """Gives a network its first weights: those of a file, of an equal warm start before, or trained here.

    The network is trained with the supervised loss on synthetic images that are measured as the slices of the data file
    (`es_medical.engine.synthetic_slices`). No image of the data file is read. The weights are kept as `warm.pt` beside the
    other weights, and in `cache` under a name made from all that determines them, where an equal warm start finds them.

    Args:
        network: the reconstructor, with its parallel wrapper.
        physics: the operator, on its device.
        split: draws the part of the measurements that half of the steps are given.
        data_file: slice file of the measurements.
        folder: the `models` folder.
        cache: folder of the weights of earlier warm starts.
        knobs: how it is trained.
        weights: file of weights to start from in place of a training: `warm.pt`, or `reconstructor.pt` of a training; None
            for none.
        cache_device: device that holds the synthetic slices; None reads them from the disk.
        num_workers: processes that read them from the disk.
    """

    def __init__(
        self,
        network: nn.Module,
        physics: Operator,
        split: Split,
        data_file: str,
        folder: str | Path,
        cache: str | Path,
        knobs: WarmKnobs,
        weights: str | Path | None = None,
        cache_device: torch.device | str | None = None,
        num_workers: int = 0,
    ) -> None:
        self.network, self.physics, self.split, self.data_file = network, physics, split, data_file
        self.folder, self.cache, self.knobs, self.weights = Path(folder), Path(cache), knobs, weights
        self.cache_device, self.num_workers = cache_device, num_workers
        self.seconds = 0.0  # of training and simulation

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do."""
        return self.knobs.images > 0 or self.weights is not None

    @property
    def source(self) -> str:
        """Where the weights come from, for the log and the tags of a run."""
        if self.weights is not None:
            return f"weights of {Path(self.weights).name}"
        return f"{self.knobs.images} synthetic images of kind {self._like.kind}, {self.knobs.epochs} epochs"

    @property
    def _like(self) -> Likeness:
        return Likeness.of(self.data_file, self.knobs.kind, self.knobs.seed)

    def run(
        self, tracker: Tracker, checkpoints: Checkpoints, identity: Mapping[str, str], state: dict[str, Any] | None
    ) -> None:
        """Put the first weights into the network; then set the global random states as at the start of a run.

        Args:
            tracker: gets the curves `warm/...`.
            checkpoints: save the state after each epoch.
            identity: method and key metric of the training, by name.
            state: of an interrupted warm start, to continue; None to begin.
        """
        logger.info("warm start: %s; ground truth: synthetic images only", self.source)
        if self.weights is not None:
            self._load(Path(self.weights))
        elif (kept := self.cache / f"{self._key()}.pt").exists() and state is None:
            self._load(kept)
            logger.info("the weights of an equal warm start were found: %s", kept)
        else:
            self._train(tracker, checkpoints, identity, state)
        tracker.log_metrics({"warm/seconds": self.seconds}, 0)
        if rank() == 0:
            self._keep(self.folder / WARM)
        wait()
        manual_seed(self.knobs.seed)  # the same numbers follow, whether the weights were trained or found

    def _train(
        self, tracker: Tracker, checkpoints: Checkpoints, identity: Mapping[str, str], state: dict[str, Any] | None
    ) -> None:
        """Train on synthetic slices, and keep the weights for equal warm starts."""
        key, start = self._key() if state is None else state["warm"]["key"], time.monotonic()
        slices = self.folder / SLICES
        if rank() == 0:
            write_synthetic(self._like, slices, self.knobs.images)
            logger.info("%d synthetic slices made in %.1f s", self.knobs.images, time.monotonic() - start)
        wait()
        trainer = self._trainer(slices)
        if state is not None:
            checkpoints.resume(state, trainer, identity)
            self.seconds = state["warm"]["seconds"]
        last = start

        def end_epoch(engine: Engine) -> None:
            nonlocal last
            now = time.monotonic()
            self.seconds, last = self.seconds + now - last, now
            checkpoints.save_last(trainer, tracker.resume_id, identity, {"key": key, "seconds": self.seconds})

        self._attach(trainer, tracker, end_epoch)
        if trainer.state.epoch < self.knobs.epochs:
            trainer.run()
        if rank() == 0:
            self._keep(self.cache / f"{key}.pt")
            slices.unlink(missing_ok=True)
        wait()

    def _trainer(self, slices: Path) -> Trainer:
        knobs = self.knobs
        dataset = build_dataset(str(slices), "train", cache_device=self.cache_device)
        loader = build_loader(dataset, knobs.batch_size, True, self.num_workers, knobs.seed)
        optimizer = build_optimizer(self.network, knobs.lr, knobs.weight_decay)
        epochs = positive_int("warm_epochs", knobs.epochs)
        schedule = Schedule(optimizer, "cosine", epochs=epochs * len(loader), end=LAST_RATE)  # stepped after every step
        device, loss = self.physics.mask.device, SupervisedOnSplits(self.split, knobs.alpha)
        return Trainer(
            device, epochs, loader, self.network, optimizer, loss, self.physics, SimpleInferer(),
            clip=knobs.clip, seed=knobs.seed, scheduler=schedule,
        )  # fmt: skip

    def _attach(self, trainer: Trainer, tracker: Tracker, end_epoch: Callable[[Engine], None]) -> None:
        losses: list[torch.Tensor] = []

        def step(engine: Engine) -> None:
            output: Any = engine.state.output
            losses.append(output["loss"])
            trainer.scheduler.step()  # type: ignore[union-attr]  # it has one

        def log(engine: Engine) -> None:
            loss, epoch = float(torch.stack(losses).mean()), engine.state.epoch
            losses.clear()
            end_epoch(engine)
            tracker.log_metrics({"warm/loss": loss, "warm/epoch": epoch}, engine.state.iteration)
            logger.info("warm epoch %d/%d  loss %.5f  %.1f s in all", epoch, engine.state.max_epochs, loss, self.seconds)

        trainer.add_event_handler(Events.ITERATION_COMPLETED, step)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, log)

    def _key(self) -> str:
        """Digest of all that determines the trained weights: data file, knobs, first weights, number of processes."""
        like = self._like
        facts = {
            "images": _digest({"first": draw(like.kind, 1, like.header.size, like.seed)}),  # another generator, other images
            "like": file_digest(self.data_file),
            "knobs": list(self.knobs),
            "split": [self.split.unit, self.split.split_ratio, self.split.n_center],
            "network": _digest(unwrapped(self.network).state_dict()),
            "architecture": architecture(unwrapped(self.network)),
            "processes": world_size(),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]

    def _keep(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_or_not(path) as temporary:
            network = unwrapped(self.network)
            state = {"reconstructor": network.state_dict(), "architecture": architecture(network), "seconds": self.seconds}
            torch.save(state, temporary)

    def _load(self, path: Path) -> None:
        state = load_first_weights(path, self.network)
        self.seconds = float(state.get("seconds", 0.0))


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of tensors and their names."""
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
