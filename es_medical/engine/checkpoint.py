"""Checkpoints: resume exactly where training stopped, and keep the best weights."""

import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from es_medical.engine.distributed import gather, rank, wait
from es_medical.engine.operators import check_operator
from es_medical.engine.schedule import replay
from es_medical.engine.trainer import Trainer
from es_medical.engine.training_data import preparation, refuse_seen, seen, warn_of_other_pixels
from es_medical.engine.weights.identity import Identity, architecture, complete_architecture, refuse_other_architecture
from es_medical.engine.weights.random_states import random_states, set_random_states
from es_medical.engine.weights.state_file import BEST, LAST, MODEL, TRAIN_FIRST, read_state, write_state
from es_medical.inferers import Inferer
from es_medical.losses.unsure import NAME as MULTIPLIER
from es_medical.methods import current_name
from es_medical.physics import Operator

logger = logging.getLogger(__name__)


class Checkpoints:
    """Writes three files in a bundle's `models` folder, each whole or not at all.

    `last.pt`: everything needed to resume (weights, optimiser, epoch, best score, random states).
    `reconstructor.pt`: the best weights, for evaluation and inference. `model.pt`: the denoiser of the best weights alone,
    as the plain state dict that MONAI's export commands take.

    Args:
        folder: the `models` folder.
        network: the reconstructor.
        network_def: the denoiser in it.
        physics: the operator it is trained for; its mask is saved with the best weights.
        inferer: how it is used; its settings are saved with the best weights.
        scheduler: learning rate scheduler.
        data_file: slice file of the training; how it was prepared is saved with the best weights, so that a scan can be
            prepared in the same way.

    Attributes:
        configuration: the training's configuration, saved with all weights (see `es_medical.engine.settings.knobs_to_keep`).
    """

    def __init__(
        self,
        folder: str | Path,
        network: nn.Module,
        network_def: nn.Module,
        physics: Operator,
        inferer: Inferer,
        scheduler: LRScheduler,
        data_file: str | Path | None = None,
    ) -> None:
        if data_file is not None:
            check_operator(physics, data_file)
        self.folder, self.network, self.network_def = Path(folder), network, network_def
        self.physics, self.inferer, self.scheduler = physics, inferer, scheduler
        self.data_file = data_file
        self.data = {} if data_file is None else {"preparation": preparation(data_file), "seen": seen(data_file)}
        self.configuration: dict[str, Any] = {}
        self.best_score, self.best_epoch = float("-inf"), 0
        self.heldout_before = float("nan")  # held-out error before training
        self.key = gather([uuid.uuid4().hex])[0]  # of this training: tells its files from another one's

    @property
    def has_best(self) -> bool:
        """Whether this training has saved best weights."""
        return self.best_score > float("-inf")

    @property
    def _identity(self) -> Identity:
        return Identity.of(self.network, self.physics, self.inferer)

    def save_best(self, score: float, epoch: int) -> bool:
        """Save the weights of `epoch` if their score is the best so far; a score that is not finite never is."""
        better = score > self.best_score and score < float("inf")
        if better:
            self.best_score, self.best_epoch = score, epoch
            if rank() == 0:
                best = {"reconstructor": self.network.state_dict(), "epoch": epoch, "score": score}
                best |= {"key": self.key, "configuration": self.configuration} | self.data | self._identity._asdict()
                write_state(best, self.folder / BEST)
                self._write_denoiser()
        return better

    def _write_denoiser(self) -> None:
        """Save the denoiser's weights; for a method without a denoiser, delete those of an earlier training."""
        if any(module is self.network_def for module in self.network.modules()):
            write_state(self.network_def.state_dict(), self.folder / MODEL)
        else:
            (self.folder / MODEL).unlink(missing_ok=True)

    def save_last(
        self,
        trainer: Trainer,
        run_id: str,
        identity: Mapping[str, str] | None = None,
        warm: Mapping[str, str | float] | None = None,
    ) -> None:
        """Save everything that `resume` needs.

        Args:
            trainer: the trainer, between two epochs.
            run_id: the MLflow run to continue.
            identity: method and key metric of the training, by name.
            warm: what an unfinished warm start needs to continue; None after it, or without one.
        """
        if rank() == 0:
            state = {
                "reconstructor": self.network.state_dict(),
                "optimizer": trainer.optimizer.state_dict(),
                "epoch": trainer.state.epoch,
                "iteration": trainer.state.iteration,
                "best": [self.best_score, self.best_epoch],
                "heldout_before": self.heldout_before,
                "run_id": run_id,
                "random": [random_states(trainer.generator)],  # the same in every process
                "key": self.key,
                "identity": dict(identity or {}),
                "warm": None if warm is None else dict(warm),
                "average": None if trainer.average is None else trainer.average.state_dict(),
                "configuration": self.configuration,
            }
            write_state(state | self.data | self._identity._asdict(), self.folder / LAST)

    def read_last(self, key: str | None = None) -> dict[str, Any] | None:
        """Read what `save_last` wrote, in the training with a key; None if there is nothing of that training.

        Raises:
            FileNotFoundError: no key is given, and there is nothing to resume.
        """
        if key is not None and not (self.folder / LAST).is_file():
            return None
        state = read_state(self.folder / LAST, "train first, or leave out --resume")
        return state if key in (None, state["key"]) else None

    def resume(self, state: dict[str, Any], trainer: Trainer, identity: Mapping[str, str] | None = None) -> None:
        """Restore the trainer, network, its average, optimiser, scheduler and random numbers from `state`.

        The configuration's values apply from here on, even if changed: learning rate, milestones, weight decay, batch size.
        With another key metric, the choice of the best weights starts again.

        Raises:
            ValueError: the weights belong to another network, method, sampling mask or scanner, or have seen test subjects.
        """
        before, now = state["identity"], dict(identity or {})
        trained, configured = (current_name(str(names.get("method"))) for names in (before, now))
        kept, given = Identity.kept(state), self._identity
        if trained != configured or not kept.same_mask(given):
            raise ValueError(
                f"{self.folder / LAST} is from a training by method {trained} with its own sampling mask, this one "
                f"is by {configured} with {int(self.physics.mask.sum())} measured entries: resume with the same method "
                "and data, or start a new training in another ckpt_dir"
            )
        kept.refuse_other_network(given, "training", self.folder)
        if other := kept.other_scanner(given):
            raise ValueError(
                f"{self.folder / LAST} is from a training for another operator: other {other}; resume with its data"
            )
        if self.data_file is not None:
            refuse_seen(state.get("seen"), self.data_file, self.folder / LAST)
        _load(self.network, state["reconstructor"], self.folder)
        groups = trainer.optimizer.state_dict()["param_groups"]
        trainer.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        if trainer.average is not None and state.get("average"):  # otherwise it starts from these weights
            trainer.average.load_state_dict(state["average"])
        trainer.state.epoch, trainer.state.iteration = state["epoch"], state["epoch"] * trainer.state.epoch_length
        if state.get("warm"):
            replay(trainer.scheduler, trainer.state.iteration)  # stepped after every step
        else:
            replay(self.scheduler, trainer.state.epoch, trainer.state.iteration)
        self.key, self.heldout_before = state["key"], state.get("heldout_before", float("nan"))
        metric_before, metric_now = before.get("key_metric"), now.get("key_metric")
        if metric_before == metric_now:
            self.best_score, self.best_epoch = state["best"]
        else:
            logger.warning("key_metric was %s and is %s: the best weights are chosen anew", metric_before, metric_now)
        set_random_states(state["random"][0], trainer.generator)
        self._announce(state, trainer)

    def _announce(self, state: dict[str, Any], trainer: Trainer) -> None:
        before, now = (saved["param_groups"][0]["lr"] for saved in (state["optimizer"], trainer.optimizer.state_dict()))
        change = "" if now == before else f" (it was {before:g})"
        logger.info("resumed after epoch %d, learning rate %g%s", state["epoch"], now, change)
        if trainer.state.iteration != state["iteration"]:
            logger.warning(
                "the steps of an epoch have changed: iteration %d counts as %d, so curves over steps overlap or have a gap",
                *(state["iteration"], trainer.state.iteration),
            )

    def load_best(self) -> int:
        """Load the best weights into the network and return their epoch; see `load_weights`.

        Raises:
            ValueError: weights of an earlier training have seen test subjects of the data file.
            RuntimeError: another training has overwritten the best weights of this one.
        """
        wait()
        own = self.key if self.has_best else None
        if own is None and self.data_file is not None:
            refuse_seen(read_state(self.folder / BEST, TRAIN_FIRST).get("seen"), self.data_file, self.folder)
        return load_weights(self.folder, self.network, self.physics, self.inferer, own, self.data_file)


