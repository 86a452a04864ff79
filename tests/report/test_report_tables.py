"""The tables: the paper's rows in its order, missing runs with their commands, the best in bold."""

import math
import shlex

import pytest
import yaml
from report_store import BUNDLES, items

from es_medical.methods import METHODS
from es_medical.report.grids import score_cell
from es_medical.report.reading.scores import Score
from es_medical.report.tables import Context, ablation_table, absent_tables, noise_table


def by_method(table):
    return {row.method: row for row in table.rows}


def options(command):
    """The options of a command, which trains a method with configurations that exist."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "monai.bundle", "run"]
    given = dict(zip(words[4::2], words[5::2], strict=True))
    assert given["--method"] in METHODS
    assert all((BUNDLES.parent / file.strip("[]'")).is_file() for file in given["--config_file"].split(","))
    return given


def test_rows_are_the_papers_in_its_order_with_its_numbers_and_the_others_beside_them_each_with_its_setting(store):
    for method in ("tv", "mc", "es", "unsure"):
        store.log(method, items(25, n=5), tags={"image_size": "64 x 64"})
    table = store.table()
    rows = by_method(table)
    assert list(rows) == ["supervised", "es", "ei", "sure", "unsure", "mc", "baseline", "tv"]
    assert rows["es"].paper.psnr.text == "28.54 ± 2.75"
    assert rows["ei"].paper_training.epochs == 7800
    assert rows["baseline"].label == "IDFT"
    for part in ("scale demo", "demo.h5", "d1d1d1d1", "30 training", "5 test", "64 x 64", "acceleration 4", "sigma 0.005"):
        assert part in table.ours


def test_a_missing_run_says_which_command_fills_it(store):
    store.log("es", items(25), params={"epochs": "7", "widths": "[8, 16]", "data_file": "my data.h5"}, seed=3)
    row = by_method(store.table())["ei"]
    given = options(row.command)
    assert row.scores == {}
    expected = {"--method": "ei", "--epochs": "7", "--widths": "[8, 16]", "--data_file": "my data.h5", "--seed": "3"}
    assert expected.items() <= given.items()
    assert given["--tracking_uri"] == store.uri
    assert given["--ckpt_dir"].endswith("models/ei-demo-seed3")


def test_a_knob_that_the_configuration_has_already_is_not_repeated(store):
    demo = yaml.safe_load((BUNDLES / "fastmri_synthetic/configs/demo.yaml").read_text())
    store.log("es", items(25), params={name: str(demo[name]) for name in ("epochs", "lr")})
    assert not {"--lr", "--acceleration", "--epochs", "--seed"} & options(by_method(store.table())["ei"].command).keys()


def test_every_command_of_an_empty_study_names_files_and_methods_that_exist():
    tables = [one for scale in ("demo", "paper") for one in absent_tables([], scale, Context())]
    assert len(tables) == 16
    for one in tables:
        assert one.data_command.startswith("python -m data_prep ")
        assert all(options(row.command) for row in one.rows)


def test_the_best_self_supervised_score_is_marked_and_supervised_never(store):
    for method, psnr, ssim in (("supervised", 33, 0.9), ("es", 28, 0.7), ("ei", 27, 0.8), ("tv", 40, 0.99)):
        store.log(method, items(psnr, ssim=ssim))
    marked = {(row.method, name) for row in store.table().rows for name, score in row.scores.items() if score.best}
    assert marked == {("es", "psnr"), ("ei", "ssim"), ("es", "equiv"), ("ei", "equiv")}


def test_mean_and_deviation_are_over_items_of_means_over_seeds(store):
    store.log("es", {"a": {"psnr": 20.0}, "b": {"psnr": 30.0}}, seed=0)
    store.log("es", {"a": {"psnr": 22.0}, "b": {"psnr": 34.0}}, seed=1)
    row = by_method(store.table())["es"]
    assert row.seeds == 2
    assert row.scores["psnr"].mean == pytest.approx(26.5)
    assert row.scores["psnr"].sd == pytest.approx(math.sqrt(2) * 5.5)
    assert row.scores["psnr"].between_seeds == pytest.approx(math.sqrt(2) * 1.5)


def test_an_item_without_a_score_is_left_out_and_noted(store):
    nan = items(25, n=4)
    nan["item0"]["psnr"] = math.nan
    store.log("es", items(28, n=4))
    store.log("ei", nan)
    table = store.table()
    score = by_method(table)["ei"].scores["psnr"]
    assert score.mean == pytest.approx(sum(row["psnr"] for one, row in nan.items() if one != "item0") / 3)
    assert score.n == 3
    assert any("items with a PSNR differ" in note and "EI 3" in note for note in table.notes)


def test_without_the_table_of_items_the_runs_own_metrics_and_its_tag_of_exact_equivariance_count(store):
    store.log("es", None, metrics={"psnr": 27.5, "psnr_sd": 1.5}, tags={"equiv": "exact"})
    scores = by_method(store.table())["es"].scores
    assert scores["psnr"][:2] == (27.5, 1.5)
    assert scores["equiv"].mean == math.inf


@pytest.mark.parametrize("equiv", ["inf", math.inf, 100.0])  # "inf" as the engine logs it
def test_exact_equivariance_is_infinite_and_where_some_items_are_exact_they_are_counted(store, equiv):
    store.log("es", items(25, equiv=equiv))
    store.log("ei", items(25) | {"item0": items(25, equiv="inf")["item0"]})
    rows = by_method(store.table())
    score = rows["es"].scores["equiv"]
    assert (score_cell(score, "equiv").text, score.best) == ("∞", True)
    score = rows["ei"].scores["equiv"]
    assert (score.mean, score.exact, score.n) == (50.0, 1, 6)
    assert score_cell(score, "equiv").text == "50.00 ± 0.00 (1 of 6 ∞)"


def test_the_baseline_is_filled_by_any_run_and_by_its_own_run_first(store):
    store.log("ei", items(25, baseline=21.0))
    assert by_method(store.table())["baseline"].scores["psnr"].mean == pytest.approx(21.0)
    store.log("baseline", items(19.0, equiv=40.0), curve=())
    row = by_method(store.table())["baseline"]
    assert (row.scores["psnr"].mean, row.command) == (pytest.approx(19.0), "")


def test_training_time_is_the_sum_of_the_epochs(store):
    store.log("es", items(25), curve=((0, 0.0, 20.0), (1, 3.0, 21.0), (2, 4.0, 22.0)))
    store.log("tv", items(22), curve=((1, 1.0, 20.0), (2, 1.0, 21.0)))  # two weights are tried
    rows = by_method(store.table())
    assert rows["tv"].training is None
    took = rows["es"].training
    assert (took.seconds, took.epochs, took.seconds_per_epoch) == (7.0, 2.0, 3.5)


def test_a_bundle_of_the_users_own_has_a_table_without_the_papers_numbers(store):
    store.log("es", items(25), bundle="mine", experiment="mine")
    table = store.table()
    assert (table.theirs, by_method(table)["es"].paper) == (None, None)


def test_the_ablation_pairs_equivariant_with_other_networks(store):
    store.log("es", items(28))
    store.log("splitting", items(27))
    rows = by_method(ablation_table(store.group(), Context()))
    assert list(rows) == ["supervised", "supervised_neq", "es", "splitting"]
    assert rows["splitting"].paper.psnr.text == "28.18 ± 2.58"
    assert options(rows["supervised_neq"].command)["--method"] == "supervised_neq"
    assert "splitting" not in by_method(store.table())


def test_ct_has_an_ablation_only_where_a_run_makes_one(store):
    ct = {"bundle": "lidc_ct", "experiment": "lidc_ct_demo", "operator": {"views": "16", "sigma": "0.001"}}
    store.log("ei", items(28), **ct)
    assert ablation_table(store.group(), Context()) is None
    store.log("ei_neq", items(28), **ct)
    assert set(by_method(ablation_table(store.group(), Context()))) == {"ei", "ei_neq"}


@pytest.mark.parametrize("same_data", [True, False])
def test_runs_that_take_the_noise_as_zero_stand_beside_those_that_know_it_on_the_same_data(store, same_data):
    store.log("es", items(28))
    digest = ("d1" if same_data else "d2") * 32
    store.log("es", items(27), experiment="fastmri_synthetic_noise", params={"assumed_sigma": "0.0"}, digest=digest)
    groups = store.groups()
    known = next(group for group in groups if not group.key.variant)
    rows = {(row.method, row.known): row for row in noise_table(known, groups, Context()).rows}
    means = {one: row.scores["psnr"].mean for one, row in rows.items() if row.scores and one[0] == "es"}
    assert means == pytest.approx({("es", True): 28.0} | ({("es", False): 27.0} if same_data else {}))
    assert "noise_unknown.yaml" in rows["ei", False].command
    assert rows["ei", False].paper.psnr.text == "27.89 ± 2.59"


def test_a_score_is_printed_in_the_papers_digits():
    assert score_cell(Score(0.87374, 0.04614, 9), "ssim").text == "0.8737 ± 0.0461"
    assert score_cell(Score(28.0, None, 1), "psnr").text == "28.00"
    assert score_cell(None, "psnr").text == "N/A"
