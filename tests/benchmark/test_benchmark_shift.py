import json

import pytest

from es_medical.benchmark.__main__ import _parser, main


def test_shift_benchmark_prints_and_writes_consistent_numbers(tmp_path, capsys):
    path = tmp_path / "times.json"
    knobs = ["--size", "16", "--batch", "2", "--repeats", "3", "--channels-last", "--widths", "2,4", "--widths", "2,3,4"]
    main(["shift", *knobs, "--json", str(path)])
    results = json.loads(path.read_text())["shift"]
    assert [result["setting"]["widths"] for result in results] == [[2, 4], [2, 3, 4]]
    for result in results:
        assert set(result["milliseconds"]) == {"plain", "shift"}
        low, middle, high = (result["to_plain"][key] for key in ("low", "median", "high"))
        assert 0 < low <= middle <= high
        assert result["gap"] < 1e-5
        assert result["setting"]["channels_last"]
    printed = capsys.readouterr().out
    assert "16x16, 3 channels, batch 2 UNet 2-3-4 channels_last" in printed
    assert "shift / plain" in printed


def test_default_setting_is_that_of_the_target():
    options = _parser().parse_args(["shift"])
    assert (options.size, options.batch, options.channels, options.widths) == (128, 4, 3, None)
    with pytest.raises(SystemExit):
        _parser().parse_args(["shift", "--coils", "3"])
