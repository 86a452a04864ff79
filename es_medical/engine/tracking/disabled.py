"""The tracker of the processes that don't track."""

# ruff: noqa: D102 - the methods are documented at Tracker

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .tracker import Tracker

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn


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

    def log_arrays(self, arrays: Mapping[str, npt.NDArray[Any]], artifact_file: str) -> None: ...

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
