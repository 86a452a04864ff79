import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import BUNDLES, SPLITS, write_images, write_sinograms, write_slices
from typer.testing import CliRunner

from es_medical.diagnose import app

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:mlflow", "ignore::FutureWarning:mlflow", "ignore::DeprecationWarning:sqlalchemy"
)
PNG = b"\x89PNG\r\n\x1a\n"


def config(bundle):
    return BUNDLES / bundle / "configs" / "train.yaml"


def diagnose(tmp_path, bundle, *options, code=0, tracked=()):
    given = ["--config_file", config(bundle), "--out", tmp_path / "out", *(tracked or ["--no-track"]), *options]
    result = CliRunner().invoke(app, [str(one) for one in given], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


# --- without a data file


def test_even_views_are_blind_without_any_data(tmp_path):
    words = diagnose(tmp_path, "lidc_ct", "--size", 16, "--views", 6)
    assert "no data file was read" in words
    assert "6 views evenly over 180 degrees" in words
    assert "Blind: flips, rotations by 90 degrees, D4" in words
    assert "--rotations 4" in words
    assert "Measure 7 views" in words


@pytest.mark.parametrize("knob", [["--views", "7"], ["--views=7"]])
def test_knobs_after_the_options_count(tmp_path, knob):
    words = diagnose(tmp_path, "lidc_ct", "--size", 16, "--group", "d4", *knob)
    assert "7 views evenly" in words
    assert "Blind" not in words


def test_push_broom_failure_is_found_without_any_data(tmp_path):
    words = diagnose(tmp_path, "div2k_inpainting", "--size", 16, "--mask", "even_columns", "--keep", "0.5")
    assert "mask of even columns, 50 % kept" in words
    assert "50.0 % under cyclic shifts" in words
    assert "may put anything there" in words


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        ("fastmri_synthetic", "2 of 16 lines (x8, Gaussian), mask seed 0 (data_prep's default)"),
        ("fastmri_real", "k-space of a single coil"),
        ("mnist_cs", "77 products with a Gaussian matrix of 77 x 256, matrix seed 0"),
    ],
)
def test_what_stands_in_for_the_data_is_said(tmp_path, bundle, said):
    words = diagnose(tmp_path, bundle, "--size", 16, "--group", "flips")
    assert said in words


def test_paper_sizes_stand_in_where_none_is_given(tmp_path):
    words = diagnose(tmp_path, "mnist_cs", "--group", "amplitude")
    assert "235 products with a Gaussian matrix of 235 x 784" in words
    words = diagnose(tmp_path, "fastmri_synthetic", "--group", "d4")
    assert "320 x 320 k-space of a single coil, 40 of 320 lines" in words
    assert "12.5 % of the n = 204,800" in words


def test_splits_are_those_of_the_configuration_or_of_the_command(tmp_path):
    options = ("--size", 16, "--acceleration", "2", "--center_fraction", "0.2", "--group", "d4")  # 8 lines, 3 of them central
    words = diagnose(tmp_path, "fastmri_synthetic", *options)
    assert "- ratio 0.8: 37.5 % of n" in words
    words = diagnose(tmp_path, "fastmri_synthetic", *options, "--split-ratio", 0.5, "--split-ratio", 0.1)
    assert "- ratio 0.5: 25.0 % of n" in words
    assert "- ratio 0.1: 18.8 % of n" in words  # the centre always stays
    assert "ratio 0.8" not in words


def test_a_scan_that_no_split_divides_is_diagnosed_all_the_same(tmp_path):
    words = diagnose(tmp_path, "lidc_ct", "--size", 16, "--views", 1, "--group", "flips")
    assert "No split of these measurements can be drawn: can't split 1 measured views" in words
    assert "The operator alone measures" in words


def test_overlays_are_read_as_by_monai_bundle(tmp_path):
    files = [str(config("lidc_ct")), str(config("lidc_ct").with_name("demo.yaml"))]
    assert "16 views evenly" in diagnose(tmp_path, "lidc_ct", "--config_file", files, "--size", 16, "--group", "flips")


# --- with a data file


def test_operator_and_images_of_the_file_are_taken(tmp_path):
    source = write_slices(tmp_path / "slices.h5")
    knobs = ["--acceleration", 2, "--center_fraction", 0.25, "--sigma", 0.01]
    words = diagnose(tmp_path, "fastmri_synthetic", "--data", source, "--images", 2, *knobs)
    assert f"the operator of {source.name}" in words
    assert str(tmp_path) not in (tmp_path / "out" / "verdict.txt").read_text()
    assert "no data file" not in words
    assert "(2 of slices.h5)" in words
    assert "50.0 % of the n = 512" in words


def test_auto_split_ratio_follows_from_the_file(tmp_path):
    """Without a file it is the paper's."""
    source = write_slices(tmp_path / "slices.h5", splits={"test": 4})  # no training slices either
    knobs = ["--acceleration", 2, "--center_fraction", 0.25, "--sigma", 0.01, "--split_ratio", "auto"]
    diagnose(tmp_path, "fastmri_synthetic", "--data", source, *knobs)
    of_file = (tmp_path / "out" / "verdict.txt").read_text()
    words = diagnose(tmp_path, "fastmri_synthetic", "--size", 16, *knobs)
    assert "ratio 0.9:" in of_file
    assert "split_ratio 0.8, since auto needs a data file" in words
    assert "ratio 0.8:" in words


