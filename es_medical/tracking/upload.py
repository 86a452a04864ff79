"""How each kind of event is written to MLflow, so that writing it twice changes nothing."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from es_medical.tracking.names import MAX_PARAMETER, MAX_TAG, cut, free_name, in_force
from es_medical.tracking.server import artifact_location, connect, is_final, shown
from es_medical.tracking.spool import Event, Line, Spool, State

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY_TAG = "es_medical.key"
METRICS_AT_ONCE, ENTRIES_AT_ONCE = 1000, 100  # MLflow's limits of a batch

# --- the run itself


def start_run(client: "MlflowClient", spool: Spool, event: Event, uri: str) -> None:
    """Create the run, or take up the one that the event names, and keep its id in the spool."""
    experiment_id = experiment_of(client, event["experiment"], uri)
    wanted = event["resume"]
    run_id = spool.state.run_id or _find_run(client, experiment_id, [wanted, spool.state.key])
    if run_id is None:
        tags = {KEY_TAG: spool.state.key} | ({"resumed_from": wanted} if wanted else {})
        run = client.create_run(experiment_id, start_time=event["time"], tags=tags, run_name=event["run_name"])
        run_id = run.info.run_id
    client.update_run(run_id, status="RUNNING")
    experiment_id = client.get_run(run_id).info.experiment_id  # a run to go on with may be in another one
    spool.keep(replace(spool.state, run_id=run_id, experiment_id=experiment_id))


def experiment_of(client: "MlflowClient", name: str, uri: str) -> str:
    """Return the id of an experiment, made or brought back if need be; its artifacts stand where `artifact_location` says."""
    found = client.get_experiment_by_name(name)
    if found is None:
        return client.create_experiment(name, artifact_location=artifact_location(uri, name))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def _find_run(client: "MlflowClient", experiment_id: str, names: list[str | None]) -> str | None:
    """The run that has one of these ids or keys."""
    from mlflow.exceptions import MlflowException

    for name in filter(None, names):
        for run in client.search_runs([experiment_id], f"tags.`{KEY_TAG}` = '{name}'", max_results=1):
            return run.info.run_id
        try:
            return client.get_run(name).info.run_id
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
    return None


def _finish(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    client.set_terminated(run_id, event["status"], end_time=event["time"])


# --- numbers and text


def log_metrics(client: "MlflowClient", run_id: str, events: list[Event]) -> None:
    """One request for the metrics of all these events, each with its own step and time."""
    from mlflow.entities import Metric

    metrics = [Metric(k, v, event["time"], event["step"]) for event in events for k, v in event["values"].items()]
    for first in range(0, len(metrics), METRICS_AT_ONCE):
        client.log_batch(run_id, metrics=metrics[first : first + METRICS_AT_ONCE])


def _log_params(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """A value that differs from the one in force stands beside it as `name.epochN`: MLflow lets none be changed."""
    from mlflow.entities import Param

    there = client.get_run(run_id).data.params
    values = {name: cut(value, MAX_PARAMETER) for name, value in event["values"].items()}
    changed = {name: value for name, value in values.items() if in_force(there, name, event["epoch"]) != value}
    params = [Param(free_name(there, name, event["epoch"]), value) for name, value in changed.items()]
    for first in range(0, len(params), ENTRIES_AT_ONCE):
        client.log_batch(run_id, params=params[first : first + ENTRIES_AT_ONCE])


def _set_tags(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    from mlflow.entities import RunTag

    tags = [RunTag(name, cut(value, MAX_TAG)) for name, value in event["values"].items()]
    for first in range(0, len(tags), ENTRIES_AT_ONCE):
        client.log_batch(run_id, tags=tags[first : first + ENTRIES_AT_ONCE])


def _log_dataset(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = json.dumps({"num_rows": event["n"], "sha256": event["digest"]})
    source = json.dumps({"uri": event["path"]})
    dataset = Dataset(event["name"], event["digest"][:36], "local", source, profile=profile)  # 36: MLflow's limit
    client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", event["context"])])])


# --- files


def _existing(spool: Spool, event: Event) -> Path:
    path = spool.folder / event["file"]
    if not path.exists():
        raise FileNotFoundError(f"{path} is no longer there")
    return path


def _log_artifact(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    path, folder = _existing(spool, event), event["folder"]
    if path.is_dir():
        client.log_artifacts(run_id, str(path), str(PurePosixPath(folder) / path.name))
    else:
        client.log_artifact(run_id, str(path), folder or None)


def _log_image(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """The two files of MLflow's stepped images (`client.log_image`), under names that a second sending repeats."""
    client.log_artifacts(run_id, str(_existing(spool, event)), "images")
    client.set_tag(run_id, "mlflow.loggedImages", "True")