def load_first_weights(path: Path, network: nn.Module, physics: Operator) -> dict[str, Any]:
    """Load weights to start a training from, and return all that their file holds.

    Args:
        path: `warm.pt` of a warm start, or `reconstructor.pt` of a training, for any operator of the same kind.
        network: the reconstructor.
        physics: its operator.

    The noise level that unsure learns is no weight: it is left as it is in the network, and not taken from the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it can't be read, holds no weights, or those of another network.
    """
    state = read_state(path, "give the file of weights to start from, warm.pt or reconstructor.pt")
    if not isinstance(state, dict) or not {"reconstructor", "architecture"} <= state.keys():
        raise ValueError(f"{path} holds no weights of a reconstructor: expected warm.pt or reconstructor.pt of a training")
    before = complete_architecture(state["architecture"])
    refuse_other_architecture(before, architecture(network, physics), "weights", path)
    own = {name: value for name, value in network.state_dict().items() if name.endswith(MULTIPLIER)}
    weights = {name: value for name, value in state["reconstructor"].items() if not name.endswith(MULTIPLIER)}
    _load(network, weights | own, path)
    return state


def load_weights(
    folder: str | Path,
    network: nn.Module,
    physics: Operator,
    inferer: Inferer,
    key: str | None = None,
    data_file: str | Path | None = None,
) -> int:
    """Load the best weights of a training into a reconstructor.

    Args:
        folder: the `models` folder of the training.
        network: the reconstructor.
        physics: the operator it will be used with; warns if the weights were trained with another mask or scanner.
        inferer: how it will be used; warns if the weights were trained for other splits or noise.
        key: key of the training that the weights must come from; None accepts any.
        data_file: slice file that they will be used on; warns if its pixels differ from those of the training.

    Returns:
        The epoch in which the weights were saved.

    Raises:
        FileNotFoundError: nothing was trained here yet.
        ValueError: the weights belong to another network, or to a method that takes another input.
        RuntimeError: the weights come from another training than `key`.
    """
    if data_file is not None:
        check_operator(physics, data_file)
    state = read_state(Path(folder) / BEST, TRAIN_FIRST)
    if key is not None and state["key"] != key:
        raise RuntimeError(f"another training has written to {folder} in the meantime: give each its own ckpt_dir")
    before, now = Identity.kept(state), Identity.of(network, physics, inferer)
    before.refuse_other_network(now, "weights", folder)
    _load(network, state["reconstructor"], folder)
    before.warn_of_other_use(now, folder)
    if data_file is not None:
        warn_of_other_pixels(state.get("preparation", {}), data_file, folder)
    return state["epoch"]


def read_preparation(folder: str | Path) -> dict[str, Any]:
    """Read how the data of the weights in `folder` was made (see `preparation`).

    Raises:
        FileNotFoundError: nothing was trained here yet.
    """
    return read_state(Path(folder) / BEST, TRAIN_FIRST).get("preparation", {})


def _load(network: nn.Module, weights: dict[str, Any], folder: str | Path) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights in {folder} are of another network (widths, iterations or group): {error}") from error
