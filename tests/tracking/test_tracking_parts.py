import importlib
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from es_medical.tracking import server as store
from es_medical.tracking.names import Names, clean, flatten, free_name, in_force
from es_medical.tracking.server import (
    DEFAULT_URI,
    artifact_location,
    connect,
    import_mlflow,
    is_final,
    resolve_uri,
    shown,
    sqlite_path,
)
from es_medical.tracking.spool import Spool, SpoolBusyError, is_held, open_spool, read_state, spools, take_lock
from es_medical.tracking.system import TerminatedError, environment, git_commit, status_of

# --- names


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("psnr(dB)", "psnr_dB_"),
        ("val/ssim[0]", "val/ssim_0_"),
        ("/abs//x/./y", "abs/x/y"),
        ("../../etc", "_/_/etc"),
        ("σ", "_"),
        ("", "_"),
        ("a:b", "a_b"),
        ("train/loss 1", "train/loss 1"),
    ],
)
def test_a_clean_name_is_a_relative_path_of_plain_characters(given, wanted):
    assert clean(given) == wanted
    assert clean(wanted) == wanted


def test_names_are_bounded_and_stay_distinct():
    names = Names()
    long = [names("x" * 300 + str(i)) for i in range(3)]
    assert len(set(long)) == 3
    assert max(map(len, long)) <= 250
    assert [names("a(b)"), names("a[b]"), names("a(b)"), names("a[b]")][:2] == [names("a(b)"), names("a[b]")]
    assert names("a(b)") != names("a[b]")


def test_flatten_keeps_every_leaf_once():
    config = {"a": 1, "b": {"c": True, "d": {}}, "e": [1, [2, 3]], "f": [{"g": None}, {"h": Path("x")}], 3: "t"}
    assert flatten(config) == {
        "a": "1", "b.c": "True", "b.d": "{}", "e": "[1, [2, 3]]", "f.0.g": "None", "f.1.h": "x", "3": "t"
    }  # fmt: skip


def test_the_value_in_force_is_the_newest_one_of_no_later_epoch():
    there = {"lr": "1", "lr.epoch3": "2", "lr.epoch3.2": "3", "lr.epoch10": "4", "lr.epochs": "9"}
    assert [in_force(there, "lr", epoch) for epoch in (0, 3, 9, 10)] == ["1", "3", "3", "4"]
    assert in_force(there, "seed", 3) is None
    assert [free_name(there, name, 3) for name in ("seed", "lr")] == ["seed", "lr.epoch3.3"]


# --- server


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "file:mlruns", "./mlruns", "mlruns", "C:\\mlruns"])
def test_a_file_store_is_refused_by_name(uri, monkeypatch):
    with pytest.raises(ValueError, match="sqlite:///mlflow.db") as raised:
        resolve_uri(uri)
    assert repr(uri) in str(raised.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ValueError, match="file store"):
        resolve_uri(None)


