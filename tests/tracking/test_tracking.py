import json
import random
import re
import runpy
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from mlflow.tracking import _tracking_service
from tiny import DEAD, runs

from es_medical.tracking import NullTracker, TerminatedError, Tracker, artifacts, events, terminate_on_sigterm, upload
from es_medical.tracking.__main__ import main
from es_medical.tracking.server import connect
from es_medical.tracking.spool import Spool, spools
from es_medical.tracking.upload import Uploader

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:mlflow", "ignore::FutureWarning:mlflow", "ignore::DeprecationWarning:sqlalchemy"
)


@pytest.fixture(scope="session")
def uri(tmp_path_factory, empty_database):
    return f"sqlite:///{shutil.copy(empty_database, tmp_path_factory.mktemp('mlflow'))}"


@pytest.fixture(scope="session")
def client(uri):
    return connect(uri)


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr(upload, "GRACE", 0.2)


@pytest.fixture
def new(uri, tmp_path):
    """A tracker with its own experiment name by default."""

    def make(run_name="run", at=uri, **options):
        return Tracker(at, tmp_path.name, run_name, tmp_path / "spool", system_interval=None, **options)

    return make


def begin(tracker, params=None, text="lr: 1", epoch=0):
    tracker.start(params or {"lr": 1e-4}, text, {"method": "es"}, epoch)
    return tracker


