"""The tables: the paper's rows in its order, missing runs with their commands, the best in bold."""

import math
import shlex
from pathlib import Path

import pytest
import yaml
from report_store import items

from es_medical.methods import METHODS
from es_medical.report.grids import score_cell
from es_medical.report.groups import group_runs
from es_medical.report.reading.runs import read_runs
from es_medical.report.reading.scores import Score
from es_medical.report.tables import Context, ablation_table, absent_tables, method_table, noise_table

REPOSITORY = Path(__file__).parents[2]
BUNDLES = REPOSITORY / "bundles"


@pytest.fixture
def table(store):
    """The table of methods of a store with one group."""

    def make():
        (group,) = group_runs(read_runs(store.uri).runs)
        return method_table(group, Context(store.uri, BUNDLES))

    return make


def by_method(table):
    return {row.method: row for row in table.rows}


def test_rows_are_the_papers_in_its_order_and_the_others_beside_them(store, table):
    for method in ("tv", "mc", "es", "unsure"):
        store.log(method, items(25))
    assert [row.method for row in table().rows] == ["supervised", "es", "ei", "sure", "unsure", "mc", "baseline", "tv"]


def test_the_papers_numbers_stand_in_the_row_of_the_same_method(store, table):
    store.log("es", items(25))
    rows = by_method(table())
    assert rows["es"].paper.psnr.text == "28.54 ± 2.75"
    assert rows["ei"].paper_training.epochs == 7800
    assert rows["baseline"].label == "IDFT"


def test_a_missing_run_says_which_command_fills_it(store, table):
    store.log("es", items(25), params={"epochs": "7", "widths": "[8, 16]", "data_file": "my data.h5"})
    row = by_method(table())["ei"]
    words = shlex.split(row.command)
    assert row.scores == {}
    assert words[:4] == ["python", "-m", "monai.bundle", "run"]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--method"] == "ei"
    assert options["--epochs"] == "7"
    assert options["--widths"] == "[8, 16]"
    assert options["--data_file"] == "my data.h5"
    assert options["--tracking_uri"] == store.uri
    assert all((REPOSITORY / file.strip("[]'")).is_file() for file in options["--config_file"].split(","))


def test_a_knob_that_the_configuration_has_already_is_not_repeated(store, table):
    demo = yaml.safe_load((REPOSITORY / "bundles/fastmri_synthetic/configs/demo.yaml").read_text())
    store.log("es", items(25), params={name: str(demo[name]) for name in ("epochs", "lr")})
    command = by_method(table())["ei"].command
    assert "--lr " not in command
    assert "--acceleration" not in command
    assert "--epochs" not in command


def test_the_command_of_another_seed_has_that_seed_and_its_own_weights(store, table):
    store.log("es", items(25), seed=3)
    command = by_method(table())["ei"].command
    assert "--seed 3" in command
    assert "models/ei-demo-seed3" in command


def test_every_command_of_an_empty_study_names_files_and_methods_that_exist():
    tables = [one for scale in ("demo", "paper") for one in absent_tables([], scale, Context())]
    assert len(tables) == 16
    for one in tables:
        assert one.data_command.startswith("python -m data_prep ")
        for row in one.rows:
            words = shlex.split(row.command)
            options = dict(zip(words[4::2], words[5::2], strict=True))
            assert options["--method"] in METHODS
            files = [REPOSITORY / file.strip("[]'") for file in options["--config_file"].split(",")]
            assert all(file.is_file() for file in files), files


def test_the_best_self_supervised_score_is_marked_and_supervised_never(store, table):
    store.log("supervised", items(33, ssim=0.9))
    store.log("es", items(28, ssim=0.7))
    store.log("ei", items(27, ssim=0.8))
    store.log("tv", items(40, ssim=0.99))
    marked = {(row.method, name) for row in table().rows for name, score in row.scores.items() if score.best}
    assert marked == {("es", "psnr"), ("ei", "ssim"), ("es", "equiv"), ("ei", "equiv")}


def test_mean_and_deviation_are_over_items_of_means_over_seeds(store, table):
    store.log("es", {"a": {"psnr": 20.0}, "b": {"psnr": 30.0}}, seed=0)
    store.log("es", {"a": {"psnr": 22.0}, "b": {"psnr": 34.0}}, seed=1)
    row = by_method(table())["es"]
    assert row.seeds == 2
    assert row.scores["psnr"].mean == pytest.approx(26.5)
    assert row.scores["psnr"].sd == pytest.approx(math.sqrt(2) * 5.5)
    assert row.scores["psnr"].between_seeds == pytest.approx(math.sqrt(2) * 1.5)


def test_an_item_without_a_score_is_left_out_and_told(store, table):
    nan = items(25, n=4)
    nan["item0"]["psnr"] = math.nan
    store.log("es", items(28, n=4))
    store.log("ei", nan)
    made = table()
    rest = [row["psnr"] for one, row in nan.items() if one != "item0"]
    assert by_method(made)["ei"].scores["psnr"].mean == pytest.approx(sum(rest) / 3)
    assert by_method(made)["ei"].scores["psnr"].n == 3
    assert any("items with a PSNR differ" in note and "EI 3" in note for note in made.notes)


def test_without_the_table_of_items_the_runs_own_metrics_count(store, table):
    store.log("es", None, metrics={"psnr": 27.5, "psnr_sd": 1.5})
    assert by_method(table())["es"].scores["psnr"][:2] == (27.5, 1.5)