def _log_table(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """A file as `client.log_table` writes it, replaced rather than lengthened when it is there already."""
    _log_artifact(client, spool, run_id, event)
    tag = "mlflow.loggedArtifacts"
    known = json.loads(client.get_run(run_id).data.tags.get(tag, "[]"))
    entry = {"path": str(PurePosixPath(event["folder"]) / PurePosixPath(event["file"]).name), "type": "table"}
    if entry not in known:
        client.set_tag(run_id, tag, json.dumps([*known, entry]))


def _log_model(client: "MlflowClient", spool: Spool, run_id: str, event: Event) -> None:
    """Register the saved model as a logged model of the run, found again by its own tag."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model

    folder, experiment_id = _existing(spool, event), spool.state.experiment_id
    assert experiment_id is not None
    tag = f"{KEY_TAG}.model"
    found = client.search_logged_models([experiment_id], f"tags.`{tag}` = '{event['id']}'", max_results=1)
    model = next(iter(found), None) or client.create_logged_model(
        experiment_id, name=event["name"], source_run_id=run_id, tags={tag: event["id"]}
    )
    description = Model.load(str(folder))
    description.run_id, description.model_id = run_id, model.model_id
    description.model_uuid, description.artifact_path = model.model_id, model.artifact_location
    description.save(str(folder / "MLmodel"))
    client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    outputs: Any = client.get_run(run_id).outputs
    if model.model_id not in [output.model_id for output in (outputs.model_outputs if outputs else [])]:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=event["step"])])


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


POLL, FIRST_PAUSE, LONGEST_PAUSE = 1.0, 1.0, 60.0  # seconds
LINES_AT_ONCE = 500


class Uploader:
    """Sends what waits in `spool` to the server at `uri`, in order.

    Args:
        spool: The events of one run.
        uri: As from `resolve_uri`.
        say: Takes a message for the user.
    """

    def __init__(self, spool: Spool, uri: str, say: Callable[[str], None]) -> None:
        self.spool, self.uri, self._say = spool, uri, say
        self._client: MlflowClient | None = None
        state, place = spool.state, shown(uri)  # no password on the disk
        same = state.uri in (None, place)
        spool.keep(replace(state, uri=place) if same else State(key=state.key, uri=place))  # a new server has nothing

    def send(self) -> None:
        """Send until nothing waits.

        Raises:
            Exception: Whatever the client raises when the server cannot be reached; the events stay.
        """
        while lines := self.spool.pending(LINES_AT_ONCE):
            for batch in _batches(lines):
                self._send_batch(batch)

    def _send_batch(self, batch: list[Line]) -> None:
        self._client = self._client or connect(self.uri)
        try:
            self._dispatch(batch)
        except Exception as error:
            if not is_final(error) or batch[0].event["kind"] == "start":
                raise
            if len(batch) > 1:  # find the one that is wrong
                for line in batch:
                    self._send_batch([line])
                return
            self._refuse(batch[0].event, error)
            self._mark_sent(batch)
        else:
            self._mark_sent(batch)
            self.spool.discard_files(line.event for line in batch)

    def _mark_sent(self, batch: list[Line]) -> None:
        self.spool.keep(replace(self.spool.state, sent=batch[-1].end))

    def _dispatch(self, batch: list[Line]) -> None:
        client, event = self._client, batch[0].event
        assert client is not None
        if event["kind"] == "start":
            start_run(client, self.spool, event, self.uri)
        elif event["kind"] == "metrics":
            log_metrics(client, self._run_id(), [line.event for line in batch])
        elif event["kind"] in SINGLE:
            SINGLE[event["kind"]](client, self.spool, self._run_id(), event)
        else:
            raise ValueError(f"unknown event {event['kind']!r}; known: start, metrics, {', '.join(SINGLE)}")

    def _run_id(self) -> str:
        run_id = self.spool.state.run_id
        if run_id is None:
            raise ValueError("the spool holds an event before the start of the run")
        return run_id

    def _refuse(self, event: Event, error: Exception) -> None:
        refused = self.spool.state.refused
        if refused == 0:
            self._say(f"the tracking server refuses a {event['kind']} entry: {cut(str(error), 300)}")
        self.spool.keep(replace(self.spool.state, refused=refused + 1))
        with (self.spool.folder / "refused.jsonl").open("a") as stream:
            stream.write(json.dumps(event | {"cause": str(error)}) + "\n")


def _batches(lines: list[Line]) -> Iterator[list[Line]]:
    """Neighbouring metrics together, up to the size of a batch; every other event alone."""
    for kind, group in groupby(lines, key=lambda line: line.event["kind"]):
        batch: list[Line] = []
        size = 0
        for line in group:
            count = len(line.event["values"]) if kind == "metrics" else METRICS_AT_ONCE
            if batch and size + count > METRICS_AT_ONCE:
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += count
        yield batch


GRACE = 5.0  # seconds that the end of a run may wait for a server that does not answer


class UploadThread(threading.Thread):
    """Calls `sender.send` about once a second; a failure is told once and tried again later.

    Args:
        sender: What sends.
        say: Takes a message for the user.
        tick: Called about once a second, for the machine's own metrics.
    """

    def __init__(self, sender: Uploader, say: Callable[[str], None], tick: Callable[[], None]) -> None:
        super().__init__(name="es_medical tracking", daemon=True)
        self.offline = False
        self._sender, self._say, self._tick = sender, say, tick
        self._wake, self._ending = threading.Event(), threading.Event()
        self._pause, self._next_try, self._deadline = FIRST_PAUSE, 0.0, float("inf")

    def run(self) -> None:
        """Send until told to end and nothing waits, or until the grace for a dead server is over."""
        while True:
            ending = self._ending.is_set()
            sent = self._attempt() if ending or time.monotonic() >= self._next_try else False
            if ending and (sent or time.monotonic() >= self._deadline):
                return
            if not ending:
                with suppress(Exception):  # a sensor that fails stops nothing
                    self._tick()
            self._wake.wait(POLL)
            self._wake.clear()
            if ending:
                time.sleep(POLL / 2)

    def finish(self) -> bool:
        """Wait until everything is sent, at most `GRACE` seconds when the server does not answer.

        Returns:
            Whether everything is sent.
        """
        self._deadline = time.monotonic() + GRACE
        self._ending.set()
        self._wake.set()
        while self.is_alive() and not (self.offline and time.monotonic() >= self._deadline):
            self.join(0.05)
        return not self.offline and not self.is_alive()

    def _attempt(self) -> bool:
        try:
            self._sender.send()
        except Exception as error:  # whatever it is, training goes on
            self._fail(error)
            return False
        if self.offline:
            self._say(f"the tracking server {shown(self._sender.uri)} answers again: everything kept is sent")
        self.offline, self._pause = False, FIRST_PAUSE
        return True

    def _fail(self, error: Exception) -> None:
        if not self.offline:
            cause = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            self._say(
                f"the tracking server {shown(self._sender.uri)} does not take the log ({cause}). "
                f"Training goes on; everything is kept in {self._sender.spool.folder} and sent when it answers again"
            )
        self.offline = True
        self._next_try = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


if TYPE_CHECKING:
    from mlflow import MlflowClient
