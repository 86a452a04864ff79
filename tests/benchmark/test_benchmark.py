import json

import pytest
import torch

from es_medical.benchmark import imports
from es_medical.benchmark.__main__ import _parser, main
from es_medical.benchmark.imports import benchmark_import
from es_medical.benchmark.settings import PAPER_WIDTHS, Setting, chosen_settings
from es_medical.benchmark.step import EPOCH, benchmark, operator_of
from es_medical.benchmark.timing import alternate, ratio

CPU = torch.device("cpu")


def chosen(*arguments):
    return chosen_settings(_parser().parse_args(["step", *arguments]))


def test_jobs_take_turns_after_the_warmup():
    calls = []
    jobs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = alternate(jobs, repeats=2, warmup=1, device=CPU, inner=2)
    assert "".join(calls) == 3 * "aabbcc"
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2, "c": 2}


def test_ratio_compares_runs_of_the_same_round():
    slow_machine = {"a": [1.1, 11.0, 110.0], "b": [1.0, 10.0, 100.0]}  # ten times slower in each round
    assert ratio(slow_machine, "a", "b") == pytest.approx((1.1, 1.1, 1.1))


def test_default_settings_are_those_of_the_targets():
    large, small = chosen()
    assert (large.size, large.batch, large.widths, large.iterations) == (320, 2, PAPER_WIDTHS, 3)
    assert (small.size, small.batch, small.widths, small.iterations) == (64, 4, (16, 32, 64), 3)
    assert not any(knob for one in (large, small) for knob in (one.amp, one.channels_last, one.compiled))
    assert (large.deepinv, small.deepinv) == (False, True)


def test_default_settings_on_cuda_are_the_papers_with_and_without_compilation():
    settings = chosen("--device", "cuda")
    found = [(one.size, one.batch, one.compiled) for one in settings]
    assert found == [(320, 4, False), (320, 4, True), (320, 16, False), (320, 16, True)]
    assert all(one.amp and one.channels_last for one in settings)


def test_knobs_on_the_command_line_win():
    (only,) = chosen("--size", "64", "--widths", "4,8", "--channels-last", "--compile", "--no-deepinv", "--repeats", "7")
    assert only == Setting(64, 2, (4, 8), 3, 7, channels_last=True, compiled=True)
    assert [one.compiled for one in chosen("--device", "cuda", "--no-compile")] == [False, False]


def test_step_benchmark_prints_and_writes_consistent_numbers(tmp_path, capsys):
    path = tmp_path / "times.json"
    main(
        ["step", "--size", "16", "--batch", "2", "--widths", "2,4", "--iterations", "2", "--repeats", "3", "--json", str(path)]
    )
    report = json.loads(path.read_text())
    (result,) = report["step"]
    times = result["milliseconds"]
    assert set(times) == {"denoiser", "es", "update", "deepinv"}
    low, high = (result["to_denoiser"][key] for key in ("low", "high"))
    assert 0 < low <= result["to_denoiser"]["median"] <= high
    assert result["images_per_second"] == pytest.approx(2e3 / (times["es"] + times["update"]))
    assert result["epoch_seconds"] == pytest.approx(EPOCH / result["images_per_second"])
    assert report["machine"]["threads"] == torch.get_num_threads()
    printed = capsys.readouterr().out
    assert "ES step / denoiser" in printed
    assert "16x16 batch 2 UNet 2-4" in printed


def test_deepinv_is_timed_only_when_asked_for():
    result = benchmark(Setting(16, 1, (2, 4), iterations=1, repeats=1), CPU)
    assert result.to_deepinv is None
    assert "deepinv" not in result.milliseconds


def test_several_coils_are_timed_without_deepinv(tmp_path):
    path = tmp_path / "times.json"
    main(["step", "--size", "16", "--coils", "3", "--widths", "2,4", "--repeats", "1", "--deepinv", "--json", str(path)])
    (result,) = json.loads(path.read_text())["step"]
    assert result["setting"]["coils"] == 3
    assert set(result["milliseconds"]) == {"denoiser", "es", "update"}
    assert result["to_deepinv"] is None


def test_setting_says_how_many_coils():
    (only,) = chosen("--size", "96", "--coils", "8")
    assert str(only).startswith("96x96 batch 2 8 coils UNet")
    assert not only.deepinv
    assert [one.coils for one in chosen()] == [0, 0]


def test_maps_of_the_benchmark_are_normalised_and_differ():
    physics = operator_of(Setting(16, 2, coils=8), torch.ones(16))
    assert physics.maps.shape == (2, 2, 8, 16, 16)
    torch.testing.assert_close(physics.maps.square().sum((1, 2)), torch.ones(2, 16, 16))
    assert (physics.maps[0] - physics.maps[1]).abs().max() > 0.1
    assert (physics.maps[:, :, 0] - physics.maps[:, :, 4]).abs().max() > 0.1


def test_import_benchmark_compares_with_torch_and_deepinv(monkeypatch):
    monkeypatch.setattr("es_medical.benchmark.imports.STATEMENTS", {"torch, deepinv": "", "es_medical": "import json"})
    result = benchmark_import(repeats=2)
    assert set(result.seconds) == {"python", "torch, deepinv", "es_medical"}
    assert set(result.ratios) == {"es_medical"}
    rows = [line.split()[:2] for line in imports.table(result).splitlines()]
    assert rows == [["import", name.split()[0]] for name in result.seconds]
