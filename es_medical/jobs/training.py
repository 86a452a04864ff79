"""Train, choose the best weights, test and track them; or only test trained weights."""

import logging
import time
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.engines import Workflow
from torch import Tensor

from es_medical.engine import launch
from es_medical.engine.checkpoint import BEST, Checkpoints
from es_medical.engine.config import kept_configuration, positive_int
from es_medical.engine.distributed import mean_over_processes, rank
from es_medical.engine.evaluator import Evaluator
from es_medical.engine.trainer import Trainer
from es_medical.engine.weights.averaging import in_use
from es_medical.jobs.diagnosis_tags import diagnosis_tags
from es_medical.jobs.model_card import write_card
from es_medical.jobs.page import RunPage, long_use, short_use
from es_medical.jobs.penalty_search import best_weight, search_penalty
from es_medical.jobs.record import Record
from es_medical.jobs.warm_start import WarmStart
from es_medical.methods import METHODS, SELF_SUPERVISED, SUPERVISED
from es_medical.networks import Penalised
from es_medical.output.results import json_value, markdown, print_places, print_table, summary_table
from es_medical.tracking import Tracker, hidden, terminate_on_sigterm

logger = logging.getLogger(__name__)

SCORES = ("psnr", "ssim", "heldout")
"""Test scores logged as MLflow metrics; test/summary.json and test/cases.json have all scores."""


class Evaluation:
    """Tests trained weights, in a separate MLflow run. Only the first process tracks and writes.

    Args:
        tester: scores the test slices.
        checkpoints: weights to load.
        record: what to record of the job, and where.
    """

    def __init__(self, tester: Evaluator, checkpoints: Checkpoints, record: Record) -> None:
        self.tester, self.checkpoints, self.record = tester, checkpoints, record
        tester.progress.title = "test"

    def run(self) -> None:
        """Test the weights; print and log the table."""
        page = self.checkpoints.folder / "evaluation.html"
        with terminate_on_sigterm(), self.record.tracker() as tracker:
            self.record.start(tracker, {"test": self.tester})
            kind = METHODS[self.record.method].kind if self.record.method in METHODS else SELF_SUPERVISED
            without = f"trained with {self.record.image}" if kind == SUPERVISED else f"no {self.record.image} in training"
            self._test(tracker, RunPage(self.record, tracker, page, self.tester, without))
        self._say_places(tracker, page)

    def _test(self, tracker: Tracker, page: RunPage, iteration: int = 0) -> str:
        epoch = self.checkpoints.load_best()
        self.tester.run()
        metrics, rows = self.tester.state.metrics, self.tester.rows
        shown = {f"test/{name}": value for name, value in metrics.items() if name in SCORES}
        tracker.log_metrics(shown, iteration)
        tracker.log_table({name: [json_value(row[name]) for row in rows] for name in rows[0]}, "test/cases.json")
        table = summary_table(self.record.method, metrics, len(rows), self.tester.physics.baseline, self.record.image)
        tracker.log_table(table, "test/summary.json")
        found = page.tested(self.tester, epoch, table)
        description = markdown(table, epoch, found)
        tracker.set_tags({"mlflow.note.content": description})
        tracker.log_arrays(self.record.arrays(self.tester.cases), "test/cases.npz")
        if self.record.learns:  # else the denoiser still has its random weights
            page.model(self.checkpoints.network_def, self.tester.physics.img_size, epoch)
        if rank() == 0:
            print_table(table, f"Test slices, weights of epoch {epoch} (mean ± standard deviation)", 110)
            print(found)
        return description

    def _say_places(self, tracker: Tracker, page: Path) -> None:
        if rank() == 0:
            print_places(self.checkpoints.folder, page, *tracker.place)


