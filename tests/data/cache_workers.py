"""Two forked workers read a cached slice file for two epochs; prints its bytes, and by how much the own memory of each grew."""

import json
import sys

import psutil
from torch.utils.data import DataLoader, Dataset

from es_medical.data import CachedSlices, SliceDataset


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


if __name__ == "__main__":
    on_device = CachedSlices(SliceDataset(sys.argv[1], "train"), "cpu")
    private: dict[int, list[int]] = {}
    loader = DataLoader(Probe(on_device), batch_size=2, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    for _ in range(2):
        for batch in loader:
            private.setdefault(int(batch["pid"][0]), []).append(int(batch["private"][0]))
    size = sum(tensor.nbytes for tensor in on_device._tensors.values())
    print(json.dumps([size, *(max(seen) - seen[0] for seen in private.values())]))
