import json

import pytest
import torch

from es_medical.benchmark import ct as module
from es_medical.benchmark.__main__ import _parser, main
from es_medical.benchmark.ct import benchmark_ct, table

pytestmark = pytest.mark.filterwarnings("ignore:At least one input physics is a DecomposablePhysics:UserWarning")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ES_MEDICAL_CACHE", str(tmp_path / "cache"))


def test_ct_benchmark_prints_and_writes_both_sides(tmp_path, capsys):
    path = tmp_path / "times.json"
    main(["ct", "--size", "16", "--views", "6", "--batch", "2", "--repeats", "2", "--json", str(path)])
    result = json.loads(path.read_text())["ct"]
    assert set(result["speed"]) == {"A", "A^T", "ES step"}
    assert set(result["milliseconds"]) == {f"{name}{side}" for name in result["speed"] for side in ("", " (deepinv)")}
    for speed in result["speed"].values():
        assert 0 < speed["low"] <= speed["median"] <= speed["high"]
    printed = capsys.readouterr().out
    assert "16x16, 6 views, batch 2" in printed
    assert printed.count(" ms ") == 6


def test_operators_alone_are_timed_when_asked_for():
    result = benchmark_ct(16, 6, 1, repeats=1, device=torch.device("cpu"), step=False)
    assert set(result.speed) == {"A", "A^T"}
    assert "ES step" not in table(result)


def test_defaults_are_those_of_the_target():
    options = _parser().parse_args(["ct"])
    assert (options.size, options.views, options.batch, options.device, options.step) == (256, 50, 4, "cpu", True)


def test_both_sides_measure_the_same_problem(monkeypatch):
    """The operators agree up to discretisation and the scale, so the times compare like with like."""
    taken = {}

    def keep(physics, theirs, x):
        taken.update(ours=physics, theirs=theirs)
        return {"A": lambda: 0, "A (deepinv)": lambda: 0}

    monkeypatch.setattr(module, "_operators", keep)
    monkeypatch.setattr(module, "alternate", lambda jobs, *_: {name: [1.0] for name in jobs})
    benchmark_ct(32, 6, 1, repeats=1, device=torch.device("cpu"), step=False)
    x = torch.zeros(1, 1, 32, 32)
    x[..., 8:20, 10:15] = 1
    ours, theirs = taken["ours"].A(x), taken["theirs"].A(x).mT
    assert (ours - theirs).norm() < 0.1 * ours.norm()