class Training(Evaluation):
    """Trains, saves the best weights and tests them, in one MLflow run. Only the first process tracks and writes.

    For a method that learns nothing, the weight of its penalty is chosen instead, on the validation slices by the same key
    metric (see `search_penalty`).

    Args:
        trainer: the training engine.
        validator: scores the validation slices; its key metric chooses the best weights.
        tester: scores the test slices with the best weights at the end.
        checkpoints: save and load weights and states.
        record: what to record of the job, and where.
        warm: gives the network its first weights; None for random ones.
        val_interval: number of epochs between two validations (and pictures).
        log_interval: number of steps between two logged losses.
        resume: continue from the last checkpoint, in its MLflow run.
    """

    def __init__(
        self,
        trainer: Trainer,
        validator: Evaluator,
        tester: Evaluator,
        checkpoints: Checkpoints,
        record: Record,
        warm: WarmStart | None = None,
        val_interval: int = 1,
        log_interval: int = 10,
        resume: bool = False,
    ) -> None:
        super().__init__(tester, checkpoints, record)
        self.trainer, self.validator, self.resume = trainer, validator, resume
        validator.progress.title = "validation"
        self.warm = warm if warm is not None and warm.wanted and record.learns else None
        self.val_interval = positive_int("val_interval", val_interval)
        self.log_interval = positive_int("log_interval", log_interval)
        self._steps: list[dict[str, Tensor]] = []
        self._losses: list[Tensor] = []
        self._epoch_start = 0.0

    def run(self) -> None:
        """Train, save the best weights by the validator's key metric, test them; print and log the table.

        Raises:
            FloatingPointError: a loss, or every validation score, was not finite.
            ValueError: what is to be resumed is an unfinished warm start, and the configuration has none, or a file of weights.
        """
        before = launch.restarted(self.checkpoints.folder)  # by torchrun, after a process was lost
        state = self.checkpoints.read_last(None if self.resume else before.get("key", "")) if self.record.learns else None
        if state and state.get("warm") and (self.warm is None or self.warm.weights is not None):
            raise ValueError(
                f"{self.checkpoints.folder} holds an unfinished warm start: resume with its warm_images and other knobs, or "
                "start a new training in another ckpt_dir"
            )
        file = self.checkpoints.folder / "overview.html"
        with terminate_on_sigterm(), self.record.tracker(state["run_id"] if state else before.get("run_id")) as tracker:
            epoch = state["epoch"] if state and not state.get("warm") else 0
            engines: dict[str, Workflow] = {"train": self.trainer} if self.record.learns else {}
            self.record.start(tracker, engines | {"val": self.validator, "test": self.tester}, epoch)
            launch.keep(self.checkpoints.folder, state["key"] if state else self.checkpoints.key, tracker, before, epoch)
            self.checkpoints.configuration = kept_configuration(self.record.chosen)
            uses = (self.trainer.loss.needs_image, self.validator.key_metric == "psnr")
            self._uses = ("used" if uses[0] else "not used", "used" if uses[1] else "not used")
            logger.info("%s: %s in training, %s in the choice of weights", self.record.image, *self._uses)
            self.page = RunPage(self.record, tracker, file, self.tester, short_use(*uses, self.record.image))
            if rank() == 0 and not state:
                self._state_facts(tracker, long_use(*uses, self.record.image))
            if not state and (self.checkpoints.folder / BEST).exists():
                logger.warning("the weights of an earlier training in %s will be overwritten", self.checkpoints.folder)
            if self.record.learns:
                self._train(tracker, state)
            else:
                self._choose(tracker)
            if not self.checkpoints.has_best:
                raise FloatingPointError("no epoch had a finite validation score: there are no weights to test")
            write_card(self.checkpoints, self.record, self._uses, self._test(tracker, self.page, self.trainer.state.iteration))
            launch.end(self.checkpoints.folder)
        self._say_places(tracker, file)

    def _state_facts(self, tracker: Tracker, uses: str) -> None:
        """Put on the page what was done without ground truth, and what the group adds to the operator."""
        tags = diagnosis_tags(self.tester, self.trainer.loss, self.record.method) if self.record.learns else {}
        tracker.set_tags(hidden(tags))
        why = {} if self.record.settings is None else self.record.settings.why
        chosen = "; ".join(f"{name} {getattr(self.record.settings, name)} ({cause})" for name, cause in why.items())
        facts = {"Without ground truth": uses, "Chosen from the measurements": chosen}
        self.page.facts(facts | {"Diagnosis of the operator": tags.get("diagnosis.words", "")})

    def _train(self, tracker: Tracker, state: dict[str, Any] | None) -> None:
        """Train from the beginning, or continue from `state`."""
        if self.validator.key_metric == "heldout" and not self.validator.inferer.split_input:
            logger.warning(
                "the held-out error ranks networks trained on split measurements, as with es; %s is trained on whole "
                "measurements: with images to compare with, choose the weights by --key_metric psnr",
                self.record.method,
            )
        if state and not state.get("warm"):
            self.checkpoints.resume(state, self.trainer, self._identity)
            self.page.resume(self.checkpoints.key, state["epoch"])
        else:
            self.page.resume(self.checkpoints.key, 0)
            if self.warm is not None:
                self.warm.run(tracker, self.checkpoints, self._identity, state)
            state = None
            logger.info("before training%s", self._validate(0))
            self.checkpoints.heldout_before = self.validator.state.metrics["heldout"]
            if self.warm is not None or launch.launch():  # no best weights without their last.pt
                self.checkpoints.save_last(self.trainer, tracker.resume_id, self._identity)
        self._attach(tracker)
        if state is None or state["epoch"] < self.trainer.state.max_epochs:
            self.trainer.run()
            self._warn_of_worse()
        else:
            logger.info("epoch %d of %d is done already: nothing to train", state["epoch"], self.trainer.state.max_epochs)

    def _warn_of_worse(self) -> None:
        """Warn if the held-out error after training is above that before it, which a warm start can make low."""
        first, last = self.checkpoints.heldout_before, self.validator.state.metrics["heldout"]
        if self.warm is not None and last > first:
            logger.warning(
                "the held-out error rose from %.4g before training to %.4g at its end. The weights kept are those of epoch %d: "
                "a lower lr or fewer epochs may serve better",
                *(first, last, self.checkpoints.best_epoch),
            )

    def _choose(self, tracker: Tracker) -> None:
        """Choose the weight of a method's penalty on the validation slices; a method without a penalty is only scored."""
        unused = "epochs, lr, resume, the warm start and the other knobs of a training are not used"
        logger.info("%s learns nothing: %s", self.record.method, unused)
        start, network = time.monotonic(), self.checkpoints.network
        if isinstance(network, Penalised):
            self._choose_penalty(network, tracker)
        line = self._validate(1)
        seconds = time.monotonic() - start
        tracker.log_metrics({"epoch": 1, "epoch_time": seconds}, self.trainer.state.iteration)
        logger.info("%s  %.1f s%s", self.record.method, seconds, line)

    def _choose_penalty(self, network: Penalised, tracker: Tracker) -> None:
        """Log the score of every weight, with its number as step, and set the best weight."""

        def score(weight: float) -> float:
            network.set_weight(weight)
            logger.info("weight %.3g%s", weight, self._validate(1, shown=False))
            tracker.log_metrics({"val/weight": weight}, self.trainer.state.iteration)
            self.trainer.state.iteration += 1
            return self.validator.score

        scores = search_penalty(score)
        chosen = best_weight(scores)
        network.set_weight(chosen)
        if chosen in (min(scores), max(scores)):
            logger.warning("the weight %.3g is at the end of those that were tried: a better one may lie beyond", chosen)
        tracker.log_params({"weight": chosen})
        tracker.log_metrics({"val/weight": chosen}, self.trainer.state.iteration)

    @property
    def _identity(self) -> dict[str, str]:
        inferer, metric = self.validator.inferer, self.validator.key_metric
        other_images = metric == "psnr" and inferer.split_input and not inferer.averages_splits
        return {"method": self.record.method, "key_metric": metric + " of images from all of y" * other_images}

    def _attach(self, tracker: Tracker) -> None:
        on = self.trainer.add_event_handler
        on(Events.EPOCH_STARTED, self._start_epoch)
        on(Events.ITERATION_COMPLETED, self._log_step, tracker)
        on(Events.EPOCH_COMPLETED, self._end_epoch, tracker)
        on(Events.COMPLETED, self._log_losses, tracker)  # steps of an incomplete last interval

    def _start_epoch(self, engine: Engine) -> None:
        self._epoch_start, self._losses = time.monotonic(), []

    def _log_step(self, engine: Engine, tracker: Tracker) -> None:
        output: Any = engine.state.output  # what Trainer._iteration returns
        self._steps.append(output)
        self._losses.append(output["loss"])
        if engine.state.iteration % self.log_interval == 0:
            self._log_losses(engine, tracker)

    def _log_losses(self, engine: Engine, tracker: Tracker) -> None:
        if self._steps:
            means = {f"train/{name}": value for name, value in self._interval_means().items()}
            tracker.log_metrics(means, engine.state.iteration)

    def _interval_means(self) -> dict[str, float]:
        """Average the logged values of the steps since the last call; the CPU waits for the device here, not in a step."""
        steps, self._steps = self._steps, []
        names = list(steps[0])
        means = torch.stack([torch.stack([step[name].float() for name in names]) for step in steps]).mean(0)
        return dict(zip(names, mean_over_processes(means).tolist(), strict=True))

    def _end_epoch(self, engine: Engine, tracker: Tracker) -> None:
        epoch, seconds = engine.state.epoch, time.monotonic() - self._epoch_start
        loss = float(mean_over_processes(torch.stack(self._losses).mean()))
        lr = self.trainer.optimizer.param_groups[0]["lr"]
        tracker.log_metrics({"epoch": epoch, "epoch_time": seconds, "lr": lr}, engine.state.iteration)
        self.checkpoints.scheduler.step()
        self.page.loss(epoch, loss)
        line = f"epoch {epoch}/{engine.state.max_epochs}  loss {loss:.5f}  {seconds:.1f} s"
        if epoch % self.val_interval == 0 or epoch == engine.state.max_epochs:
            line += self._validate(epoch)
        self.checkpoints.save_last(self.trainer, tracker.resume_id, self._identity)
        logger.info(line)

    def _validate(self, epoch: int, shown: bool = True) -> str:
        with in_use(self.trainer.average):
            self.validator.run(epoch)
            candidate = epoch > 0 or self.warm is not None  # random weights are none
            best = candidate and self.checkpoints.save_best(self.validator.score, epoch)
        metrics = self.validator.state.metrics
        if best:
            scores = f"Not tested yet. Held-out error of the validation slices: {metrics['heldout']:.4g}."
            write_card(self.checkpoints, self.record, self._uses, scores)
        self.page.validated(self.validator, epoch, self.trainer.state.iteration, shown)
        name = self.validator.physics.baseline
        psnr = f"  psnr {metrics['psnr']:.2f} dB ({name} {metrics['baseline_psnr']:.2f})" if "psnr" in metrics else ""
        return f"  held-out {metrics['heldout']:.4g}{psnr}{'  best so far' if best else ''}"
