import json

import pytest
import torch

from es_medical.benchmark import data as module
from es_medical.benchmark.__main__ import main
from es_medical.benchmark.data import SequentialSampler, benchmark_data, make_slices
from es_medical.data import SliceDataset

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    return make_slices(tmp_path_factory.mktemp("data") / "slices.h5", 5, 16, 2)


def test_every_source_and_order_is_timed_and_written(slices, tmp_path, capsys):
    path = tmp_path / "data.json"
    main(["data", "--file", str(slices), "--batch", "2", "--workers", "0,1", "--repeats", "2", "--json", str(path)])
    result = json.loads(path.read_text())["data"]
    sources = ("bytes", "0 workers", "1 workers", "cached on cpu")
    assert set(result["per_second"]) == {f"{one}, {order}" for one in sources for order in ("in order", "shuffled")}
    assert set(result["to_bytes"]) == {job for job in result["per_second"] if not job.startswith("bytes")}
    assert (result["slices"], result["mebibytes"]) == (5, 2 * 2 * 2 * 16 * 16 * 4 / 2**20)
    printed = capsys.readouterr().out
    assert all(job in printed for job in result["per_second"])


def test_the_bytes_are_those_of_the_slices(slices, monkeypatch):
    """What the baseline reads is what training reads: at each place stand the numbers of the slice."""
    dataset = SliceDataset(slices)
    places = module._places(slices, dataset)
    content = slices.read_bytes()
    for item, parts in zip(dataset, places, strict=True):
        found = [torch.frombuffer(bytearray(content[start : start + n]), dtype=torch.float32) for start, n in parts]
        assert torch.equal(found[0], item["measurement"].flatten())
        assert torch.equal(found[1], item["maps"].flatten())
    read = []
    monkeypatch.setattr(module.os, "preadv", lambda file, buffers, offset: read.append((offset, len(buffers[0]))))
    module._read_bytes(0, places, SequentialSampler)
    assert read == [part for parts in places for part in parts]


def test_each_epoch_of_each_source_holds_all_slices(slices, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "_epoch", lambda loader, device: seen.append(sorted(i for b in loader for i in b["id"])))
    benchmark_data(slices, 2, (0,), repeats=1)
    assert seen == 8 * [SliceDataset(slices).ids]  # two sources, two orders, a warm-up and a timed round
