"""What tests/data/test_fresh_process.py looks at, in a process that holds nothing else; prints JSON."""

import json
import re
import sys
from pathlib import Path

import h5py
import psutil
from torch.utils.data import DataLoader, Dataset

from es_medical.data import CachedSlices, SliceDataset
from es_medical.data.hdf5 import missing_filter
from es_medical.data.slices import collate


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


def peak_of_reading(path):
    """Peak memory so far in MiB, after two epochs of a file."""
    for _ in range(2):
        for batch in DataLoader(SliceDataset(path), 4, shuffle=True, collate_fn=collate):
            batch["measurement"].sum()
    return float(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) / 2**10


def growth_of_workers(path):
    """Bytes of a cached file, and by how much the own memory of each of two forked workers grew in two epochs."""
    on_device = CachedSlices(SliceDataset(path, "train"), "cpu")
    private = {}
    loader = DataLoader(Probe(on_device), batch_size=2, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    for _ in range(2):
        for batch in loader:
            private.setdefault(int(batch["pid"][0]), []).append(int(batch["private"][0]))
    size = sum(tensor.nbytes for tensor in on_device._tensors.values())
    return size, [max(seen) - seen[0] for seen in private.values()]


def filtered(path):
    """What the message about a missing filter is, and the last value."""
    data = h5py.File(path)["kspace"]
    return missing_filter(data), data[63]


if __name__ == "__main__":
    small, large, cached, compressed = sys.argv[1:]
    found = {"peaks": [peak_of_reading(path) for path in (small, large)]}
    found |= {"workers": growth_of_workers(cached), "filter": filtered(compressed) if compressed else None}
    print(json.dumps(found))
