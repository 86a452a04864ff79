import gc
import logging

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from es_medical.data import SliceDataset, SliceHeader, SliceRecord, SliceWriter, cached
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


class Probe(Dataset):
    """Adds the private memory of the process that reads the item."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        item = self.dataset[index]
        process = psutil.Process()
        return item | {"pid": process.pid, "private": process.memory_full_info().uss}


def test_items_equal_those_on_disk(slice_file):
    dataset = SliceDataset(slice_file, "val")
    on_device = cached(dataset, "cpu")
    assert len(on_device) == len(dataset) == 10
    for a, b in zip(dataset, on_device, strict=False):
        assert a.keys() == b.keys()
        assert (a["id"], a["index"]) == (b["id"], b["index"])
        assert all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a if torch.is_tensor(a[name]))


def test_estimate_is_logged(slice_file, caplog):
    with caplog.at_level(logging.INFO, "es_medical.data"):
        cached(SliceDataset(slice_file, "val", with_image=False), "cpu")
    assert "caching 10 slices on cpu: 0.3 MiB of" in caplog.text


def test_more_than_the_free_memory_is_refused_before_loading(slice_file, monkeypatch):
    monkeypatch.setattr(cache_module, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(cache_module.CachedSlices, "_load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(MemoryError, match=r"190 slices on cpu takes 11.9 MiB, 1.0 MiB are free"):
        cached(SliceDataset(slice_file, "train"), "cpu")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_workers_and_two_epochs_do_not_copy_the_cache(slice_file):
    on_device = cached(SliceDataset(slice_file, "train"), "cpu")
    size = sum(tensor.nbytes for tensor in on_device._tensors.values())
    loader = DataLoader(Probe(on_device), batch_size=2, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    private = {}
    gc.collect()
    gc.freeze()  # a collection in a worker writes to the pages of all that the whole test session holds
    for _ in range(2):
        for batch in loader:
            private.setdefault(int(batch["pid"][0]), []).append(int(batch["private"][0]))
    gc.unfreeze()
    assert len(private) == 2
    assert size > 10 * 2**20
    assert all(max(seen) - seen[0] < size / 2 for seen in private.values())


def test_cuda_cache_in_a_worker_is_a_clear_error(slice_file, monkeypatch):
    on_device = cached(SliceDataset(slice_file, "val"), "cpu")
    on_device.device = torch.device("cuda")
    monkeypatch.setattr(cache_module, "get_worker_info", object)
    with pytest.raises(RuntimeError, match="num_workers=0"):
        on_device[0]
