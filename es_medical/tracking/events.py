"""Write each kind of event to MLflow, such that writing it twice changes nothing."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from es_medical.tracking.names import HIDDEN, MAX_PARAMETER, MAX_TAG, cut, free_name, hidden, in_force
from es_medical.tracking.server import experiment_of
from es_medical.tracking.spool import Event, Spool, files_checksum

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY_TAG, KEY_TAG_0_1 = f"{HIDDEN}key", "es_medical.key"
METRICS_AT_ONCE, ENTRIES_AT_ONCE = 1000, 100  # MLflow's batch limits


def start_run(client: "MlflowClient", spool: Spool, event: Event, uri: str) -> None:
    """Create the run, or continue the one that the event names, and save its id in the spool."""
    experiment_id = experiment_of(client, event["experiment"], uri)
    wanted = event["resume"]
    run_id = spool.state.run_id or _find_run(client, experiment_id, [wanted, spool.state.key])
    if run_id is None:
        tags = hidden({"key": spool.state.key} | ({"resumed_from": wanted} if wanted else {}))
        tags["mlflow.user"] = event.get("user", "unknown")
        run = client.create_run(experiment_id, start_time=event["time"], tags=tags, run_name=event["run_name"])
        run_id = run.info.run_id
    info = client.get_run(run_id).info  # a continued run may be in another experiment
    if info.lifecycle_stage == "deleted":
        client.restore_run(run_id)
        print(f"es_medical: the run {run_id} had been deleted from MLflow: it is restored and continued", file=sys.stderr)
    client.update_run(run_id, status="RUNNING")
    experiment_id = info.experiment_id
    spool.keep(replace(spool.state, run_id=run_id, experiment_id=experiment_id))


def _find_run(client: "MlflowClient", experiment_id: str, names: list[str | None]) -> str | None:
    """Return the id of the run that has one of these ids or keys; None if there is none."""
    from mlflow.entities import ViewType

    for name in filter(None, names):
        for tag in (KEY_TAG, KEY_TAG_0_1):
            for run in client.search_runs([experiment_id], f"tags.`{tag}` = '{name}'", ViewType.ALL, max_results=1):
                return run.info.run_id
        if has_run(client, name):
            return name
    return None


def has_run(client: "MlflowClient", run_id: str) -> bool:
    """Whether the server has a run of this id, deleted or not."""
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return True


def _finish(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    client.set_terminated(run_id, event["status"], end_time=event["time"])


class Earlier:
    """What earlier sessions of a continued run have logged, asked for once per curve.

    A killed session has logged steps that the next one repeats from the last checkpoint: with the same values, unless knobs
    were changed. Points with the same step and value, and pictures with the same step and content, are not logged again.
    """

    def __init__(self, client: "MlflowClient", run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._curves: dict[str, dict[int, set[float]]] = {}

    def has_point(self, name: str, value: float, step: int) -> bool:
        """Whether the run has this point; of a repeated epoch's time, any value counts."""
        if name not in self._curves:
            points: dict[int, set[float]] = {}
            for metric in self._client.get_metric_history(self._run_id, name):
                points.setdefault(metric.step, set()).add(metric.value)
            self._curves[name] = points
        logged = self._curves[name].get(step, set())
        return bool(logged) if name == "epoch_time" else value in logged

    def has_picture(self, folder: Path) -> bool:
        """Whether the run has this picture, which is named by its series, step, time and content."""
        series, _, rest = min(path.name for path in folder.iterdir()).partition("+timestamp+")
        content = rest.partition("+")[2]
        names = [PurePosixPath(info.path).name for info in self._client.list_artifacts(self._run_id, "images")]
        return any(name.startswith(f"{series}+timestamp+") and name.endswith(content) for name in names)


def log_metrics(client: "MlflowClient", run_id: str, events: list[Event], earlier: Earlier) -> None:
    """Log the metrics of all these events, each with its own step and time, in as few requests as possible."""
    from mlflow.entities import Metric

    metrics = [
        Metric(name, value, event["time"], event["step"])
        for event in events
        for name, value in event["values"].items()
        if not (event.get("continued") and not name.startswith("system/") and earlier.has_point(name, value, event["step"]))
    ]
    for part in _parts(metrics, METRICS_AT_ONCE):
        client.log_batch(run_id, metrics=part)


