"""Finished MLflow runs of the bundles as records: knobs, data and scores."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from es_medical.knobs import logged_knobs, number
from es_medical.methods import current_name
from es_medical.report.reading.store import ReportError, artifact_bytes, artifact_paths, experiments, open_store
from es_medical.tracking import with_hidden

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

OPERATOR_KNOBS = ("acceleration", "center_fraction", "views", "mask", "keep", "ratio", "sigma")
"""Knobs of the operator and its noise, in the order of titles."""

CURVES = ("epoch", "epoch_time", "val/psnr", "val/ssim", "val/baseline_psnr", "val/baseline_ssim", "val/heldout")
CASES = "test/cases.json"
PAGE = 1000  # runs of one request, MLflow's limit is 50,000


class Point(NamedTuple):
    """One logged value: training step, value, time in ms since 1970."""

    step: int
    value: float
    time: int


@dataclass(frozen=True)
class Details:
    """The part of a run that is read on first use, as each curve takes a request.

    Attributes:
        curves: points of each metric, by step; where a step was logged twice (resumed training), the later value.
        items: scores of each test item; empty where the table of items was not logged.
    """

    curves: Mapping[str, tuple[Point, ...]]
    items: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        client: client that reads `details`.
        run_id: MLflow's id of the run.
        name: name of the run.
        experiment: name of the MLflow experiment.
        start: ms since 1970.
        params: knobs; where one changed on resuming, its last value.
        tags: tags of the run.
        metrics: last value of each metric.
        digest: SHA-256 of the slice file; "" where it was not logged.
        sizes: number of items by split (train, val, test).
    """

    client: "MlflowClient" = field(repr=False, compare=False)
    run_id: str
    name: str
    experiment: str
    start: int
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, float]
    digest: str
    sizes: Mapping[str, int]

    @property
    def method(self) -> str:
        """Name of the method."""
        return current_name(self.tags["method"])

    @property
    def bundle(self) -> str:
        """Name of the bundle."""
        return self.tags.get("bundle", "")

    @property
    def seed(self) -> str:
        """Seed of the training."""
        return self.params.get("seed", "0")

    @property
    def data_set(self) -> str:
        """Name of the slice file, without its folder."""
        path = self.tags.get("data_set") or self.params.get("data_file", "")
        return path.replace("\\", "/").rpartition("/")[2]

    @property
    def scale(self) -> str:
        """The tag `scale`; without it "demo" if the name of the experiment or data says so, else "not stated"."""
        if self.tags.get("scale"):
            return self.tags["scale"]
        demo = "demo" in self.experiment.split("_") or self.data_set.startswith("demo")
        return "demo" if demo else "not stated"

    @property
    def operator(self) -> tuple[tuple[str, str], ...]:
        """The operator's knobs with their values, as (name, value); only those that are set."""
        values = ((name, self.tags.get(name) or self.params.get(name, "")) for name in OPERATOR_KNOBS)
        return tuple((name, value) for name, value in values if value not in ("", "None"))

    @property
    def variant(self) -> str:
        """The noise level that the loss assumes, where it differs from that of the data: "" for most runs."""
        assumed, sigma = self.params.get("assumed_sigma", "None"), dict(self.operator).get("sigma")
        if number(assumed) == 0 and number(sigma) != 0:
            return "noise level taken as zero"
        factor = self.params.get("sigma_factor", "1.0")
        return "" if number(factor) in (1, None) else f"noise level times {number(factor):g}"

    @property
    def trained_here(self) -> bool:
        """Whether the run includes a training, and is not just a later test of its weights."""
        return "epoch_time" in self.metrics

    @property
    def warm_seconds(self) -> float:
        """Duration of the warm start in s, 0 without one: also where its weights were found, as it was when they were made."""
        return self.metrics.get("warm/seconds", 0.0)

    @property
    def warm_start(self) -> str:
        """Where the first weights come from; "" for random ones."""
        return self.tags.get("warm_start", "")

    @cached_property
    def details(self) -> Details:
        """Curves and items, read on first use."""
        logged = [name for name in CURVES if name in self.metrics]
        return Details({name: _curve(self.client, self.run_id, name) for name in logged}, _items(self.client, self.run_id))


