"""Record a job in MLflow, and lay out its cases as pictures."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from monai.engines import Workflow
from numpy.typing import NDArray

from es_medical.data import file_digest, read_header
from es_medical.data.schema import GROUND_TRUTH
from es_medical.engine.auto import Settings
from es_medical.engine.config import resolved_configuration
from es_medical.engine.distributed import rank
from es_medical.engine.evaluator import Case
from es_medical.engine.synthetic_slices import synthetic_kind
from es_medical.knobs import MAIN, NO_KNOBS
from es_medical.methods import METHODS, TABLE
from es_medical.output.pictures import picture
from es_medical.tracking import NullTracker, Tracker, flatten, hidden

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """What to record of a job, and where.

    Attributes:
        tracking_uri: MLflow tracking URI; None uses MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the working directory.
        experiment: name of the MLflow experiment.
        run_name: name of the run.
        tags: tags of the run: method, operator, bundle, ...
        output_dir: folder for data not yet sent to MLflow.
        data_file: the slice file, recorded as the run's data set.
        study: name of the run's study, by which `es_medical.report` finds it; None for none.
        parent_run: ID of the parent MLflow run; None for none.
        window: values shown as black and white in pictures, in stored units.
        error_max: value shown as white in spread and error pictures.
        settings: settings in force: values that were chosen are logged as knobs, and why as hidden tags `auto.NAME`; None for
            none.
        register: name under which the model becomes a version in MLflow's registry; None for none.
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
    settings: Settings | None = None
    register: str | None = None

    @property
    def method(self) -> str:
        """Training method, from the tags."""
        return str(self.tags.get("method", "network"))

    @property
    def label(self) -> str:
        """The method's name in tables and sentences."""
        return TABLE[self.method].label if self.method in TABLE else self.method

    @property
    def learns(self) -> bool:
        """Whether the method is trained; an unknown name counts as trained."""
        return self.method not in METHODS or METHODS[self.method].trained

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the data file."""
        return file_digest(self.data_file)

    @property
    def chosen(self) -> dict[str, float | str | bool]:
        """Values of the knobs that were `auto`."""
        return {} if self.settings is None else self.settings.chosen

    @property
    def image(self) -> str:
        """What the data file's images are: "ground truth" or "reference"."""
        return read_header(self.data_file).image_name

    def tracker(self, run_id: str | None = None) -> Tracker:
        """Create the tracker of this process; only the first process tracks."""
        if rank() != 0:
            return NullTracker()
        return Tracker(self.tracking_uri, self.experiment, self.run_name, Path(self.output_dir) / "unsent", run_id)

    def start(self, tracker: Tracker, engines: Mapping[str, Workflow], epoch: int = 0) -> None:
        """Start the run and log its knobs, tags and data sets; `engines` by the split that they work on.

        MLflow writes all parameters below every picture: only the main knobs are parameters, the others one hidden tag.
        """
        configuration = resolved_configuration()
        knobs = {name: value for name, value in configuration.items() if not isinstance(value, dict) and name not in NO_KNOBS}
        size = next(iter(engines.values())).physics.image_size  # type: ignore[attr-defined]  # our engines
        kind = synthetic_kind(self.data_file)
        groups = {"study": self.study, "mlflow.parentRunId": self.parent_run}
        groups["synthetic_images"] = kind or None
        groups["images"] = None if self.image == GROUND_TRUTH else self.image
        tags = {name: str(value) for name, value in (dict(self.tags) | groups).items() if value is not None}
        knobs |= self.chosen
        unseen = {"image_size": f"{size[0]} x {size[1]}"}
        if self.settings is not None:
            unseen |= {f"auto.{name}": why for name, why in self.settings.why.items()}
        shown = {name: knobs[name] for name in MAIN if knobs.get(name) is not None}
        unseen["knobs"] = json.dumps(flatten({name: value for name, value in knobs.items() if name not in shown}))
        tracker.start(shown, yaml.safe_dump(configuration, sort_keys=False), tags | hidden(unseen), epoch)
        path = Path(self.data_file)
        digest = self.digest if rank() == 0 else ""
        for context, engine in engines.items():
            name = f"{path.name}:{context}" + (f" (synthetic images, {kind})" if kind else "")
            tracker.log_dataset(path, name, context, digest, _size(engine))
        sizes = ", ".join(f"{_size(engine)} {context} slices" for context, engine in engines.items())
        logger.info("%s: %s of %s%s", self.run_name, sizes, self.data_file, f" (synthetic images, {kind})" if kind else "")

    def arrays(self, cases: Sequence[Case]) -> dict[str, NDArray[Any]]:
        """Stack the cases as arrays: `id` (n,), images (n, C, H, W) in stored units, and the display window."""
        names = ["baseline", "reconstruction", "spread"]
        names += ["target"] if all(case.target is not None for case in cases) else []
        images = {name: np.stack([getattr(case, name).numpy() for case in cases]) for name in names} if cases else {}
        return {"id": np.array([case.id for case in cases], dtype=str), "window": np.array(self.window, float)} | images

    def picture(self, case: Case, baseline: str) -> NDArray[np.uint8]:
        """Lay out one case: baseline | reconstruction | spread | target | error."""
        images = (case.baseline, case.reconstruction, case.spread, case.target)
        low, high = self.window
        window, target = (float(low), float(high)), "target" if self.image == GROUND_TRUTH else self.image
        return picture(*images, window=window, error_max=float(self.error_max), baseline_name=baseline, target_name=target)


def _size(engine: Workflow) -> int:
    """Return the number of slices of an engine, over all processes."""
    return len(engine.data_loader.dataset)  # type: ignore[union-attr, arg-type]
