"""Calibrate intervals on measurements alone, and measure their coverage."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from es_medical.data.atomic import whole_or_not
from es_medical.engine.checkpoint import Checkpoints
from es_medical.engine.config import positive_int
from es_medical.engine.distributed import gather, rank
from es_medical.engine.evaluator import Evaluator
from es_medical.groups import Group
from es_medical.jobs.intervals import FEWER, interval_settings
from es_medical.jobs.record import Record
from es_medical.output.results import print_table
from es_medical.physics import Batch
from es_medical.tracking import Tracker, terminate_on_sigterm
from es_medical.uncertainty import (
    FILE,
    LEVELS,
    Calibration,
    Coverage,
    Distances,
    EquivariantBootstrap,
    Passes,
    Resampler,
    Scale,
    curve,
    estimator,
    heldout_scale,
    image_distances,
    scaled,
    with_level,
)
from es_medical.uncertainty.figures import coverage_figure

logger = logging.getLogger(__name__)

SHOWN = (0.5, 0.8, 0.9, 0.95)
"""Levels in the printed table."""


class IntervalKind(NamedTuple):
    """One kind of interval and its resamplers."""

    name: str
    resampler: Resampler
    """Draws the images from which the interval is computed."""
    fewer: Resampler
    """Draws fewer images in the same way, for each fold of held-out measurements."""


class IntervalResult(NamedTuple):
    """Calibration and coverage of one kind of interval."""

    kind: IntervalKind
    calibration: Calibration
    panels: dict[str, dict[str, list[Coverage]]]
    """Quantity to cover -> name of the interval, calibrated or not -> its coverage."""


Columns = tuple[Tensor, ...]
"""Values of the slices of a batch, (B, ...) each."""

Measure = Callable[[Batch], Columns]
"""Computes such values for a batch."""


class CalibrationJob:
    """Calibrates the intervals of trained weights on measurements alone, and measures their coverage on the test slices.

    Writes `calibration.json` next to the weights: the calibration of the equivariant bootstrap on the validation slices, for
    `--calibrate_by file` in inference. Coverage is measured on held-out measurements and, with ground truth, on the image:
    of uncalibrated intervals, of those "calibrated" on the validation slices, and of those "self-calibrated" on the held-out
    measurements of each test slice. If images are averages over splits, the spread over splits, noise and group is treated
    in the same way, for comparison.

    Args:
        validator: evaluator of the validation slices.
        tester: evaluator of the test slices.
        checkpoints: weights to load, and the folder to write to.
        record: what to record of the job, and where.
        group: group of the bootstrap.
        n_bootstrap: number of resampled images for each reconstruction.
        n_folds: number of parts of the measurements, held out in turn; see `heldout_scale`.

    Raises:
        ValueError: n_bootstrap or n_folds is not a positive whole number.
    """

    def __init__(
        self,
        validator: Evaluator,
        tester: Evaluator,
        checkpoints: Checkpoints,
        record: Record,
        group: Group,
        n_bootstrap: float = 30,
        n_folds: float = 5,
    ) -> None:
        self.validator, self.tester, self.checkpoints, self.record = validator, tester, checkpoints, record
        self.group, self.n_bootstrap, self.n_folds = (
            group,
            positive_int("n_bootstrap", n_bootstrap),
            positive_int("n_folds", n_folds),
        )

    def run(self) -> None:
        """Calibrate; print and log the coverage of the intervals."""
        with terminate_on_sigterm(), self.record.tracker() as tracker:
            self.record.start(tracker, {"val": self.validator, "test": self.tester})
            epoch = self.checkpoints.load_best()
            self.checkpoints.network.eval()
            found = [self._calibrated(kind) for kind in self._kinds()]
            self._keep(found[0].calibration, tracker)
            self._report(found, epoch, tracker)

    def _kinds(self) -> list[IntervalKind]:
        """Return the bootstrap and, if images are averages over splits, the spread."""
        inferer, both = self.validator.inferer, (self.n_bootstrap, FEWER)
        bootstraps = (EquivariantBootstrap(self.group, n, inferer.seed, inferer.transmission) for n in both)
        one_pass = estimator(inferer, self.checkpoints.network, 1)
        kinds = [IntervalKind("bootstrap", *bootstraps)]
        return kinds + [IntervalKind("spread", *(Passes(one_pass, n) for n in both))] * inferer.averages_splits

    def _calibrated(self, kind: IntervalKind) -> IntervalResult:
        ours, _ = self._heldout(self.validator, kind)
        settings = interval_settings(self.validator.inferer, self.group, self.checkpoints.folder, self.record.method)
        calibration = Calibration(ours, settings | {"n_bootstrap": self.n_bootstrap, "n_folds": self.n_folds})
        test, scale = self._heldout(self.tester, kind)
        names = kind.name, f"{kind.name}, calibrated", f"{kind.name}, self-calibrated"
        panels = {"held-out measurements": {names[0]: curve(test), names[1]: _widened(test, calibration)}}
        if "image" in self.tester.data_loader.dataset[0]:  # type: ignore[union-attr]
            images = self._images(kind)
            curves = curve(images), _widened(images, calibration), curve(scaled(images, scale))
            panels["images"] = dict(zip(names, curves, strict=True))
        return IntervalResult(kind, calibration, panels)

    def _heldout(self, engine: Evaluator, kind: IntervalKind) -> tuple[Distances, Scale]:
        f, inferer = estimator(engine.inferer, self.checkpoints.network), engine.inferer

        def measure(batch: Batch) -> Columns:
            distances, scale = heldout_scale(f, kind.fewer, batch, inferer.split, self.n_folds, inferer.seed)
            return distances.error, distances.resampled, scale.factor, scale.uncertainty

        error, resampled, factor, uncertainty = _measured(engine, measure)
        return Distances(error, resampled), Scale(factor, uncertainty)

    def _images(self, kind: IntervalKind) -> Distances:
        f = estimator(self.tester.inferer, self.checkpoints.network)

        def measure(batch: Batch) -> Columns:
            distances = image_distances(f, kind.resampler, batch)
            return distances.error, distances.resampled

        return Distances(*_measured(self.tester, measure))

    def _keep(self, calibration: Calibration, tracker: Tracker) -> None:
        path = self.checkpoints.folder / FILE
        if rank() == 0:
            with whole_or_not(path) as temporary:
                calibration.save(temporary)
            tracker.log_artifact(path, "uncertainty")
            logger.info("calibrated on %d validation slices, without ground truth: see %s", calibration.n, path)

    def _report(self, found: list[IntervalResult], epoch: int, tracker: Tracker) -> None:
        panels: dict[str, dict[str, list[Coverage]]] = {}
        for result in found:
            for truth, curves in result.panels.items():
                panels.setdefault(truth, {}).update(curves)
        tracker.log_figure(coverage_figure(panels), "uncertainty/coverage.png")
        tracker.log_table(coverage_table(panels, LEVELS), "uncertainty/coverage.json")
        tracker.log_metrics(coverage_metrics(panels), epoch)
        warn_of_other_slices(panels["held-out measurements"])
        if rank() == 0:
            folder = self.checkpoints.folder
            coverage_figure(panels).savefig(folder / PICTURE)
            print_coverage(coverage_table(panels, SHOWN), found[0].calibration, folder)


def _widened(distances: Distances, calibration: Calibration) -> list[Coverage]:
    return curve(distances.times(torch.ones(1, 1)), calibration.factor)


def _measured(evaluator: Evaluator, measure: Measure) -> Columns:
    """Compute values for all slices of an evaluator, over all processes, in the order of the file."""
    rows: list[tuple[int, Columns]] = []
    for read in evaluator.data_loader:
        batch = Batch.of(read, evaluator.physics, evaluator.state.device)
        found = measure(with_level(evaluator.inferer, batch))
        items = zip(*(column.cpu().double() for column in found), strict=True)
        rows += zip(read["index"].tolist(), items, strict=True)
    ordered = [items for _, items in sorted(dict(gather(rows)).items())]
    return tuple(torch.stack(column) for column in zip(*ordered, strict=True))


Panels = Mapping[str, Mapping[str, Sequence[Coverage]]]
"""Quantity to cover -> name of the interval -> its coverage at each level."""

PICTURE = "coverage.png"


def coverage_table(panels: Panels, levels: Sequence[float]) -> dict[str, list[str]]:
    """Tabulate coverage: one row per quantity covered and kind of interval, one column per level."""
    rows = [(truth, name, points) for truth, curves in panels.items() for name, points in curves.items()]
    table = {"covers": [truth for truth, _, _ in rows], "interval": [name for _, name, _ in rows]}
    for level in levels:
        table[f"{100 * level:g} %"] = [_cell(point) for _, _, points in rows for point in points if point.level == level]
    return table


def coverage_metrics(panels: Panels, level: float = 0.9) -> dict[str, float]:
    """Return the coverage of each kind of interval at one level as MLflow metrics, e.g. coverage_90/bootstrap.images."""
    return {
        f"coverage_{100 * level:g}/{name.replace(', ', '_')}.{truth.replace(' ', '_')}": point.share
        for truth, curves in panels.items()
        for name, points in curves.items()
        for point in points
        if point.level == level
    }


def print_coverage(table: Mapping[str, list[str]], calibration: Calibration, folder: Path) -> None:
    """Print the table and its interpretation."""
    from rich.console import Console

    print_table(table, "Test slices whose error lies in its interval (95 % confidence, slices taken as independent)", 130)
    console = Console()
    console.width = max(console.width, 130)
    console.print(
        f"calibrated: 90 % of the errors are below {calibration.factor(0.9):.2f} times what the bootstrap predicts, by the "
        f"held-out measurements of {calibration.n} slices, enough for levels up to {100 * calibration.highest_level:.0f} %"
    )
    console.print(f"picture:  {folder / PICTURE}", soft_wrap=True)


def warn_of_other_slices(curves: Mapping[str, Sequence[Coverage]], level: float = 0.9) -> None:
    """Warn if the test slices' held-out measurements are covered too rarely or too often; no ground truth is needed.

    That is the case if the 95 % confidence interval of the coverage does not contain the level.
    """
    for name, points in curves.items():
        for point in points:
            if name == "bootstrap, calibrated" and point.level == level and not point.low <= level <= point.high:
                text = (
                    "%.0f %% intervals cover the held-out measurements of %d of %d test slices: validation slices do not "
                    "represent them; calibrate each slice by itself: --calibrate_by scan"
                )
                logger.warning(text, 100 * level, point.covered, point.n)


def _cell(point: Coverage) -> str:
    return f"{100 * point.share:.0f} % [{100 * point.low:.0f}, {100 * point.high:.0f}]"