def test_file_without_images_has_no_energy(tmp_path):
    source = write_sinograms(tmp_path / "slices.h5", with_image=False)
    words = diagnose(tmp_path, "lidc_ct", "--data", source, "--views", 6, "--sigma", 0.01)
    assert "energy of typical images" not in words


def test_each_slice_with_its_own_operator_is_looked_at_by_the_first(tmp_path):
    source = write_slices(tmp_path / "slices.h5", size=(8, 8), coils=2, sigmas=(0.01,), splits=SPLITS)
    words = diagnose(tmp_path, "fastmri_real", "--data", source, "--acceleration", 2, "--center_fraction", 0.25)
    assert "(1 of slices.h5)" in words
    assert "n = 128" in words


def test_file_of_the_configuration_is_read_where_it_is(tmp_path):
    (tmp_path / "data").mkdir()
    source = write_images(tmp_path / "data" / "mnist_ratio30.h5", size=(8, 8), sensing=True)
    words = diagnose(tmp_path, "mnist_cs", "--bundle_root", tmp_path, "--ratio", 0.25, "--sigma", 0.01)
    assert f"the operator of {source.name}" in words
    assert str(tmp_path) not in (tmp_path / "out" / "verdict.txt").read_text()


def test_file_that_was_made_otherwise_is_an_error(tmp_path):
    source = write_sinograms(tmp_path / "slices.h5")
    words = diagnose(tmp_path, "lidc_ct", "--data", source, "--views", 7, "--sigma", 0.01, code=1)
    assert "was made with views 6" in words


# --- what is written


@pytest.fixture(scope="module")
def run(tmp_path_factory, workflow_uri, client):
    folder = tmp_path_factory.mktemp("diagnose")
    tracked = ["--tracking-uri", workflow_uri, "--experiment", folder.name]
    diagnose(folder, "lidc_ct", "--size", 16, "--views", 6, tracked=tracked)
    (found,) = client.search_runs([client.get_experiment_by_name(folder.name).experiment_id])
    return client, found, folder


def test_files_are_pictures_a_table_and_the_verdict(run):
    _, _, folder = run
    assert {path.name for path in (folder / "out").iterdir()} == {"coverage.png", "spectrum.png", "table.json", "verdict.txt"}
    for name in ("coverage.png", "spectrum.png"):
        assert (folder / "out" / name).read_bytes().startswith(PNG)
    assert "Best to train with: fine rotations" in (folder / "out" / "verdict.txt").read_text()
    assert json.loads((folder / "out" / "table.json").read_text())["gain, %"][3] == "+0.0"


def test_run_holds_numbers_tags_and_files(run):
    client, found, _ = run
    assert (found.info.status, found.info.run_name) == ("FINISHED", "diagnosis-lidc_ct")
    tags = {"kind": "diagnosis", "bundle": "lidc_ct", "diagnosis.group": "fine_rotations"}
    assert found.data.tags.items() >= tags.items()
    assert found.data.metrics["d4/gain"] == 0
    assert found.data.metrics["fine_rotations/gain"] > 0.1
    assert 0 < found.data.metrics["split_0.9/none/rank"] < found.data.metrics["none/rank"]
    assert found.data.params["views"] == "6"
    paths = {Path(file.path).name for file in client.list_artifacts(found.info.run_id, "diagnosis")}
    assert paths == {"coverage.png", "spectrum.png", "table.json", "verdict.txt"}


def test_report_leaves_the_run_out_of_its_tables(run):
    from es_medical.report.reading.runs import read_runs

    client, found, folder = run
    records = read_runs(client.tracking_uri, [folder.name])
    assert not records.runs
    assert "without a method" in records.remarks[0]


# --- what a user can put right


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--config_file", "none.yaml"], "no configuration file none.yaml"),
        (["--config_file", "['a.yaml'"], "a list of files is written"),
        (["--veiws", "7"], "did you mean 'views'"),
        (["--views", "many"], "views must be a number"),
        (["--views", "null"], "views must be a number"),
        (["--views", "5.5"], "views must be a whole number, got 5.5"),
        (["--views", "[1"], "--views [1: no value that can be read"),
        (["7"], "knobs are given as --name value"),
        (["--group", "d8"], "rotations_90"),
        (["--data", "none.h5"], "no slice file at none.h5"),
    ],
)
def test_mistakes_are_told_in_a_line(tmp_path, options, said):
    size = () if "--data" in options else ("--size", 16)
    words = diagnose(tmp_path, "lidc_ct", *size, *options, code=1)
    assert words.startswith("error: ")
    assert said in words


@pytest.mark.parametrize("text", ["a: [", "method: es", "- es", "physics: {}"])
def test_file_that_is_no_configuration_is_named(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    result = CliRunner().invoke(app, ["--config_file", str(path), "--no-track"])
    assert result.exit_code == 1
    assert "error: " in result.output
    assert "broken.yaml" in result.output


def test_size_beside_a_data_file_is_refused(tmp_path):
    source = write_sinograms(tmp_path / "slices.h5")
    words = diagnose(tmp_path, "lidc_ct", "--data", source, "--size", 16, "--views", 6, "--sigma", 0.01, code=1)
    assert "--size is for use without a data file" in words


def test_command_line_loads_nothing_heavy():
    code = (
        "import sys, es_medical.diagnose; sys.exit(bool({'torch', 'monai', 'mlflow', 'matplotlib', 'h5py'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
