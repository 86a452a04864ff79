"""What is recorded of a job in MLflow, and how its cases are shown."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from monai.engines import Workflow
from numpy.typing import NDArray

from es_medical.data import file_digest
from es_medical.engine.config import resolved_configuration
from es_medical.engine.distributed import rank
from es_medical.engine.evaluator import Case
from es_medical.methods import METHODS
from es_medical.output.pictures import picture
from es_medical.tracking import NullTracker, Tracker

logger = logging.getLogger(__name__)

STEPS = ("initialize", "run", "finalize")
"""Entries of a configuration that are instructions, not knobs."""


@dataclass(frozen=True)
class Record:
    """What is recorded of a job, and where.

    Attributes:
        tracking_uri: MLflow's; None takes MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the working directory.
        experiment: name of the MLflow experiment.
        run_name: name of the run.
        tags: what the run is: method, operator, bundle, ...
        output_dir: folder for what is not sent to MLflow yet.
        data_file: the slice file, for the lineage.
        study: name of the study that the run is a part of, by which `es_medical.report` finds it; None for none.
        parent_run: MLflow run that this one is a child of; None for none.
        window: values shown as black and white in pictures, in stored units.
        error_max: value shown as white in spread and error pictures.
    """

    tracking_uri: str | None
    experiment: str
    run_name: str
    tags: Mapping[str, Any]
    output_dir: str
    data_file: str
    study: str | None = None
    parent_run: str | None = None
    window: tuple[float, float] = (0.0, 1.0)
    error_max: float = 0.2

    @property
    def method(self) -> str:
        """The training method, by the tags."""
        return str(self.tags.get("method", "network"))

    @property
    def learns(self) -> bool:
        """Whether the method is a training; a name that is not ours counts as one."""
        return self.method not in METHODS or METHODS[self.method].trained

    def tracker(self, run_id: str | None = None) -> Tracker:
        """Make the tracker of this process; only the first one tracks."""
        if rank() != 0:
            return NullTracker()
        return Tracker(self.tracking_uri, self.experiment, self.run_name, Path(self.output_dir) / "unsent", run_id)

    def start(self, tracker: Tracker, engines: Mapping[str, Workflow], epoch: int = 0) -> None:
        """Log what the run is made of; `engines` by the split that they work on."""
        configuration = resolved_configuration()
        knobs = {name: value for name, value in configuration.items() if not isinstance(value, dict) and name not in STEPS}
        size = next(iter(engines.values())).physics.image_size  # type: ignore[attr-defined]  # our engines
        groups = {"study": self.study, "mlflow.parentRunId": self.parent_run, "image_size": f"{size[0]} x {size[1]}"}
        tags = {name: str(value) for name, value in (dict(self.tags) | groups).items() if value is not None}
        tracker.start(knobs, yaml.safe_dump(configuration, sort_keys=False), tags, epoch)
        path = Path(self.data_file)
        digest = file_digest(path) if rank() == 0 else ""
        for context, engine in engines.items():
            tracker.log_dataset(path, f"{path.name}:{context}", context, digest, _size(engine))
        sizes = ", ".join(f"{_size(engine)} {context} slices" for context, engine in engines.items())
        logger.info("%s: %s of %s", self.run_name, sizes, self.data_file)

    def arrays(self, cases: Sequence[Case]) -> dict[str, NDArray[Any]]:
        """Gather the cases as arrays: `id` (n,), images (n, C, H, W) in stored units, and the window that is shown."""
        names = ["baseline", "reconstruction", "spread"]
        names += ["target"] if all(case.target is not None for case in cases) else []
        images = {name: np.stack([getattr(case, name).numpy() for case in cases]) for name in names} if cases else {}
        return {"id": np.array([case.id for case in cases], dtype=str), "window": np.array(self.window, float)} | images

    def picture(self, case: Case, baseline: str) -> NDArray[np.uint8]:
        """Lay out one case: baseline | reconstruction | spread | target | error."""
        images = (case.baseline, case.reconstruction, case.spread, case.target)
        low, high = self.window
        return picture(*images, window=(float(low), float(high)), error_max=float(self.error_max), baseline_name=baseline)


def _size(engine: Workflow) -> int:
    """Number of slices that an engine works on, over all processes."""
    return len(engine.data_loader.dataset)  # type: ignore[union-attr, arg-type]
