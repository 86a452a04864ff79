"""What is read of a store: finished, tested runs, one of each method and seed, never of two data sets in one table."""

import time

import pytest
from report_store import items

from es_medical.report.reading.runs import read_runs
from es_medical.report.reading.store import ReportError
from es_medical.report.report import make_report


def test_the_newest_run_of_a_method_and_seed_is_shown_and_the_older_one_is_noted(store):
    store.log("es", items(25), params={"lr": "0.1"})
    newest = store.log("es", items(28), params={"lr": "0.2"})
    group = store.group()
    assert [run.run_id for run in group.runs["es"]] == [newest]
    assert "es, seed 0: 1 older run not shown (they differ in lr)" in group.remarks


def test_several_seeds_are_kept_and_a_later_test_of_the_weights_does_not_hide_the_training(store):
    trained = [store.log("es", items(25 + seed), seed=seed) for seed in (0, 1, 2)]
    store.log("es", items(28), curve=())
    group = store.group()
    assert [(run.run_id, run.seed) for run in group.runs["es"]] == list(zip(trained, "012", strict=True))
    assert "es: mean of 3 seeds" in group.remarks


def test_runs_under_the_earlier_name_of_a_method_are_runs_of_it(store):
    store.log("ei_lot", items(25))
    store.log("ei_alternating", items(26), seed=1)
    assert {method: len(runs) for method, runs in store.group().runs.items()} == {"ei_alternating": 2}
    assert next(row for row in store.table().rows if row.scores).label == "EI, alternating terms"


@pytest.mark.parametrize(
    "other",
    [
        {"digest": "d2" * 32},
        {"operator": {"acceleration": "8", "sigma": "0.005"}},
        {"experiment": "another"},
        {"params": {"assumed_sigma": "0.0"}},
        {"params": {"sigma_factor": "2.0"}},
        {"tags": {"scale": "paper"}},
        {"tags": {"study": "sweep"}},
    ],
    ids=["data", "operator", "experiment", "noise taken as zero", "noise doubled", "scale", "study"],
)
def test_runs_of_another_setting_are_in_a_table_of_their_own(store, other):
    store.log("es", items(28))
    store.log("supervised", items(30), **other)
    assert sorted(list(group.runs) for group in store.groups()) == [["es"], ["supervised"]]


def test_knobs_that_differ_between_rows_and_data_that_were_not_logged_are_noted(store):
    store.log("es", items(28), params={"widths": "[16, 32]", "lr": "0.001"}, digest="")
    store.log("ei", items(24), params={"widths": "[64, 128]", "lr": "1e-3"}, digest="")
    remarks = store.group().remarks
    assert "knobs that differ between rows: widths: [64, 128] (ei); [16, 32] (es)" in remarks
    assert any("data set was not logged" in remark for remark in remarks)


def test_unfinished_untested_and_foreign_runs_are_left_out_and_noted(store):
    store.log("es", items(28), status="KILLED")
    store.log("es", None)
    store.log("es", items(28), tags={"method": None})
    kept = store.log("es", items(28))
    found = read_runs(store.uri)
    assert [run.run_id for run in found.runs] == [kept]
    assert set(found.remarks) == {
        "left out: 1 run not finished (KILLED)",
        "left out: 1 run without test scores",
        "left out: 1 run without a method (not of a bundle, or the parent of others)",
    }


def test_more_runs_than_one_page_are_all_read(store, monkeypatch):
    monkeypatch.setattr("es_medical.report.reading.runs.PAGE", 2)
    for seed in range(5):
        store.log("es", items(28), seed=seed, curve=())
    assert len(store.runs()) == 5


def test_scale_and_experiment_choose_runs_and_a_scale_without_tag_comes_from_the_names(store):
    store.log("es", items(28), tags={"scale": None})
    store.log("ei", items(28), experiment="mine", tags={"scale": None, "data_set": "knees.h5"})
    assert {run.method: run.scale for run in store.runs()} == {"es": "demo", "ei": "not stated"}
    store.log("es", items(28), experiment="fastmri_synthetic", tags={"scale": "paper"})
    assert {run.scale for run in store.runs(scale="paper")} == {"paper"}
    assert {run.experiment for run in store.runs(names=["fastmri_synthetic_demo"])} == {"fastmri_synthetic_demo"}
    with pytest.raises(ReportError, match="no experiment typo in the MLflow store; it has: .*fastmri_synthetic_demo"):
        store.runs(names=["typo"])


def test_of_a_knob_or_a_step_logged_twice_on_resuming_the_later_value_counts(store):
    knobs = {"lr": "0.1", "lr.epoch5": "0.2", "lr.epoch20": "0.3", "lr.epoch20.2": "0.4"}
    run = store.log("es", items(28), params=knobs)
    store.client.log_metric(run, "epoch_time", 99.0, timestamp=2_000_000_000_000, step=20)
    (found,) = store.runs()
    assert found.params["lr"] == "0.4"
    assert [point.value for point in found.details.curves["epoch_time"]] == [10.0, 99.0]


def test_an_id_twice_is_an_error(store):
    content = b'{"columns": ["id", "index", "psnr"], "data": [["a", 0, 20.0], ["a", 1, 21.0]]}'
    store.log("ei", None, metrics={"psnr": 1.0}, files={"test/cases.json": content})
    with pytest.raises(ReportError, match="id twice"):
        _ = store.runs()[0].details


# --- stores that cannot be read


def test_an_empty_store_says_which_command_to_begin_with(store):
    words = r"(?s)no finished, tested run.*data_prep demo mri demo.h5.*monai.bundle run.*--method es"
    with pytest.raises(ReportError, match=words):
        make_report(read_runs(store.uri), store.context)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "postgresql://user:secret@127.0.0.1:9/db"])
def test_a_server_that_is_down_is_reported_at_once_without_the_password(uri):
    begin = time.monotonic()
    with pytest.raises(ReportError, match="no answer") as caught:
        read_runs(uri)
    assert time.monotonic() - begin < 20
    assert "secret" not in str(caught.value)


def test_a_store_that_is_none_is_an_error_and_is_not_made(tmp_path):
    (tmp_path / "x.db").write_text("not a database" * 100)
    for uri, words in (
        ("./mlruns", "file store"),
        (f"sqlite:///{tmp_path / 'none.db'}", "there is no MLflow database"),
        (f"sqlite:///{tmp_path / 'x.db'}", "cannot open the MLflow store"),
    ):
        with pytest.raises(ReportError, match=words):
            read_runs(uri)
    assert not (tmp_path / "none.db").exists()
