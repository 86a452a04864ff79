"""A reproduction makes what is missing, once, as children of one run; what fails is reported and made again."""

import shutil
import sys
from io import StringIO

import pytest
from rich.console import Console
from tiny import BUNDLES, RATIO, write_slices_for

from es_medical.report.reading.store import ReportError
from es_medical.report.running.plan import Planned, plan
from es_medical.report.running.reproduce import Reproduction, is_there, parse_knobs, reproduce, store
from es_medical.report.running.sweep import sweep
from es_medical.tracking.server import connect

TINY = {
    "warm_images": "4",
    "widths": "[4,8]",
    "iterations": "1",
    "n_samples": "2",
    "epochs": "1",
    "n_cases": "1",
    "lr_milestones": "[1]",
}


class Broken(Planned):
    """A run whose command fails at once: a training that fails has imported everything first, for ten seconds."""

    def command(self, *_):
        return (sys.executable, "-c", "raise SystemExit('no slice file')")


@pytest.fixture(scope="module")
def made(tmp_path_factory, empty_database):
    """A reproduction of two runs, of which one fails; its outcome and what was printed."""
    folder = tmp_path_factory.mktemp("reproduction")
    shutil.copy(empty_database, folder)
    data = write_slices_for("mnist_cs", folder / "digits.h5", sigma=0.0)
    good, bad = plan("demo", ["sensing"], ["es"], BUNDLES)[:2]
    good = good._replace(ratio=RATIO, data="", knobs=TINY | {"ratio": RATIO, "data_file": str(data)})
    bad = Broken(*bad._replace(data="", knobs=TINY | {"ratio": 0.4}))
    text = StringIO()
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    how = Reproduction("demo", 0, uri, BUNDLES, folder / "work", 2, (), Console(file=text, width=200), {})
    return how, good, bad, reproduce([good, bad], how), text.getvalue()


def test_what_fails_does_not_stop_the_others_and_is_reported(made):
    how, good, bad, complete, text = made
    assert not complete
    client = connect(how.uri)
    assert (is_there(client, good, how), is_there(client, bad, how)) == (True, False)
    assert f"{bad.name}: FAILED" in text
    assert "no slice file" in text
    assert str(how.folder(bad) / "log.txt") in text


def test_runs_are_children_of_one_run_and_say_what_they_are_a_part_of(made):
    how, good, *_ = made
    client = connect(how.uri)
    experiment = client.get_experiment_by_name("demo_sensing_levels")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "parent_of" in run.data.tags]
    (child,) = [run for run in runs if run.data.tags.get("method") == "es" and run.info.status == "FINISHED"]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (child.data.tags["study"], child.data.tags["scale"]) == ("demo_sensing_levels", "demo")
    assert parent.info.status == "FINISHED"
    assert how.work.parent.as_uri().removeprefix("file://") in experiment.artifact_location  # beside the database


def test_what_is_there_is_not_made_again(made):
    how, good, *_ = made
    log = how.folder(good) / "log.txt"
    before = log.stat().st_mtime_ns
    assert reproduce([good], how)
    assert log.stat().st_mtime_ns == before
    client = connect(how.uri)
    other = Reproduction("demo", 1, how.uri, BUNDLES, how.work, 1, (), how.console, {})
    assert not is_there(client, good, other)  # another seed
    assert not is_there(client, good._replace(ratio=0.1), how)  # another level
    assert not is_there(client, good._replace(method="ei"), how)


def test_sweep_gives_the_parent_run_its_figure(made):
    how, good, *_ = made
    assert sweep([good], how)
    client = connect(how.uri)
    experiment = client.get_experiment_by_name("demo_sensing_levels")
    (parent,) = client.search_runs([experiment.experiment_id], "tags.parent_of = 'study'")
    assert [one.path for one in client.list_artifacts(parent.info.run_id)] == ["levels.png"]


def test_knobs_are_names_and_values_and_a_store_is_found_from_any_folder(tmp_path, monkeypatch):
    assert parse_knobs(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    monkeypatch.chdir(tmp_path)
    assert store("sqlite:///some.db") == f"sqlite:///{tmp_path / 'some.db'}"
    with pytest.raises(ReportError, match="file store"):
        store("file:mlruns")