def test_the_uri_is_the_argument_then_the_environment_then_sqlite(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_uri(None) == resolve_uri(DEFAULT_URI) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert resolve_uri(None) == "http://host:5000"
    assert resolve_uri("databricks") == "databricks"


def test_percent_signs_are_those_of_a_folder_or_of_a_uri(tmp_path):
    from sqlalchemy.engine import make_url

    for name in ("my%20project", "my project", "100%"):
        path = tmp_path / name / "mlflow.db"
        path.parent.mkdir()
        given = resolve_uri(f"sqlite:///{path}")
        assert make_url(given).database == str(path)
        assert sqlite_path(given) == path
    assert sqlite_path(f"sqlite:///{tmp_path}/my%2520project/mlflow.db") == tmp_path / "my%20project" / "mlflow.db"


def test_artifacts_go_beside_sqlite_and_where_a_server_wants(tmp_path):
    assert artifact_location(f"sqlite:///{tmp_path}/a/m.db?timeout=5", "e/x") == (tmp_path / "a/mlartifacts/e_x").as_uri()
    assert artifact_location("http://host", "e") is None
    assert artifact_location("postgresql://host/db", "e").startswith("file://")


def test_time_outs_that_the_user_has_set_stay(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "33")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    connect("http://127.0.0.1:9")
    assert (os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"], os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) == ("33", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # so that the test leaves nothing behind


def test_a_half_made_database_is_named(tmp_path):
    path = tmp_path / "half.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE _alembic_tmp_metrics (a INTEGER)")
        connection.execute("CREATE TABLE registered_models (name TEXT)")
        connection.execute("CREATE TABLE metrics (a INTEGER)")
        connection.commit()
    with pytest.raises(RuntimeError, match=f"half-made MLflow database: move it away.*{path}"):
        connect(f"sqlite:///{path}")


def test_a_database_killed_while_it_is_made_leaves_no_file(tmp_path, monkeypatch):
    def die(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("mlflow.MlflowClient", die)
    with pytest.raises(KeyboardInterrupt):
        connect(f"sqlite:///{tmp_path / 'new.db'}")
    assert [path.name for path in tmp_path.iterdir()] == ["new.db.lock"]


def test_waiting_for_another_process_that_makes_the_database_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "PATIENCE", 0.1)
    lock = take_lock(tmp_path / "new.db.lock", 0.0)
    assert is_held(tmp_path / "new.db.lock")
    with pytest.raises(TimeoutError, match="new.db.lock"):
        connect(f"sqlite:///{tmp_path / 'new.db'}")
    lock.release()
    assert not is_held(tmp_path / "new.db.lock")


def test_only_wrong_entries_are_final():
    from mlflow.exceptions import MlflowException
    from mlflow.protos import databricks_pb2 as codes

    assert is_final(MlflowException("bad name", codes.INVALID_PARAMETER_VALUE))
    assert is_final(FileNotFoundError("gone"))
    assert not is_final(MlflowException("no connection", codes.INTERNAL_ERROR))
    assert not is_final(MlflowException("log in", codes.PERMISSION_DENIED))
    assert not is_final(ConnectionError("refused"))
    assert not is_final(OSError("disk full"))


def test_a_password_is_never_shown():
    assert shown("http://user:secret@host:5000/x") == "http://***@host:5000/x"


# --- spool


def test_what_is_appended_survives_and_is_sent_in_order(tmp_path):
    spool = Spool(tmp_path / "s")
    for i in range(5):
        spool.append({"kind": "x", "i": i})
    key = spool.state.key
    spool.close()
    again = Spool(tmp_path / "s")
    assert [line.event["i"] for line in again.pending(3)] == [0, 1, 2]
    assert (again.count(), again.state.key, again.last()["i"]) == (5, key, 4)
    again.remove()
    assert not (tmp_path / "s").exists()


def test_a_torn_or_unreadable_line_costs_only_itself(tmp_path):
    spool = Spool(tmp_path)
    spool.append({"kind": "x"})
    spool.close()
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(b'garbage\n{"kind": "to')
    spool = Spool(tmp_path)
    spool.append({"kind": "y"})
    assert [line.event["kind"] for line in spool.pending(9)] == ["x", "unreadable", "y"]
    spool.close()


def test_a_damaged_state_is_named_and_stops_no_other_log(tmp_path, capsys):
    for name in "ab":
        Spool(tmp_path / name).close()
    state = tmp_path / "a" / "state.json"
    state.write_text(state.read_text().replace('"sent": 0', '"sent": 7'))
    with pytest.raises(ValueError, match=r"a/state.json is damaged \(not what was written\)"):
        Spool(tmp_path / "a")
    Spool(tmp_path / "b").close()
    open_spool(tmp_path, read_state(tmp_path / "b").key).close()


def test_one_process_at_a_time_has_a_spool(tmp_path):
    spool = Spool(tmp_path)
    with pytest.raises(SpoolBusyError, match=str(tmp_path)):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()
    assert read_state(tmp_path) is not None
    assert read_state(tmp_path / "none") is None


def test_a_file_system_without_locks_stops_nothing(tmp_path, monkeypatch):
    def no_locks(*_args, **_options):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    spool = Spool(tmp_path / "s")
    spool.append({"kind": "x"})
    assert spool.count() == 1
    spool.remove()


# --- provenance and end


def test_git_commit_never_fails(tmp_path, monkeypatch):
    assert git_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_commit(tmp_path) is None


def test_git_commit_is_that_of_the_folder(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    try:
        subprocess.run([*git, "init", "-q"], check=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    assert git_commit(tmp_path) is None  # no commit yet
    subprocess.run([*git, "commit", "-q", "--allow-empty", "--no-verify", "-m", "a"], check=True)
    assert len(git_commit(tmp_path)) == 40


def test_environment_names_versions_and_device():
    assert {"python", "torch", "monai", "deepinv", "mlflow", "device"} <= environment().keys()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (SystemExit(0), "FINISHED"),
        (SystemExit(1), "FAILED"),
        (RuntimeError(), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (TerminatedError(143), "KILLED"),
    ],
)
def test_the_status_says_how_the_process_ended(error, status):
    assert status_of(error) == status


def test_telemetry_of_mlflow_is_off_even_if_mlflow_was_imported_before(monkeypatch):
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    telemetry = importlib.import_module("mlflow.telemetry.client")
    telemetry._set_telemetry_client(SimpleNamespace(info={"session_id": "one"}))
    import_mlflow()
    assert telemetry.get_telemetry_client() is None
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_process_that_is_killed_while_it_makes_a_spool_leaves_nothing_for_long(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from es_medical.tracking import spool; from es_medical.data import atomic\n"
    )
    code += "Path.replace = lambda *_: os._exit(9)\nspool.open_spool(Path(sys.argv[1]), None)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    assert spools(tmp_path) == []
    open_spool(tmp_path, None).close()
    assert list(tmp_path.iterdir()) == spools(tmp_path)