@dataclass(frozen=True)
class Found:
    """The runs of a store, and remarks on the runs that were left out."""

    runs: tuple[Run, ...]
    remarks: tuple[str, ...]


def read_runs(uri: str | None, names: list[str] | None = None, scale: str | None = None) -> Found:
    """Read the finished, tested runs of a store.

    Args:
        uri: tracking URI of MLflow; None takes MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the working directory.
        names: names of MLflow experiments; None takes all.
        scale: keep only runs of this scale; None keeps all.

    Raises:
        ReportError: the store cannot be read, or has no experiment of such a name.
    """
    client = open_store(uri)
    by_id = {one.experiment_id: one.name for one in experiments(client, names)}
    left_out: Counter[str] = Counter()
    kept = []
    for run in _all_runs(client, list(by_id)):
        cause = _cause_against(run)
        if not cause:
            record = _record(client, run, by_id[run.info.experiment_id])
            cause = "" if scale in (None, record.scale) else f"of another scale ({record.scale})"
        if cause:
            left_out[cause] += 1
        else:
            kept.append(record)
    return Found(tuple(kept), tuple(f"left out: {n} run{'s' if n > 1 else ''} {cause}" for cause, n in left_out.items()))


def _all_runs(client: "MlflowClient", experiment_ids: list[str]) -> "Iterator[MlflowRun]":
    """Yield all runs that are not deleted, page by page."""
    token = None
    while experiment_ids:
        page = client.search_runs(experiment_ids, max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _cause_against(run: "MlflowRun") -> str:
    """Return why a run is left out of the tables; "" for a run that is shown."""
    if "method" not in run.data.tags:
        return "without a method (not of a bundle, or the parent of others)"
    if run.info.status != "FINISHED":
        return f"not finished ({run.info.status})"
    return "" if any(name.startswith("test/") for name in run.data.metrics) else "without test scores"


def _record(client: "MlflowClient", run: "MlflowRun", experiment: str) -> Run:
    digest, sizes = _data(run)
    info, tags = run.info, with_hidden(run.data.tags)
    params, name = logged_knobs(run.data.params, tags), str(info.run_name or info.run_id)
    return Run(client, info.run_id, name, experiment, info.start_time, params, tags, run.data.metrics, digest, sizes)


def _data(run: "MlflowRun") -> tuple[str, dict[str, int]]:
    """Return the digest of the slice file, and the number of items of each of its splits."""
    digest, sizes = "", {}
    for one in run.inputs.dataset_inputs if run.inputs else []:
        profile = json.loads(one.dataset.profile or "{}")
        context = next((tag.value for tag in one.tags if tag.key == "mlflow.data.context"), "")
        if context == "warm":  # images of the warm start: made, not measured
            continue
        digest = str(profile.get("sha256") or one.dataset.digest)
        if "num_rows" in profile:
            sizes[context] = int(profile["num_rows"])
    return digest, sizes


def _curve(client: "MlflowClient", run_id: str, name: str) -> tuple[Point, ...]:
    history = sorted(client.get_metric_history(run_id, name), key=lambda metric: (metric.step, metric.timestamp))
    points = {metric.step: Point(metric.step, metric.value, metric.timestamp) for metric in history}
    return tuple(points.values())


def _items(client: "MlflowClient", run_id: str) -> dict[str, dict[str, float]]:
    """Return the scores of each test item by its id."""
    if CASES not in artifact_paths(client, run_id, "test"):
        return {}
    table = json.loads(artifact_bytes(client, run_id, CASES))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    if len({str(row["id"]) for row in rows}) != len(rows):
        raise ReportError(f"{CASES} of run {run_id} has an id twice: its items cannot be matched")
    names = [name for name in table["columns"] if name not in ("id", "index")]
    return {str(row["id"]): {name: math.nan if row[name] is None else float(row[name]) for name in names} for row in rows}
