"""A training finds its own earlier start in the same launch by torchrun, and no other training."""

import json
import os
import signal

import pytest

from es_medical.engine import launch
from es_medical.tracking.tracker import NullTracker


class Tracked(NullTracker):
    """Keeps the tags that it is given."""

    resume_id = "run"

    def __init__(self):
        super().__init__()
        self.tags = {}

    def set_tags(self, tags):
        self.tags |= tags


def kept(folder, tracker=None):
    before = launch.restarted(folder)
    launch.keep(folder, "key", tracker or Tracked(), before, 4)
    return before


def test_a_restart_finds_key_and_run_and_counts_the_starts(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "knee1")
    tracker = Tracked()
    assert kept(tmp_path, tracker) == {}
    assert tracker.tags == {}
    assert kept(tmp_path, tracker) == {"launch": "knee1", "key": "key", "run_id": "run", "starts": 1}
    assert tracker.tags == {"restarts": "1"}
    assert "a process was lost: restart 1, the training goes on after epoch 4" in caplog.text
    assert kept(tmp_path)["starts"] == 2
    launch.end(tmp_path)
    assert kept(tmp_path) == {}


def test_another_launch_finds_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "knee1")
    kept(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "knee2")
    assert launch.restarted(tmp_path) == {}
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert launch.restarted(tmp_path) == {}


def test_a_launch_without_a_name_is_known_by_the_process_that_started_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    kept(tmp_path)
    assert str(os.getppid()) in json.loads((tmp_path / launch.FILE).read_text())["launch"]
    assert kept(tmp_path)["starts"] == 1
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert launch.restarted(tmp_path) == {}


def test_without_torchrun_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    kept(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "stops"), [(ValueError("lr"), True), (FileNotFoundError(), True), (RuntimeError("gloo"), False)]
)
@pytest.mark.parametrize("launched", [True, False])
def test_only_an_error_that_would_come_again_stops_torchrun(monkeypatch, error, stops, launched):
    killed = []
    monkeypatch.setattr(os, "kill", lambda *arguments: killed.append(arguments))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "0")
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "knee1")
    launch.refuse_restart(error)
    assert killed == [(os.getppid(), signal.SIGTERM)] * (stops and launched)