def _log_params(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """Log parameters; a value other than the current one is added as `name.epochN`, as MLflow allows no change."""
    from mlflow.entities import Param

    logged = client.get_run(run_id).data.params
    values = {name: cut(value, MAX_PARAMETER) for name, value in event["values"].items()}
    changed = {name: value for name, value in values.items() if in_force(logged, name, event["epoch"]) != value}
    params = [Param(free_name(logged, name, event["epoch"]), value) for name, value in changed.items()]
    for part in _parts(params, ENTRIES_AT_ONCE):
        client.log_batch(run_id, params=part)


def _set_tags(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    from mlflow.entities import RunTag

    tags = [RunTag(name, cut(value, MAX_TAG)) for name, value in event["values"].items()]
    for part in _parts(tags, ENTRIES_AT_ONCE):
        client.log_batch(run_id, tags=part)


def _parts(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _log_dataset(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = json.dumps({"num_rows": event["n"], "sha256": event["digest"]})
    source = json.dumps({"uri": event["path"]})
    dataset = Dataset(event["name"], event["digest"][:36], "local", source, profile=profile)  # 36: MLflow's limit
    client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", event["context"])])])


def _existing(spool: Spool, event: Event) -> Path:
    path = spool.folder / event["file"]
    if not path.exists():
        raise FileNotFoundError(f"{path} no longer exists")
    if event.get("checksum") not in (None, files_checksum(path)):
        raise ValueError(f"{path} is not what was written")
    return path


def _log_artifact(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    path, folder = _existing(spool, event), event["folder"]
    if path.is_dir():
        client.log_artifacts(run_id, str(path), str(PurePosixPath(folder) / path.name))
    else:
        client.log_artifact(run_id, str(path), folder or None)
    _check_arrived(client, run_id, [path], folder)


@lru_cache(maxsize=1)
def _is_local(client: "MlflowClient", run_id: str) -> bool:
    """Whether the run's artifacts are files that this process copies itself, with an error where it can't."""
    from mlflow.utils.uri import is_local_uri

    return is_local_uri(client.get_run(run_id).info.artifact_uri)


def _check_arrived(client: "MlflowClient", run_id: str, paths: Iterable[Path], folder: str, model: str = "") -> None:
    """Raise ConnectionError unless the run, or its model, has these files: a proxy may answer an upload by a page of its own.

    Files of a local store are not looked for: to copy them raises what goes wrong.
    """
    if _is_local(client, run_id):
        return
    place = folder or None
    listed = client.list_logged_model_artifacts(model, place) if model else client.list_artifacts(run_id, place)
    there = {PurePosixPath(info.path).name: info.file_size for info in listed}
    for path in paths:
        if path.is_dir():
            _check_arrived(client, run_id, path.iterdir(), str(PurePosixPath(folder) / path.name), model)
        elif path.name not in there or there[path.name] not in (None, path.stat().st_size):
            raise ConnectionError(f"{path.name} was sent, and did not arrive")


def _log_image(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """Log the two files of a stepped image as `client.log_image` does, under the same names each time it is sent."""
    folder = _existing(spool, event)
    if event.get("continued") and Earlier(client, run_id).has_picture(folder):
        return
    client.log_artifacts(run_id, str(folder), "images")
    _check_arrived(client, run_id, folder.iterdir(), "images")
    client.set_tag(run_id, "mlflow.loggedImages", "True")


def _log_table(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """Log a table file as `client.log_table` does, but replace an existing file in place of appending to it."""
    _log_artifact(client, spool, run_id, event)
    tag = "mlflow.loggedArtifacts"
    known = json.loads(client.get_run(run_id).data.tags.get(tag, "[]"))
    entry = {"path": str(PurePosixPath(event["folder"]) / PurePosixPath(event["file"]).name), "type": "table"}
    if entry not in known:
        client.set_tag(run_id, tag, json.dumps([*known, entry]))


def _log_model(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """Register the saved model as a logged model of the run, identified by its own tag."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    from es_medical.data.atomic import whole_or_not  # here because es_medical.data loads torch

    folder, experiment_id = _existing(spool, event), spool.state.experiment_id
    assert experiment_id is not None
    tag, key = f"{KEY_TAG_0_1}.model", f"{run_id}/{event['id']}"
    found = client.search_logged_models([experiment_id], f"tags.`{tag}` = '{key}'", max_results=1)
    model = next(iter(found), None) or client.create_logged_model(
        experiment_id, name=event["name"], source_run_id=run_id, tags={tag: key}
    )
    try:
        description = Model.load(str(folder))
    except Exception as error:  # of YAML and MLflow, of many types
        raise ValueError(f"{folder / 'MLmodel'} is damaged: {error}") from error
    description.run_id, description.model_id = run_id, model.model_id
    description.model_uuid, description.artifact_path = model.model_id, model.artifact_location
    with whole_or_not(folder / "MLmodel") as part:
        description.save(str(part))
    client.log_model_artifacts(model.model_id, str(folder))
    _check_arrived(client, run_id, folder.iterdir(), "", model.model_id)
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    outputs: Any = client.get_run(run_id).outputs
    if model.model_id not in [output.model_id for output in (outputs.model_outputs if outputs else [])]:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=event["step"])])
    if event.get("register"):
        _register(client, event["register"], run_id, model.model_id, model.artifact_location)


def _register(client: "MlflowClient", name: str, run_id: str, model_id: str, source: str) -> None:
    """Add the logged model to the registry as a new version of `name`, once."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    if source not in [version.source for version in versions]:
        client.create_model_version(name, source, run_id, model_id=model_id)


SINGLE: dict[str, Callable[["MlflowClient", Spool, str, Event], None]] = {
    "params": _log_params,
    "tags": _set_tags,
    "dataset": _log_dataset,
    "artifact": _log_artifact,
    "image": _log_image,
    "table": _log_table,
    "model": _log_model,
    "finish": _finish,
}
