"""Warm starts in the report: their time counts, their images are no data set, and other starts are never mixed silently."""

import pytest
from report_store import BUNDLES, items

from es_medical.report.figures import curves_figure
from es_medical.report.grids import race_grid, table_grid
from es_medical.report.reading.setting import describe
from es_medical.report.reading.timing import curve, race
from es_medical.report.running.plan import decisive_knobs, plan

SAME = "warm start of all trained methods: 1500 synthetic images of kind mr, 2 epochs"


def rows(store):
    return {row.method: row for row in store.table().rows}


def test_its_time_is_part_of_the_training_and_not_of_an_epoch(store):
    store.log("es", items(28), warm=40.0)
    took = rows(store)["es"].training
    assert (took.seconds, took.warm, took.epochs, took.seconds_per_epoch) == (60.0, 40.0, 2.0, 10.0)
    grid = table_grid(store.table())
    assert "1 min" in {cell.text for row in grid.rows for cell in row}
    assert "training times include the warm start, seconds per epoch don't: ES 40 s" in grid.notes


def test_curves_begin_after_it(store):
    store.log("es", items(28), warm=40.0)
    assert curve(store.group().runs["es"][0]).seconds == (40.0, 50.0, 60.0)
    left, right, _ = curves_figure(store.group()).axes
    assert right.lines[0].get_xdata() == pytest.approx([40 / 60, 50 / 60, 1.0])
    assert left.lines[0].get_xdata() == pytest.approx([0, 1, 2])


def test_time_to_the_target_and_the_shortest_training_count_it(store):
    """Target 29 dB: 80 % of the second epoch."""
    store.log("es", items(30), warm=40.0)
    store.log("supervised", items(30), warm=100.0)
    found = race(store.group().runs)
    times = {row.method: (row.seconds, row.total, row.at_equal_time) for row in found.rows}
    assert found.equal_time == 60.0
    assert times["es"] == (pytest.approx(58.0), 60.0, pytest.approx(30.0))
    assert times["supervised"] == (pytest.approx(118.0), 120.0, None)  # still in its warm start
    assert "those of a warm start included" in " ".join(race_grid(found).notes)


def test_good_start_reaches_the_target_when_it_ends(store):
    store.log("supervised", items(30), warm=40.0, curve=((0, 0.0, 29.5), (1, 10.0, 30.0)))
    (row,) = race(store.group().runs).rows
    assert row.seconds == 40.0


def test_its_images_are_no_data_set_of_the_run(store):
    store.log("es", items(28), warm=40.0)
    store.log("tv", items(27), curve=())
    group = store.group()  # one table
    (run,) = group.runs["es"]
    assert (run.digest, set(run.sizes)) == ("d1" * 32, {"train", "val", "test"})
    assert SAME in group.remarks


def test_rows_that_start_differently_are_noted(store):
    store.log("es", items(28), warm=40.0)
    store.log("ei", items(26))
    (said,) = [one for one in store.group().remarks if one.startswith("warm starts differ")]
    assert "1500 synthetic images of kind mr, 2 epochs (es)" in said
    assert "none (ei)" in said
    assert said in store.table().notes


def test_seeds_of_one_method_that_start_differently_are_never_averaged(store):
    store.log("es", items(28), seed=0, warm=40.0, warm_start="100 synthetic images of kind mr, 1 epochs")
    store.log("es", items(30), seed=1, warm=40.0)
    store.log("es", items(32), seed=2, warm=40.0)
    group = store.group()
    assert [run.seed for run in group.runs["es"]] == ["1", "2"]
    assert "es: seed 0 not shown, with another warm start" in group.remarks
    assert "es: mean of 2 seeds" in group.remarks
    assert rows(store)["es"].scores["psnr"].mean == pytest.approx(31.0)


def test_a_method_from_a_warm_start_and_from_random_weights_has_two_rows(store):
    store.log("es", items(30), warm=40.0)
    store.log("es", items(28))
    store.log("supervised", items(32), warm=40.0)
    found = rows(store)
    assert [(row.label, row.scores["psnr"].mean) for row in found.values() if row.scores][:3] == [
        ("Supervised", pytest.approx(32.0)),
        ("ES", pytest.approx(30.0)),
        ("ES, random weights", pytest.approx(28.0)),
    ]
    labels = {line.get_label() for line in curves_figure(store.group()).axes[0].lines}
    assert {"ES", "ES, random weights", "Supervised"} <= labels


def test_later_test_of_weights_hides_no_training_and_tells_no_start(store):
    store.log("es", items(28), warm=40.0)
    store.log("es", items(30), seed=1, curve=())
    group = store.group()
    assert [run.seed for run in group.runs["es"]] == ["0", "1"]
    assert SAME in group.remarks


def test_cold_runs_have_no_remark(store):
    store.log("es", items(28))
    store.log("tv", items(27), curve=())
    assert not [one for one in store.group().remarks if "warm" in one]
    assert not [one for one in store.table().notes if "warm" in one]


def test_weights_whose_time_is_not_known_are_noted(store):
    store.log("es", items(28), warm=0.0, warm_start="weights of reconstructor.pt: epoch 9 of a training")
    assert any(one.endswith("is not known, and not counted: es") for one in store.group().remarks)


def test_synthetic_data_are_named_in_the_setting(store):
    store.log("es", items(28), tags={"synthetic_images": "mr"})
    assert "synthetic images of kind mr, no real ones" in describe(store.group().any_run)


def test_reproduction_gives_every_trained_method_the_same_warm_start(tmp_path):
    """That of demo.yaml; its folder of kept weights decides no result."""
    configs = tmp_path / "fastmri_synthetic" / "configs"
    configs.mkdir(parents=True)
    for name in ("train", "demo"):
        text = (BUNDLES / "fastmri_synthetic" / "configs" / f"{name}.yaml").read_text()
        (configs / f"{name}.yaml").write_text(text)
    with (configs / "demo.yaml").open("a") as file:
        file.write("warm_images: 1234\nwarm_epochs: 3\nwarm_dir: elsewhere\n")
    runs = plan("demo", ["mri_x8"], ["es", "supervised", "es_neq", "ei", "tv"], tmp_path)
    for run in (one for one in runs if one.method != "tv"):
        decisive = decisive_knobs(run, tmp_path)
        assert (decisive["warm_images"], decisive["warm_epochs"]) == ((1234, 0), (3, 2))
        assert "warm_dir" not in decisive
        assert "demo" in run.overlays
        assert not [name for name in run.knobs if name.startswith("warm")]  # nothing overrides the overlay's
