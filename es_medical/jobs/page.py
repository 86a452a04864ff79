"""Show a run while it goes on: its curves and pictures in MLflow, and its page `overview.html` beside the weights."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from es_medical.data.schema import GROUND_TRUTH
from es_medical.engine.distributed import rank
from es_medical.engine.evaluator import Evaluator
from es_medical.jobs.record import Record
from es_medical.output.overview import Overview
from es_medical.output.results import json_value, numbers, verdict
from es_medical.tracking import Tracker

CURVES = ("psnr", "ssim", "heldout", "baseline_psnr", "baseline_ssim")
"""Scores of the validation that are logged as curves; also `equiv`, if it is there."""

HASH = re.compile("[0-9a-f]{16}")  # a pseudonym of data_prep

EXAMPLE = 64  # largest side of the input example of the logged model

CHARTS = {"psnr": "PSNR (dB)", "ssim": "SSIM", "heldout": "held-out error"}

HELD_OUT = (
    "The relative error of measurements that the network did not see, predicted from the others: 1 for an image of zeros. "
    "It needs no ground truth, and contains the noise of those measurements."
)


class RunPage:
    """Logs the results of a job as they come.

    Args:
        record: what to record of the job, and where.
        tracker: gets the curves, pictures and page.
        file: the page on the disk.
        evaluator: its operator names the baseline.
        without: what was done without ground truth, in a few words, for the verdict.
    """

    def __init__(self, record: Record, tracker: Tracker, file: Path, evaluator: Evaluator, without: str) -> None:
        self.record, self.tracker, self.file, self.without = record, tracker, file, without
        self.baseline = evaluator.physics.baseline
        target = "ground truth" if record.image == GROUND_TRUTH else record.image
        low, high = record.window
        names, window = {"baseline": self.baseline, "target": target}, (float(low), float(high))
        self.page = Overview("", record.run_name, names, window, float(record.error_max))
        self.page.facts["Held-out error"] = HELD_OUT

    def resume(self, key: str, epoch: int) -> None:
        """Go on with the page of the training `key` after an epoch; with a new training, begin one."""
        self.page.key = key
        found = Overview.read(self.file, key, epoch) if epoch and rank() == 0 else None
        if found is not None:
            self.page.curves, self.page.slices, self.page.facts = found.curves, found.slices, found.facts

    def facts(self, facts: Mapping[str, str]) -> None:
        """Add paragraphs by their titles; empty ones are left out."""
        self.page.facts |= {name: text for name, text in facts.items() if text}

    def loss(self, epoch: int, loss: float) -> None:
        """Add the mean loss of an epoch to the page."""
        self.page.add_point("loss", "training", epoch, loss)

    def validated(self, validator: Evaluator, epoch: int, iteration: int, shown: bool = True) -> None:
        """Log the scores of a validation and, if `shown`, its pictures; make the page again."""
        metrics = validator.state.metrics
        means = {name: value for name, value in numbers(metrics).items() if name in (*CURVES, "equiv")}
        self.tracker.log_metrics({f"val/{name}": value for name, value in means.items()}, iteration)
        if not shown or rank() != 0:
            return
        for name, title in CHARTS.items():
            for curve, score in (("validation", name), (self.baseline, f"baseline_{name}")):
                if score in means:
                    self.page.add_point(title, curve, epoch, means[score])
        self._pictures(validator, "recon", "validation", epoch)
        place = f"on {len(validator.rows)} validation slices after epoch {epoch}"
        self.page.verdict = verdict(self.record.label, self.without, metrics, self.baseline, place)
        self._write()

    def tested(self, tester: Evaluator, epoch: int, table: Mapping[str, list[str]]) -> str:
        """Show the result of the test; return it as a sentence."""
        self._pictures(tester, "test", "test", epoch)
        place = f"on {len(tester.rows)} test slices"
        self.page.verdict = verdict(self.record.label, self.without, tester.state.metrics, self.baseline, place)
        self.page.table = {name: list(column) for name, column in table.items()}
        self.page.rows = [{name: json_value(value) for name, value in row.items() if name != "index"} for row in tester.rows]
        self._write(last=True)
        return self.page.verdict

    def model(self, network: nn.Module, img_size: Sequence[int], epoch: int) -> None:
        """Log the denoiser, named by its bundle, with a random image as its input example."""
        channels, *sides = img_size
        example = torch.rand(2, channels, *(min(side, EXAMPLE) for side in sides), generator=torch.Generator().manual_seed(0))
        self.tracker.log_model(network, example, str(self.record.tags.get("bundle", "model")), epoch, self.record.register)

    def _pictures(self, evaluator: Evaluator, series: str, kind: str, epoch: int) -> None:
        """Show the cases, by their ids, or where these are hashes by their place among the slices."""
        ids = [row["id"] for row in evaluator.rows]
        for case in evaluator.cases:
            place = f"{ids.index(case.id) + 1} of {len(ids)}"
            name = place if HASH.fullmatch(case.id) else case.id.replace("/", "_")
            self.tracker.log_image(f"{series}/{name}", self.record.picture(case, self.baseline), epoch)
            self.page.add_pictures(f"{kind} slice {name}", epoch, case.baseline, case.reconstruction, case.spread, case.target)

    def _write(self, last: bool = False) -> None:
        if rank() == 0:
            self.page.write(self.file)
            self.tracker.log_page(self.file, last)


def short_use(needs_image: bool, chosen_by_image: bool, image: str) -> str:
    """Describe what images were used for, for the verdict: "no ground truth"."""
    return f"trained with {image}" if needs_image else f"{image} in the choice of weights" if chosen_by_image else f"no {image}"


def long_use(needs_image: bool, chosen_by_image: bool, image: str) -> str:
    """Describe what images were used for, in sentences."""
    trained = f"on measurements and {image}" if needs_image else "on measurements alone"
    chosen = f"by PSNR to the {image}" if chosen_by_image else "by the held-out error, which needs no images"
    after = f"PSNR, SSIM and error pictures compare with the {image}, where the data file has it, after the fact."
    return f"Trained {trained}; the weights were chosen {chosen}. {after}"
