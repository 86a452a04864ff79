"""Tracking with MLflow: what the engine imports, and the command that sends an unsent log.

`python -m es_medical.engine.tracking send SPOOL --uri URI`
"""

# ruff: noqa: D102 - the methods of NullTracker are documented at Tracker

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .names import flatten
from .provenance import environment, git_commit
from .resend import main
from .termination import TerminatedError, terminate_on_sigterm
from .tracker import Tracker

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

__all__ = [
    "NullTracker",
    "TerminatedError",
    "Tracker",
    "environment",
    "flatten",
    "git_commit",
    "make_tracker",
    "terminate_on_sigterm",
]


def make_tracker(
    enabled: bool,
    uri: str | None,
    experiment: str,
    run_name: str,
    spool_dir: Path,
    run_id: str | None = None,
    system_interval: float | None = 10.0,
) -> Tracker:
    """A `Tracker` in the one process that tracks (`enabled`), a `NullTracker` in the others.

    Raises:
        ValueError: The URI is a file store.
        OSError: `spool_dir` cannot be written.
    """
    if not enabled:
        return NullTracker()
    return Tracker(uri, experiment, run_name, spool_dir, run_id, system_interval)


class NullTracker(Tracker):
    """Takes every call of `Tracker` and does nothing: no file, no server, no thread."""

    def __init__(self) -> None:
        self.uri = ""

    @property
    def run_id(self) -> str | None:
        return None

    @property
    def resume_id(self) -> str:
        return ""

    def start(self, params: Mapping[str, Any], config_text: str, tags: Mapping[str, str], epoch: int = 0) -> None: ...

    def log_params(self, params: Mapping[str, Any], epoch: int = 0) -> None: ...

    def set_tags(self, tags: Mapping[str, str]) -> None: ...

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_image(self, key: str, image: npt.NDArray[np.uint8], step: int) -> None: ...

    def log_text(self, text: str, artifact_file: str) -> None: ...

    def log_dict(self, content: Mapping[str, Any], artifact_file: str) -> None: ...

    def log_figure(self, figure: "Figure", artifact_file: str) -> None: ...

    def log_artifact(self, path: Path, artifact_folder: str = "") -> None: ...

    def log_table(self, table: Mapping[str, Sequence[Any]], artifact_file: str) -> None: ...

    def log_dataset(self, path: Path, name: str, context: str, digest: str, n: int) -> None: ...

    def log_model(self, module: "nn.Module", example_input: "Tensor", name: str = "model", step: int = 0) -> None: ...

    def finish(self, status: str = "FINISHED") -> None: ...


if __name__ == "__main__":
    sys.exit(main())
