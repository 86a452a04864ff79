"""The table at the end of a job."""

import json
import math
from pathlib import Path

from es_medical.output.results import json_value, numbers, print_places, summary_table

METRICS = {"heldout": 0.25, "heldout_sd": 0.01, "psnr": 30.123, "psnr_sd": 1.5, "ssim": 0.87654, "ssim_sd": 0.02}
METRICS |= {"baseline_psnr": 20.0, "baseline_psnr_sd": 1.0, "baseline_ssim": 0.5, "baseline_ssim_sd": 0.1}


def test_two_rows_with_mean_and_deviation():
    table = summary_table("es", METRICS | {"equiv": 40.0, "equiv_sd": 1.0}, 7)
    assert table["method"] == ["zero-filled", "es"]
    assert table["slices"] == ["7", "7"]
    assert table["PSNR (dB)"] == ["20.00 ± 1.00", "30.12 ± 1.50"]
    assert table["SSIM"] == ["0.5000 ± 0.1000", "0.8765 ± 0.0200"]
    assert table["EQUIV (dB)"] == ["-", "40.00 ± 1.00"]
    assert table["held-out error"] == ["1", "0.2500 ± 0.0100"]


def test_without_ground_truth_only_the_heldout_error_is_shown():
    assert list(summary_table("es", {"heldout": 0.25, "heldout_sd": 0.1}, 2)) == ["method", "slices", "held-out error"]


def test_one_slice_has_no_deviation():
    assert summary_table("es", {"heldout": 0.25, "psnr": 30.0, "baseline_psnr": 20.0}, 1)["PSNR (dB)"] == ["20.00", "30.00"]


def test_places_are_printed_in_one_piece(capsys):
    uri = "sqlite:////a/long/path/to/a/folder/of/a/user/who/likes/deep/folders/and/terminals/of/eighty/columns/mlflow.db"
    address = "http://127.0.0.1:5000/#/experiments/1/runs/0123456789abcdef0123456789abcdef?workflowType=machine_learning"
    print_places(Path("some/models"), Path("some/models/overview.html"), address, f"mlflow ui --backend-store-uri {uri}")
    out = capsys.readouterr().out
    assert f"mlflow ui --backend-store-uri {uri}\n" in out
    assert f"{address}\n" in out
    assert "some/models/overview.html" in out
    print_places(Path("some/models"), Path("some/models/overview.html"), "", "mlflow ui")  # the server is down
    assert "mlflow" not in capsys.readouterr().out


def test_exact_equivariance_is_no_number():
    metrics = METRICS | {"equiv": math.inf, "equiv_exact": 7.0}
    assert summary_table("es", metrics, 7)["EQUIV (dB)"] == ["-", "∞ (exact)"]
    assert numbers(metrics) == METRICS | {"equiv_exact": 7.0}


def test_some_exact_slices_are_counted_beside_the_mean_of_the_others():
    metrics = METRICS | {"equiv": 52.1, "equiv_sd": 0.5, "equiv_exact": 3.0}
    assert summary_table("es", metrics, 7)["EQUIV (dB)"] == ["-", "52.10 ± 0.50 (3 of 7 ∞ (exact))"]
    assert numbers(metrics) == metrics


def test_finite_equivariance_is_shown_as_it_is():
    metrics = METRICS | {"equiv": 112.0}
    assert summary_table("es", metrics, 7)["EQUIV (dB)"] == ["-", "112.00"]


def test_perfect_reconstructions_keep_their_capped_psnr():
    assert summary_table("es", METRICS | {"psnr": 100.0}, 7)["PSNR (dB)"][1] == "≥ 100 (exact)"


def test_rows_are_valid_json():
    row = {"id": "item7", "index": 7, "equiv": math.inf, "heldout": math.nan, "psnr": 30.5, "odd": -math.inf}
    found = {name: json_value(value) for name, value in row.items()}
    assert found == {"id": "item7", "index": 7, "equiv": "inf", "heldout": None, "psnr": 30.5, "odd": "-inf"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_missing_score_is_still_noted():
    assert math.isnan(numbers({"heldout": math.nan})["heldout"])
