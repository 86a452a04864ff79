import logging

import pytest
import torch

from es_medical.data import CachedSlices, SliceDataset, SliceHeader, SliceRecord, SliceWriter
from es_medical.data import cache as cache_module

SIZE = (64, 64)


@pytest.fixture(scope="module")
def slice_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "slices.h5"
    header = SliceHeader(sigma=0.1, mask=torch.ones(SIZE[1], dtype=torch.bool))
    with SliceWriter(path, header, SIZE) as writer:
        for i in range(200):
            y = torch.full((2, *SIZE), float(i))
            writer.append(SliceRecord(y, y + 0.5, f"id{i}", f"s{i}", "train" if i < 190 else "val", data_range=1.0))
    return path


def test_items_equal_those_on_disk(slice_file):
    dataset = SliceDataset(slice_file, "val")
    on_device = CachedSlices(dataset, "cpu")
    assert len(on_device) == len(dataset) == 10
    for a, b in zip(dataset, on_device, strict=False):
        assert a.keys() == b.keys()
        assert (a["id"], a["index"]) == (b["id"], b["index"])
        assert all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a if torch.is_tensor(a[name]))


def test_estimate_is_logged(slice_file, caplog):
    with caplog.at_level(logging.INFO, "es_medical.data"):
        CachedSlices(SliceDataset(slice_file, "val", with_image=False), "cpu")
    assert "caching 10 slices on cpu: 0.3 MiB of" in caplog.text


def test_more_than_the_free_memory_is_refused_before_loading(slice_file, monkeypatch):
    monkeypatch.setattr(cache_module, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(cache_module.CachedSlices, "_load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(MemoryError, match=r"190 slices on cpu takes 11.9 MiB, 1.0 MiB are free"):
        CachedSlices(SliceDataset(slice_file, "train"), "cpu")


def test_cuda_cache_in_a_worker_is_a_clear_error(slice_file, monkeypatch):
    on_device = CachedSlices(SliceDataset(slice_file, "val"), "cpu")
    on_device.device = torch.device("cuda")
    monkeypatch.setattr(cache_module, "get_worker_info", object)
    with pytest.raises(RuntimeError, match="num_workers=0"):
        on_device[0]


GIB = 2**30


@pytest.mark.parametrize(("needed", "processes", "expected", "why"), [
    (1 * GIB, 1, "cuda:0", "cache_device auto: cuda:0, as the slices take 1 GiB, at most 25% of the 8 GiB free on cuda:0"),
    (3 * GIB, 1, "cpu", "cache_device auto: cpu, as the slices take 3 GiB, at most 50% of the 16 GiB free on cpu"),
    (3 * GIB, 4, None, "25% of the 8 GiB free on cuda:0 and 12% of the 16 GiB free on cpu"),
    (9 * GIB, 1, None, "cache_device auto: none, slices are read while training: 9 GiB is more than 25% of the 8 GiB"),
])  # fmt: skip
def test_auto_takes_what_has_room_and_says_why(slice_file, monkeypatch, caplog, needed, processes, expected, why):
    monkeypatch.setattr(cache_module, "memory_estimate", lambda dataset: needed)
    monkeypatch.setattr(cache_module, "free_memory", lambda device: (8 if device.type == "cuda" else 16) * GIB)
    with caplog.at_level(logging.INFO, "es_medical.data"):
        place = cache_module.cache_place(SliceDataset(slice_file), "cuda:0", processes)
    assert place == (expected and torch.device(expected))
    assert why in caplog.text
    assert len(caplog.records) == 1