def steps(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


# --- a run on SQLite


ONE_RUN = """
import sys
from pathlib import Path
from es_medical.tracking import Tracker
with Tracker(sys.argv[1], "both", sys.argv[2], Path(sys.argv[3]), system_interval=None) as tracker:
    tracker.start({"lr": 1}, "lr: 1", {})
"""


def test_two_processes_make_one_new_database_at_once(tmp_path):
    uri = f"sqlite:///{tmp_path / 'new' / 'two.db'}"
    commands = [[sys.executable, "-c", ONE_RUN, uri, name, str(tmp_path / name)] for name in "ab"]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    said = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "does not take the log" not in "".join(said)
    both = {run.info.run_name: run.info.status for run in runs(connect(uri), "both")}
    assert both == {"a": "FINISHED", "b": "FINISHED"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"two.db", "two.db.lock", "mlartifacts"}


def test_a_run_holds_parameters_curves_files_beside_the_database_and_lineage_and_the_spool_goes(new, client, uri, tmp_path):
    with begin(new(), {"lr": 1e-4, "net": {"widths": [16, 32]}}) as tracker:
        for epoch in range(3):
            tracker.log_metrics({"val/psnr": 20.0 + epoch, "lr": 1e-4}, epoch)
        tracker.log_text("hello", "notes/note.txt")
        tracker.log_dict({"a": 1}, "notes/a.json")
        tracker.log_dataset(Path("slices.h5"), "demo", "train", "ab" * 32, 12)
        (tmp_path / "file.bin").write_bytes(b"123")
        tracker.log_artifact(tmp_path / "file.bin", "extra")
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.0001", "net.widths": "[16, 32]"}
    assert run.data.tags["method"] == "es"
    assert steps(client, tracker.run_id, "val/psnr") == [(0, 20.0), (1, 21.0), (2, 22.0)]
    assert {file.path for file in client.list_artifacts(tracker.run_id)} >= {"config.yaml", "environment.json", "notes"}
    assert [file.path for file in client.list_artifacts(tracker.run_id, "extra")] == ["extra/file.bin"]
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest, used.tags[0].value) == ("demo", ("ab" * 32)[:36], "train")
    assert json.loads(used.dataset.profile) == {"num_rows": 12, "sha256": "ab" * 32}
    assert run.info.artifact_uri.startswith((Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts").as_uri())
    assert not (tmp_path / "spool").exists()


def test_metrics_keep_the_time_at_which_they_were_logged(new, client):
    before = time.time() * 1000
    with begin(new()) as tracker:
        tracker.log_metrics({"a": 1.0}, 0)
        after = time.time() * 1000
        time.sleep(0.05)
    (metric,) = client.get_metric_history(tracker.run_id, "a")
    assert before - 1 <= metric.timestamp <= after + 1


def test_logging_costs_the_training_loop_under_three_milliseconds_of_its_processor(new):
    with begin(new()) as tracker:
        start = time.thread_time()
        for step in range(300):
            tracker.log_metrics({"train/loss": 1.0, "lr": 0.1}, step)
        assert (time.thread_time() - start) / 300 < 3e-3


def test_images_step_through_training_as_mlflow_names_them(new, client):
    with begin(new()) as tracker:
        for epoch in (0, 5, 10):
            tracker.log_image("recon/case 0(x)", np.full((8, 40), epoch, np.uint8), epoch)
        tracker.log_metrics({"a": 1.0}, 0)
    client.log_image(tracker.run_id, np.zeros((8, 40), np.uint8), key="recon/case 0_x_", step=7, timestamp=1234567890123)
    names = [Path(file.path).name for file in client.list_artifacts(tracker.run_id, "images")]
    assert sorted({int(name.split("+")[2]) for name in names}) == [0, 5, 7, 10]
    unique = r"\d{13}\+[0-9a-f-]{36}"
    assert len({re.sub(unique, "", re.sub(r"step\+\d+", "step", name)) for name in names}) == 2  # ours are like MLflow's
    assert client.get_run(tracker.run_id).data.tags["mlflow.loggedImages"] == "True"


def test_a_float_image_is_refused(new):
    with begin(new()) as tracker, pytest.raises(ValueError, match=r"uint8.*float64"):
        tracker.log_image("a", np.zeros((4, 4)), 0)


def test_a_table_is_read_back_by_mlflow(new, client, uri, monkeypatch):
    import mlflow

    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", uri)  # load_table asks the global server
    with begin(new()) as tracker:
        tracker.log_table({"id": ["a", "b"], "psnr": [np.float32(20.5), 21.0]}, "test/cases.json")
        tracker.log_table({"id": ["c"], "psnr": [22.0]}, "test/cases.json")  # replaced
    table = client.load_table(client.get_run(tracker.run_id).info.experiment_id, "test/cases.json", [tracker.run_id])
    assert table.to_dict("list") == {"id": ["c"], "psnr": [22.0]}


@pytest.mark.parametrize("form", ["pt2", "pickle"])
def test_the_model_has_a_signature_and_example_for_any_size_is_registered_and_loads(
    new, client, uri, tmp_path, monkeypatch, form
):
    import mlflow

    monkeypatch.setattr(artifacts, "EXPORT", form == "pt2")
    module = torch.nn.Conv2d(2, 2, 3, padding=1).train()
    with begin(new()) as tracker:
        tracker.log_model(module, torch.rand(2, 2, 8, 8), "best", step=3, register=tmp_path.name)
    assert module.training
    (output,) = client.get_run(tracker.run_id).outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert (model.name, model.source_run_id, output.step, str(model.status)) == ("best", tracker.run_id, 3, "READY")
    (version,) = client.search_model_versions(f"name = '{tmp_path.name}'")
    assert (version.run_id, version.source) == (tracker.run_id, model.artifact_location)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", str(form == "pickle"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    folder = Path(model.artifact_location.removeprefix("file://"))
    assert (folder / "input_example.json").is_file()
    signature = mlflow.models.Model.load(str(folder)).signature
    assert signature.inputs.inputs[0].shape == (-1, 2, -1, -1)
    x = torch.randn(2, 2, 6, 10)
    torch.testing.assert_close(mlflow.pytorch.load_model(folder.as_uri())(x), module(x))


def test_a_model_that_cannot_be_saved_does_not_end_the_run(new, client, capsys):
    with begin(new()) as tracker:
        module = torch.nn.Conv2d(2, 2, 3)
        module.stream = Path(__file__).open()  # noqa: SIM115 - cannot be pickled
        tracker.log_model(module, torch.zeros(1, 2, 8, 8))
        module.stream.close()
    assert "model 'model' is not logged" in capsys.readouterr().err
    assert client.get_run(tracker.run_id).info.status == "FINISHED"


def test_machine_load_is_logged_under_mlflows_names(uri, client, tmp_path):
    with begin(Tracker(uri, tmp_path.name, "run", tmp_path / "spool", system_interval=0.01)) as tracker:
        time.sleep(2.5)
    names = client.get_run(tracker.run_id).data.metrics
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= names.keys()


# --- D1: a dead server


def test_a_server_dead_from_the_start_costs_seconds_and_everything_can_be_sent_later(new, uri, client, tmp_path, capsys):
    start = time.monotonic()
    with begin(new(at=DEAD)) as tracker:
        logged = time.monotonic()
        for epoch in range(5):
            tracker.log_metrics({"loss": float(epoch)}, epoch)
            tracker.log_image("recon", np.zeros((8, 8), np.uint8), epoch)
        assert time.monotonic() - logged < 10
        time.sleep(0.5)
    assert time.monotonic() - start < 30
    told = capsys.readouterr().err
    assert told.count("does not take the log") == 1
    assert tracker.run_id is None
    (spool,) = spools(tmp_path / "spool")
    assert f"python -m es_medical.tracking send {spool} --uri {DEAD}" in told
    assert main(["send", str(spool), "--uri", uri]) == 0
    (run,) = runs(client, tmp_path.name)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert steps(client, run.info.run_id, "loss") == [(e, float(e)) for e in range(5)]
    assert len(client.list_artifacts(run.info.run_id, "images")) == 10
    assert not spool.exists()


@pytest.mark.usefixtures("short_grace")
def test_a_server_that_accepts_and_never_answers_does_not_hold_the_end(new, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        begin(new(at=f"http://127.0.0.1:{silent.getsockname()[1]}")).finish()
        assert time.monotonic() - start < 10


class Unreliable:
    """A client of which some calls fail, before or after the server has done what it was asked."""

    def __init__(self, client, after):
        self.client, self.after, self.random = client, after, random.Random(1)

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*args, **kwargs):
            fails = self.random.random() < 0.4
            if fails and not self.after:
                raise ConnectionError("away")
            result = method(*args, **kwargs)
            if fails:
                raise ConnectionError("the answer is lost")
            return result

        return call


def test_a_server_that_dies_in_mid_run_and_comes_back_gets_everything_once(new, client, monkeypatch, capsys):
    alive = [True]

    class Switch:
        def __getattr__(self, name):
            if not alive[0]:
                raise ConnectionError("connection refused")
            return getattr(client, name)

    monkeypatch.setattr(upload, "connect", lambda uri: Switch())
    with begin(new()) as tracker:
        tracker.log_metrics({"a": 0.0}, 0)
        _wait(lambda: tracker.run_id is not None)
        alive[0] = False
        tracker.log_metrics({"a": 1.0}, 1)
        _wait(lambda: tracker._thread.offline)
        alive[0] = True
        tracker.log_metrics({"a": 2.0}, 2)
    assert steps(client, tracker.run_id, "a") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    told = capsys.readouterr().err
    assert (told.count("does not take the log"), told.count("answers again:")) == (1, 1)


@pytest.mark.parametrize("after", [False, True])
def test_each_event_is_logged_exactly_once_whatever_answer_is_lost(after, client, uri, tmp_path, monkeypatch):
    monkeypatch.setattr(upload, "connect", lambda uri: unreliable)
    unreliable = Unreliable(client, after)
    monkeypatch.setattr(events, "METRICS_AT_ONCE", 2)
    tracker = Tracker(uri, tmp_path.name, "run", tmp_path / "spool", system_interval=None)
    monkeypatch.setattr(tracker._thread, "start", lambda: None)
    begin(tracker)
    for epoch in range(5):
        tracker.log_metrics({"a": float(epoch), "b": 1.0}, epoch)
    tracker.log_image("recon", np.zeros((4, 4), np.uint8), 0)
    tracker.log_dataset(Path("x.h5"), "x", "val", "0" * 64, 1)
    tracker.log_table({"a": [1]}, "t.json")
    tracker.log_model(torch.nn.Conv2d(1, 1, 1), torch.zeros(1, 1, 4, 4))
    sender = Uploader(tracker._spool, uri)
    failures = 0
    while tracker._spool.count():
        assert failures < 200
        try:
            sender.send()
        except ConnectionError:
            failures += 1
    assert failures > 3
    (run,) = runs(client, tmp_path.name)
    run_id = run.info.run_id
    assert steps(client, run_id, "a") == [(e, float(e)) for e in range(5)]
    assert len(client.list_artifacts(run_id, "images")) == 2
    assert len(run.inputs.dataset_inputs) == 1
    assert len(run.outputs.model_outputs) == len(client.search_logged_models([run.info.experiment_id])) == 1
    tracker.finish()


def test_a_killed_process_leaves_a_log_that_is_sent_as_a_failed_run(new, uri, client, tmp_path, monkeypatch):
    tracker = new()
    monkeypatch.setattr(tracker._thread, "start", lambda: None)
    begin(tracker).log_metrics({"a": 1.0}, 0)
    assert main(["send", str(tmp_path / "spool"), "--uri", uri]) == 1  # the process is still alive
    tracker._spool.close()
    with (spools(tmp_path / "spool")[0] / "events.jsonl").open("a") as stream:
        stream.write('{"kind": "metr')  # torn by the death
    assert main(["send", str(tmp_path / "spool"), "--uri", uri]) == 0
    (run,) = runs(client, tmp_path.name)
    assert (run.info.status, run.data.metrics) == ("FAILED", {"a": 1.0})


def test_the_next_training_says_which_logs_a_killed_process_left(new, uri, client, tmp_path, capsys):
    killed = new("killed")
    killed._thread.run = lambda: None  # the process dies before anything is sent
    begin(killed)
    begin(new("beside")).finish()  # while the first one lives
    assert "earlier run" not in capsys.readouterr().err
    killed._spool.close()
    begin(new("next")).finish()
    said = capsys.readouterr().err
    (command,) = re.findall(r"python -m es_medical.tracking (send .*)", said)
    assert said.count("1 earlier run(s)") == 1
    assert command == f"send {killed._spool.folder} --uri {uri}"
    assert main(command.split()) == 0
    status = {run.info.run_name: run.info.status for run in runs(client, tmp_path.name)}
    assert status == {"killed": "FAILED", "beside": "FINISHED", "next": "FINISHED"}


def test_a_log_of_version_0_1_is_sent_by_the_command_that_it_printed(uri, client, tmp_path, monkeypatch):
    image = tmp_path / "spool" / "files" / "ab" / "image"
    image.mkdir(parents=True)
    (image / "recon+step+0.png").write_bytes(b"png")
    logged = [
        {"kind": "start", "time": 1, "experiment": tmp_path.name, "run_name": "old", "resume": None},
        {"kind": "params", "time": 2, "values": {"lr": "1"}, "epoch": 0},
        {"kind": "metrics", "time": 3, "values": {"a": 1.0}, "step": 0},
        {"kind": "image", "time": 4, "file": "files/ab/image"},
    ]
    (tmp_path / "spool" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in logged))
    (tmp_path / "spool" / "state.json").write_text('{"key": "k", "sent": 0, "uri": null, "run_id": null, "refused": 0}')
    monkeypatch.setattr(sys, "argv", ["tracking", "send", str(tmp_path / "spool"), "--uri", uri])
    monkeypatch.delitem(sys.modules, "es_medical.tracking.__main__")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("es_medical.engine.tracking", run_name="__main__")
    assert ended.value.code == 0
    (run,) = runs(client, tmp_path.name)
    assert (run.info.run_name, run.info.status, run.data.metrics) == ("old", "FAILED", {"a": 1.0})
    assert [file.path for file in client.list_artifacts(run.info.run_id, "images")] == ["images/recon+step+0.png"]
    assert not (tmp_path / "spool").exists()


def test_steps_that_a_continued_run_repeats_are_there_once_unless_they_differ(new, client):
    def log(tracker, steps, lr, seconds):
        for step in steps:
            tracker.log_metrics({"loss": 1 / (1 + step), "lr": lr, "epoch_time": seconds}, step)
            tracker.log_image("recon/a", np.full((4, 4), step, np.uint8), step)

    with begin(new()) as first:
        log(first, (0, 1, 2), 0.1, 5.0)
    with begin(new(run_id=first.resume_id), epoch=1) as second:
        log(second, (1, 2, 3), 0.2, 6.0)
    assert second.run_id == first.run_id
    assert steps(client, first.run_id, "loss") == [(step, 1 / (1 + step)) for step in range(4)]
    assert [step for step, _ in steps(client, first.run_id, "epoch_time")] == [0, 1, 2, 3]
    assert sorted(steps(client, first.run_id, "lr")) == [(0, 0.1), (1, 0.1), (1, 0.2), (2, 0.1), (2, 0.2), (3, 0.2)]
    assert len(client.list_artifacts(first.run_id, "images")) == 2 * 4


def test_two_unsent_sessions_that_repeat_a_step_log_it_once(new, client, monkeypatch):
    with begin(new()) as first:
        pass
    second = new(run_id=first.resume_id)
    monkeypatch.setattr(second._thread, "start", lambda: None)
    begin(second).log_metrics({"a": 1.0}, 5)
    second._spool.close()  # killed
    with begin(new(run_id=first.resume_id)) as third:
        third.log_metrics({"a": 1.0}, 5)
    assert steps(client, first.run_id, "a") == [(5, 1.0)]


def unsent(new, monkeypatch, sent_to=None):
    """The log of a run whose first half was sent to a server before its process was killed."""
    tracker = new()
    monkeypatch.setattr(tracker._thread, "start", lambda: None)
    begin(tracker).log_text("hello", "note.txt")
    tracker.log_metrics({"a": 1.0}, 0)
    if sent_to:
        Uploader(tracker._spool, sent_to).send()
    tracker.log_metrics({"a": 2.0}, 1)
    return tracker


def test_a_run_that_ended_well_is_finished_even_if_its_load_was_read_after_its_end(new, client, uri, tmp_path, monkeypatch):
    tracker = unsent(new, monkeypatch)
    tracker._put("finish", {"status": "FINISHED"})
    tracker.log_metrics({"system/cpu": 1.0}, 0)  # by the upload thread, which waited for a locked database
    tracker._spool.close()
    assert main(["send", str(tmp_path / "spool"), "--uri", uri]) == 0
    (run,) = runs(client, tmp_path.name)
    assert run.info.status == "FINISHED"


def test_a_process_killed_while_it_completes_a_model_does_not_stop_the_log(new, client, uri, tmp_path, monkeypatch):
    tracker = unsent(new, monkeypatch)
    tracker.log_model(torch.nn.Linear(2, 2), torch.zeros(1, 2), "net", 1)

    def killed(model, path):
        Path(path).write_text("")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mlflow.models.Model.save", killed)
        pytest.raises(KeyboardInterrupt, Uploader(tracker._spool, uri).send)
    tracker._spool.close()
    assert main(["send", str(tmp_path / "spool"), "--uri", uri]) == 0
    (run,) = runs(client, tmp_path.name)
    (output,) = client.get_run(run.info.run_id).outputs.model_outputs
    assert client.get_logged_model(output.model_id).status == "READY"


def test_a_file_that_a_proxy_took_in_the_servers_place_is_sent_again(new, client, uri, tmp_path, monkeypatch):
    tracker = unsent(new, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr("mlflow.MlflowClient.log_artifact", lambda *_: None)  # "200 OK" and a page: please log in
        patched.setattr(events, "_is_local", lambda *_: False)
        pytest.raises(ConnectionError, Uploader(tracker._spool, uri).send)
    tracker._spool.close()
    assert main(["send", str(tmp_path / "spool"), "--uri", uri]) == 0
    (run,) = runs(client, tmp_path.name)
    assert {"config.yaml", "note.txt"} <= {file.path for file in client.list_artifacts(run.info.run_id)}


def test_the_rest_of_a_log_goes_to_the_same_server_at_another_address(new, client, uri, tmp_path, monkeypatch):
    tracker = unsent(new, monkeypatch, sent_to=uri)
    tracker._spool.close()
    assert main(["send", str(tmp_path / "spool"), "--uri", f"{uri}?timeout=5"]) == 0
    (run,) = runs(client, tmp_path.name)
    assert steps(client, run.info.run_id, "a") == [(0, 1.0), (1, 2.0)]
    assert "note.txt" in [file.path for file in client.list_artifacts(run.info.run_id)]


def test_another_server_gets_the_whole_log_and_the_files_that_are_left(new, client, uri, tmp_path, monkeypatch):
    shutil.copyfile(uri.removeprefix("sqlite:///"), tmp_path / "other.db")
    tracker = unsent(new, monkeypatch, sent_to=uri)
    tracker._spool.close()
    assert main(["send", str(tmp_path / "spool"), "--uri", f"sqlite:///{tmp_path / 'other.db'}"]) == 1
    assert "note.txt no longer exists" in (tracker._spool.folder / "refused.jsonl").read_text()
    other = connect(f"sqlite:///{tmp_path / 'other.db'}")
    (run,) = runs(other, tmp_path.name)
    assert steps(other, run.info.run_id, "a") == [(0, 1.0), (1, 2.0)]


def test_what_was_changed_on_the_disk_is_not_sent_and_the_rest_is(new, client, uri, tmp_path, monkeypatch, capsys):
    tracker = new()
    monkeypatch.setattr(tracker._thread, "start", lambda: None)
    begin(tracker).log_metrics({"a": 1.0}, 0)
    tracker.log_metrics({"b": 2.0}, 0)
    tracker.log_text("hello", "note.txt")
    tracker._spool.close()
    (spool,) = spools(tmp_path / "spool")
    log = (spool / "events.jsonl").read_bytes()
    (spool / "events.jsonl").write_bytes(log.replace(b'{"a": 1.0}', b'{"a": 9.0}'))
    next(spool.glob("files/*/note.txt")).write_text("hellp")
    assert main(["send", str(tmp_path / "spool"), "--uri", uri]) == 1
    (run,) = runs(client, tmp_path.name)
    assert run.data.metrics == {"b": 2.0}
    assert "note.txt" not in [file.path for file in client.list_artifacts(run.info.run_id)]
    assert "note.txt is not what was written" in (spool / "refused.jsonl").read_text()
    assert "2 log entries were refused" in capsys.readouterr().err


def test_an_empty_log_of_a_process_that_died_before_its_first_entry_goes(uri, tmp_path):
    Spool(tmp_path / "spool" / "a").close()
    assert main(["send", str(tmp_path / "spool"), "--uri", uri]) == 0
    assert not (tmp_path / "spool").exists()


def test_sending_says_where_it_found_nothing(tmp_path, capsys):
    assert main(["send", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_one_refused_entry_stops_no_other_and_is_kept(new, client, tmp_path, capsys):
    tracker = begin(new())
    tracker._put("metrics", {"values": {"bad(name)": 1.0}, "step": 0})
    tracker.log_metrics({"good": 2.0}, 0)
    tracker.finish()
    assert client.get_run(tracker.run_id).data.metrics == {"good": 2.0}
    (spool,) = spools(tmp_path / "spool")
    assert "bad(name)" in (spool / "refused.jsonl").read_text()
    assert "1 log entries were refused" in capsys.readouterr().err


# --- D3: whose run it is, and how it ended


def test_a_crashed_run_is_failed_and_the_next_one_is_another(new, client, tmp_path):
    first = begin(new("first"))
    with pytest.raises(ZeroDivisionError), first:
        first.log_metrics({"a": 1 / 0}, 0)
    with begin(new("second")) as second:
        second.log_metrics({"a": 2.0}, 0)
    found = {run.info.run_name: run for run in runs(client, tmp_path.name)}
    assert {name: run.info.status for name, run in found.items()} == {"first": "FAILED", "second": "FINISHED"}
    assert steps(client, second.run_id, "a") == [(0, 2.0)]
    assert first.run_id != second.run_id


def test_ctrl_c_and_sigterm_make_a_killed_run(new, client):
    with pytest.raises(KeyboardInterrupt), begin(new()) as first:
        raise KeyboardInterrupt
    with pytest.raises(TerminatedError) as ended, terminate_on_sigterm(), begin(new()) as second:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert [client.get_run(t.run_id).info.status for t in (first, second)] == ["KILLED", "KILLED"]


def test_a_call_after_the_end_is_told_once_and_left_out(new, capsys):
    with begin(new()) as tracker:
        pass
    tracker.log_metrics({"a": 1.0}, 0)
    tracker.log_metrics({"a": 2.0}, 1)
    tracker.finish("FAILED")
    assert capsys.readouterr().err.count("the run is finished") == 1


# --- D4, D5, D6, D8: what MLflow refuses or spoils


def test_a_long_parameter_is_cut_and_the_configuration_is_whole(new, client, tmp_path):
    text = "value: " + "x" * 7000
    with begin(new(), {"value": "x" * 7000}, text) as tracker:
        tracker.set_tags({"long": "y" * 9000})
    run = client.get_run(tracker.run_id)
    assert run.data.params["value"] == "x" * 5996 + " ..."
    assert len(run.data.tags["long"]) == 8000
    assert Path(client.download_artifacts(tracker.run_id, "config.yaml", str(tmp_path))).read_text() == text


def test_resuming_with_another_value_keeps_both(new, client):
    with begin(new(), {"lr": 0.1, "seed": 0}) as first:
        first.log_metrics({"loss": 1.0}, 2)
    for epoch, lr in ((3, 0.01), (5, 0.01), (7, 0.1)):
        with begin(new("ignored", run_id=first.resume_id), {"lr": lr, "seed": 0}, epoch=epoch) as again:
            again.log_metrics({"loss": 0.5}, epoch)
        assert again.run_id == first.run_id
    run = client.get_run(first.run_id)
    assert run.data.params == {"lr": "0.1", "seed": "0", "lr.epoch3": "0.01", "lr.epoch7": "0.1"}
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert [step for step, _ in steps(client, first.run_id, "loss")] == [2, 3, 5, 7]
    assert "config.epoch3.yaml" in [file.path for file in client.list_artifacts(first.run_id)]


@pytest.mark.usefixtures("short_grace")
def test_a_run_that_was_never_sent_is_resumed_by_its_key(new, uri, client, tmp_path):
    with begin(new(at=DEAD)) as first:
        first.log_metrics({"a": 1.0}, 0)
    with begin(new(run_id=first.resume_id), epoch=1) as second:
        second.log_metrics({"a": 2.0}, 1)
    (run,) = runs(client, tmp_path.name)
    assert (run.info.run_id, run.info.status) == (second.run_id, "FINISHED")
    assert steps(client, second.run_id, "a") == [(0, 1.0), (1, 2.0)]
    with begin(new(run_id=first.resume_id), epoch=2) as third:  # the spool is gone, the key is on the server
        pass
    assert third.run_id == second.run_id


@pytest.mark.usefixtures("short_grace")
def test_short_resumes_of_an_unsent_run_are_one_run(new, client, uri, tmp_path):
    """Each ends before the server has given its run an id."""
    with begin(new(at=DEAD)) as first:
        first.log_metrics({"a": 0.0}, 0)
    main(["send", str(tmp_path / "spool"), "--uri", uri])
    before = first.resume_id
    for epoch in (1, 2, 3):
        with begin(new(at=DEAD, run_id=before), epoch=epoch) as again:
            again.log_metrics({"a": float(epoch)}, epoch)
        assert again.resume_id == before
    assert len(spools(tmp_path / "spool")) == 1
    with begin(new(run_id=before), epoch=4) as last:
        pass
    (run,) = runs(client, tmp_path.name)
    assert run.info.run_id == last.run_id
    assert steps(client, last.run_id, "a") == [(epoch, float(epoch)) for epoch in range(4)]


def test_a_deleted_run_is_restored_and_continued_and_it_is_said(new, client, tmp_path, capsys):
    with begin(new()) as first:
        pass
    client.delete_run(first.run_id)
    with begin(new(run_id=first.resume_id), epoch=1) as second:
        second.log_metrics({"a": 1.0}, 1)
    assert f"the run {first.run_id} had been deleted from MLflow: it is restored and continued" in capsys.readouterr().err
    (run,) = runs(client, tmp_path.name)
    assert (run.info.run_id, run.info.status) == (first.run_id, "FINISHED")
    assert not spools(tmp_path / "spool")


@pytest.fixture
def project(uri, client, tmp_path):
    """Makes a folder with a database of its own: new tables take seconds, so they are copied. Tracks a run in it."""

    def track(folder, run_id=None, epoch=0):
        folder.mkdir(exist_ok=True)
        if not (folder / "mlflow.db").exists():
            with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as tables:
                tables.execute("VACUUM INTO ?", (str(folder / "mlflow.db"),))
        own = f"sqlite:///{folder}/mlflow.db"
        _tracking_service.utils._artifact_repos_cache.clear()  # as in another process
        with begin(Tracker(own, "moved", "run", folder / "unsent", run_id, None), epoch=epoch) as tracker:
            tracker.log_text(f"epoch {epoch}", f"note{epoch}.txt")
        assert not (folder / "unsent").exists()
        return tracker, connect(tracker.uri)

    return track


def test_a_moved_project_has_its_artifacts_where_it_is_now(project, tmp_path, capsys):
    first, _ = project(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    second, client = project(tmp_path / "new", first.resume_id, 1)
    assert second.run_id == first.run_id
    assert not (tmp_path / "old").exists()
    assert "the project was moved: its artifacts are now in" in capsys.readouterr().err
    assert {"note0.txt", "note1.txt"} <= {file.path for file in client.list_artifacts(first.run_id)}
    assert client.get_run(first.run_id).info.artifact_uri.startswith((tmp_path / "new" / "mlartifacts").as_uri())
    project(tmp_path / "new", first.resume_id, 2)
    assert "was moved" not in capsys.readouterr().err


def test_a_copied_project_leaves_the_first_one_alone(project, tmp_path):
    first, _ = project(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    project(tmp_path / "copy", first.resume_id, 1)
    assert not list((tmp_path / "old").rglob("note1.txt"))
    assert len(list((tmp_path / "copy").rglob("note1.txt"))) == 1


def test_a_database_moved_without_its_artifacts_keeps_their_place(project, tmp_path):
    first, _ = project(tmp_path / "old")
    (tmp_path / "new").mkdir()
    (tmp_path / "old" / "mlflow.db").rename(tmp_path / "new" / "mlflow.db")
    _, client = project(tmp_path / "new", first.resume_id, 1)
    assert {"note0.txt", "note1.txt"} <= {file.path for file in client.list_artifacts(first.run_id)}


def test_a_percent_sign_in_the_name_of_a_folder_is_one(project, tmp_path):
    tracker, client = project(tmp_path / "my%20project")
    assert "note0.txt" in {file.path for file in client.list_artifacts(tracker.run_id)}
    assert len(list((tmp_path / "my%20project" / "mlartifacts").rglob("note0.txt"))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"my%20project"}


def test_a_run_that_this_server_does_not_know_becomes_a_new_one(new, client):
    with begin(new(run_id="0" * 32)) as tracker:
        pass
    assert client.get_run(tracker.run_id).data.tags["mlflow.es_medical.resumed_from"] == "0" * 32


def test_infinity_and_nan_are_left_out_and_noted(new, client):
    with begin(new()) as tracker:
        tracker.log_metrics({"psnr(dB)": float("inf"), "ssim": 0.5}, 0)
        tracker.log_metrics({"psnr(dB)": float("nan"), "ssim": 0.6}, 1)
        tracker.log_metrics({"psnr(dB)": 30.0}, 2)
    run = client.get_run(tracker.run_id)
    assert steps(client, tracker.run_id, "psnr_dB_") == [(2, 30.0)]
    assert steps(client, tracker.run_id, "ssim") == [(0, 0.5), (1, 0.6)]
    assert run.data.tags["nonfinite/psnr_dB_"] == "2 left out, the last one nan at step 1"


def test_names_that_become_equal_stay_two_curves(new, client):
    with begin(new()) as tracker:
        for step in range(2):
            tracker.log_metrics({"psnr(dB)": 1.0, "psnr[dB]": 2.0}, step)
    metrics = client.get_run(tracker.run_id).data.metrics
    assert sorted(metrics.values()) == [1.0, 2.0]
    assert "psnr_dB_" in metrics


# --- processes that do not track


def test_the_other_ranks_take_every_call_and_do_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with begin(NullTracker()) as tracker:
        tracker.log_params({"a": 1})
        tracker.set_tags({"a": "b"})
        tracker.log_metrics({"a": 1.0, "b": float("nan")}, 0)
        tracker.log_image("a", np.zeros((2, 2), np.uint8), 0)
        tracker.log_dict({"a": 1}, "a.json")
        tracker.log_figure(Figure(), "a.png")
        tracker.log_artifact(tmp_path, "a")
        tracker.log_table({"a": [1]}, "t.json")
        tracker.log_arrays({"a": np.zeros(1)}, "a.npz")
        tracker.log_dataset(Path("x.h5"), "x", "val", "0" * 64, 1)
        tracker.log_model(torch.nn.Conv2d(1, 1, 1), torch.zeros(1, 1, 4, 4))
    assert (tracker.run_id, tracker.resume_id) == (None, "")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_tracker_loads_neither_mlflow_nor_monai():
    code = "import sys, es_medical.tracking; sys.exit(any(m in sys.modules for m in ('mlflow', 'monai')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_empty_spool_leaves_nothing(new, tmp_path):
    new().finish()
    assert list(tmp_path.iterdir()) == []


def _wait(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.05)