@pytest.mark.parametrize("equiv", ["inf", math.inf, 100.0])
def test_exact_equivariance_is_infinite(store, table, equiv):
    store.log("es", items(25, equiv=equiv))
    score = by_method(table())["es"].scores["equiv"]
    assert score_cell(score, "equiv").text == "∞"
    assert score.best


def test_where_some_items_are_exact_the_mean_is_over_the_others_and_the_exact_ones_are_counted(store, table):
    mixed = items(25)
    mixed["item0"]["equiv"] = "inf"  # as the engine logs it
    store.log("es", mixed)
    score = by_method(table())["es"].scores["equiv"]
    assert (score.mean, score.exact, score.n) == (50.0, 1, 6)
    assert score_cell(score, "equiv").text == "50.00 ± 0.00 (1 of 6 ∞)"


def test_exact_equivariance_is_read_from_its_tag_where_items_were_not_logged(store, table):
    store.log("es", None, metrics={"psnr": 27.5}, tags={"equiv": "exact"})
    assert by_method(table())["es"].scores["equiv"].mean == math.inf


def test_the_baseline_is_filled_by_any_run_and_by_its_own_run_first(store, table):
    store.log("ei", items(25, baseline=21.0))
    assert by_method(table())["baseline"].scores["psnr"].mean == pytest.approx(21.0)
    store.log("baseline", items(19.0, equiv=40.0), curve=())
    assert by_method(table())["baseline"].scores["psnr"].mean == pytest.approx(19.0)
    assert by_method(table())["baseline"].command == ""


def test_training_time_is_the_sum_of_the_epochs(store, table):
    store.log("es", items(25), curve=((0, 0.0, 20.0), (1, 3.0, 21.0), (2, 4.0, 22.0)))
    store.log("tv", items(22), curve=((1, 1.0, 20.0), (2, 1.0, 21.0)))  # two weights are tried
    assert by_method(table())["tv"].training is None
    took = by_method(table())["es"].training
    assert (took.seconds, took.epochs, took.seconds_per_epoch) == (7.0, 2.0, 3.5)


def test_a_bundle_of_the_users_own_has_a_table_without_the_papers_numbers(store, table):
    store.log("es", items(25), bundle="mine", experiment="mine")
    made = table()
    assert made.theirs is None
    assert by_method(made)["es"].paper is None


def test_the_ablation_pairs_equivariant_with_other_networks(store):
    store.log("es", items(28))
    store.log("splitting", items(27))
    (group,) = group_runs(read_runs(store.uri).runs)
    rows = by_method(ablation_table(group, Context()))
    assert list(rows) == ["supervised", "supervised_neq", "es", "splitting"]
    assert rows["splitting"].paper.psnr.text == "28.18 ± 2.58"
    assert "--method supervised_neq" in rows["supervised_neq"].command
    assert "splitting" not in by_method(method_table(group, Context()))


def test_ct_has_an_ablation_only_where_a_run_makes_one(store):
    ct = {"bundle": "lidc_ct", "experiment": "lidc_ct_demo", "operator": {"views": "16", "sigma": "0.001"}}
    store.log("ei", items(28), **ct)
    (group,) = group_runs(read_runs(store.uri).runs)
    assert ablation_table(group, Context()) is None
    store.log("ei_neq", items(28), **ct)
    (group,) = group_runs(read_runs(store.uri).runs)
    assert set(by_method(ablation_table(group, Context()))) == {"ei", "ei_neq"}


def test_runs_that_take_the_noise_as_zero_stand_beside_those_that_know_it(store):
    store.log("es", items(28))
    store.log("es", items(27), experiment="fastmri_synthetic_noise", params={"assumed_sigma": "0.0"})
    groups = group_runs(read_runs(store.uri).runs)
    known = next(group for group in groups if not group.key.variant)
    made = noise_table(known, groups, Context())
    means = {(row.method, row.known): row.scores["psnr"].mean for row in made.rows if row.scores and row.method == "es"}
    assert means == {("es", True): pytest.approx(28.0), ("es", False): pytest.approx(27.0)}
    missing = next(row for row in made.rows if (row.method, row.known) == ("ei", False))
    assert "noise_unknown.yaml" in missing.command
    assert missing.paper.psnr.text == "27.89 ± 2.59"


def test_unknown_noise_on_other_data_is_not_put_beside(store):
    store.log("es", items(28))
    store.log("es", items(27), experiment="fastmri_synthetic_noise", params={"assumed_sigma": "0.0"}, digest="d2" * 32)
    groups = group_runs(read_runs(store.uri).runs)
    known = next(group for group in groups if not group.key.variant)
    rows = noise_table(known, groups, Context()).rows
    assert not any(row.scores for row in rows if not row.known)


def test_the_setting_of_ours_is_stated(store, table):
    store.log("es", items(25, n=5), tags={"image_size": "64 x 64"})
    said = table().ours
    for part in ("scale demo", "demo.h5", "d1d1d1d1", "30 training", "5 test", "64 x 64", "acceleration 4", "sigma 0.005"):
        assert part in said


@pytest.mark.parametrize(
    ("score", "name", "text"),
    [
        (Score(28.456, 2.971, 9), "psnr", "28.46 ± 2.97"),
        (Score(0.87374, 0.04614, 9), "ssim", "0.8737 ± 0.0461"),
        (Score(28.0, None, 1), "psnr", "28.00"),
        (None, "psnr", "N/A"),
        (Score(math.inf, 0.0, 9), "equiv", "∞"),
    ],
)
def test_a_score_is_printed_in_the_papers_digits(score, name, text):
    assert score_cell(score, name).text == text
