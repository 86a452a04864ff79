"""Warm start: train a network with synthetic images as ground truth, before it sees the measurements of a data set."""

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.utils import manual_seed
from monai.inferers import SimpleInferer
from torch import nn

from es_medical import __version__
from es_medical.engine.checkpoint import Checkpoints, load_first_weights
from es_medical.engine.distributed import gather, mean_over_processes, rank, wait
from es_medical.engine.schedule import Schedule
from es_medical.engine.setup import build_dataset, build_loader, build_optimizer
from es_medical.engine.synthetic_slices import Likeness, write_synthetic
from es_medical.engine.trainer import Trainer
from es_medical.engine.training_data import refuse_seen
from es_medical.engine.weights.identity import architecture, module_settings, weights_digest
from es_medical.engine.weights.state_file import write_state
from es_medical.jobs.warm_knobs import WarmKnobs
from es_medical.losses import SupervisedOnSplits
from es_medical.physics import Operator
from es_medical.splits import Split
from es_medical.tracking import Tracker

logger = logging.getLogger(__name__)

WARM, SLICES = "warm.pt", "synthetic.h5"
LAST_RATE = 0.02  # fraction of the learning rate at the end of the warm start


class WarmStart:
    """Gives a network its first weights: those of a file, of an equal warm start before, or trained here.

    The network is trained with the supervised loss on synthetic images that are measured as the slices of the data file
    (`es_medical.engine.synthetic_slices`). No image of the data file is read. The weights are kept as `warm.pt` beside the
    other weights, and in `cache` under a name made from all that determines them, where an equal warm start finds them.

    Args:
        network: the reconstructor.
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
        sigma: noise level that the method assumes, and so the warm start; None for that of each slice.
        sigma_factor: factor that multiplies it.

    Raises:
        ValueError: an unknown kind of images, or one that the operator can't measure.
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
        sigma: float | None = None,
        sigma_factor: float = 1.0,
    ) -> None:
        self.network, self.physics, self.split = network, physics, split
        self.folder, self.cache, self.knobs = Path(folder), Path(cache), knobs
        self.weights = None if weights is None else Path(weights)
        self.cache_device, self.num_workers = cache_device, num_workers
        self.data_file, self.noise = data_file, (sigma, sigma_factor)
        self.seconds = 0.0  # of simulation and training
        self.source = f"{knobs.images} synthetic images of kind {self.like.kind}, {knobs.epochs} epochs" if knobs.images else ""
        """Where the weights come from, for the log and the tags of a run."""
        self.synthetic = True  # they have seen no other ground truth than synthetic images

    @cached_property
    def like(self) -> Likeness:
        """What the synthetic slices resemble."""
        return Likeness.of(self.data_file, self.knobs.kind, self.knobs.seed, *self.noise)

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do."""
        return self.knobs.images > 0 or self.weights is not None

    def run(
        self, tracker: Tracker, checkpoints: Checkpoints, identity: Mapping[str, str], state: dict[str, Any] | None
    ) -> None:
        """Put the first weights into the network; then set the global random states as at the start of a run.

        Args:
            tracker: gets the curves `warm/...` and the tag `warm_start`.
            checkpoints: save the state after each epoch.
            identity: method and key metric of the training, by name.
            state: of an interrupted warm start, to continue; None to begin.

        Raises:
            FileNotFoundError: there is no file of weights to start from.
            ValueError: its weights are of another network; or `state` is of another warm start.
        """
        if self.weights is not None:
            self._take(self.weights)
        else:
            self._find_or_train(tracker, checkpoints, identity, state)
        tracker.set_tags({"warm_start": self.source})
        tracker.log_metrics({"warm/seconds": self.seconds}, 0)
        if rank() == 0:
            self._keep(self.folder / WARM)
        wait()
        manual_seed(self.knobs.seed)  # the same numbers follow, whether the weights were trained or found

    def _find_or_train(
        self, tracker: Tracker, checkpoints: Checkpoints, identity: Mapping[str, str], state: dict[str, Any] | None
    ) -> None:
        logger.info("warm start: %s; ground truth: synthetic images only", self.source)
        key = self._key()
        if state is not None and state["warm"]["key"] != key:
            raise ValueError(
                f"{checkpoints.folder} holds an unfinished warm start with other images, knobs or first weights: resume with "
                "the same ones, or start a new training in another ckpt_dir"
            )
        tracker.log_dataset(
            self.folder / SLICES, f"synthetic images, {self.like.kind}", "warm", self.like.digest, int(self.knobs.images)
        )
        kept = self.cache / f"{key}.pt"
        if not self._found(kept):
            self._train(tracker, checkpoints, identity, state, key)
            if rank() == 0:
                self._keep_for_others(kept)

    def _found(self, kept: Path) -> bool:
        """Load the weights of an equal warm start, if the first process finds any that can be read."""
        found = False
        if rank() == 0 and kept.is_file():
            try:
                self._load(kept)
                found = True
            except ValueError as error:
                logger.warning("the weights of an earlier warm start are not used: %s", error)
        if not gather([found])[0]:
            return False
        if rank() > 0:
            self._load(kept)
        logger.info("the weights of an equal warm start were found: %s", kept)
        return True

    def _train(
        self,
        tracker: Tracker,
        checkpoints: Checkpoints,
        identity: Mapping[str, str],
        state: dict[str, Any] | None,
        key: str,
    ) -> None:
        """Train on synthetic slices, which are written for it and deleted afterwards."""
        start, slices = time.monotonic(), self.folder / SLICES
        try:
            if rank() == 0:
                write_synthetic(self.like, slices, int(self.knobs.images))
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

            self._log(trainer, tracker)
            trainer.add_event_handler(Events.EPOCH_COMPLETED, end_epoch)
            if trainer.state.epoch < self.knobs.epochs:
                trainer.run()
            wait()  # until every process has opened the slices
        finally:
            if rank() == 0:
                slices.unlink(missing_ok=True)

    def _trainer(self, slices: Path) -> Trainer:
        knobs = self.knobs
        device = self.physics.mask.device
        dataset = build_dataset(str(slices), "train", cache_device=self.cache_device, device=device)
        loader = build_loader(dataset, knobs.batch_size, True, self.num_workers, knobs.seed)
        optimizer, epochs = build_optimizer(self.network, knobs.lr, knobs.weight_decay), int(knobs.epochs)
        schedule = Schedule(optimizer, "cosine", epochs=epochs * len(loader), end=LAST_RATE)  # stepped after every step
        loss = SupervisedOnSplits(self.split, knobs.alpha)
        trainer = Trainer(
            device, epochs, loader, self.network, optimizer, loss, self.physics, SimpleInferer(),
            clip=knobs.clip, seed=knobs.seed, scheduler=schedule,
        )  # fmt: skip
        trainer.progress.title = "warm start"
        return trainer

    def _log(self, trainer: Trainer, tracker: Tracker) -> None:
        """Step the learning rate after each step, and log the mean loss of each epoch."""
        losses, start = list[torch.Tensor](), time.monotonic()

        def step(engine: Engine) -> None:
            output: Any = engine.state.output
            losses.append(output["loss"])
            trainer.scheduler.step()  # type: ignore[union-attr]  # it has one

        def log(engine: Engine) -> None:
            loss, epoch = float(mean_over_processes(torch.stack(losses).mean())), engine.state.epoch
            losses.clear()
            tracker.log_metrics({"warm/loss": loss, "warm/epoch": epoch}, engine.state.iteration)
            seconds = time.monotonic() - start
            logger.info("warm epoch %d/%d  loss %.5f  %.1f s in all", epoch, engine.state.max_epochs, loss, seconds)

        trainer.add_event_handler(Events.ITERATION_COMPLETED, step)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, log)

    def _key(self) -> str:
        """Digest of all that determines the trained weights: slices, knobs, network, first weights."""
        facts = {
            "slices": self.like.digest,
            "knobs": asdict(replace(self.knobs, kind=self.like.kind)),
            "split": vars(self.split),
            "network": module_settings(self.network),
            "architecture": architecture(self.network, self.physics),
            "weights": weights_digest(self.network),
            "version": __version__,
            "device": self.physics.mask.device.type,
            "processes": 1,  # any number takes the same steps
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]

    def _keep_for_others(self, kept: Path) -> None:
        """Keep the weights for equal warm starts; a folder that can't be written is no reason to stop."""
        try:
            self._keep(kept)
        except OSError as error:
            logger.warning("the weights of the warm start can't be kept for others: %s", error)

    def _keep(self, path: Path) -> None:
        network = self.network
        state: dict[str, Any] = {"reconstructor": network.state_dict(), "architecture": architecture(network, self.physics)}
        write_state(state | {"seconds": self.seconds, "source": self.source, "synthetic": self.synthetic}, path)

    def _load(self, path: Path) -> dict[str, Any]:
        state = load_first_weights(path, self.network, self.physics)
        self.seconds = float(state.get("seconds", 0.0))
        return state

    def _take(self, path: Path) -> None:
        """Load the weights that the user gives, and say what they have seen as far as their file does."""
        state = self._load(path)
        refuse_seen(state.get("seen"), self.data_file, path)
        origin = state.get("source", f"epoch {state.get('epoch', 'unknown')} of a training")
        self.source = f"weights of {path.name}: {origin}"
        self.synthetic = bool(state.get("synthetic", False))
        seen = "synthetic images only" if self.synthetic else "not known, see the training that the weights come from"
        logger.info("warm start: %s; ground truth: %s", self.source, seen)
