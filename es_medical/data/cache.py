"""Hold a split as tensors on the device, loaded once, so that a training step neither reads nor copies to the device."""

from __future__ import annotations

import logging
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from es_medical.data.slices import SliceDataset

logger = logging.getLogger(__name__)


def memory_estimate(dataset: SliceDataset) -> int:
    """Bytes of memory for the measurements, maps and images of a data set."""
    return len(dataset) * sum(value.nbytes for value in dataset[0].values() if isinstance(value, Tensor) and value.ndim)


def free_memory(device: torch.device) -> int:
    """Free bytes on a device: of the GPU for CUDA, of the machine otherwise."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


SHARE = {"cuda": 0.25, "cpu": 0.5}
"""Largest share of the free memory of a device that `cache_place` takes; the network's activations need the rest of a GPU."""


def cache_place(dataset: SliceDataset, device: torch.device | str, processes: int = 1) -> torch.device | None:
    """Choose where to hold a data set, the device of the training, main memory or nowhere, and log it with the reason.

    Args:
        dataset: the slices.
        device: device of the training.
        processes: processes on this machine, each of which holds the whole data set.
    """
    needed, full = memory_estimate(dataset), []
    size = f"{needed / 2**30:.3g} GiB" if needed >= 2**30 else f"{needed / 2**20:.3g} MiB"
    for place in dict.fromkeys((torch.device(device), torch.device("cpu"))):
        free, share = free_memory(place), SHARE.get(place.type, 0.0) / (1 if place.type == "cuda" else processes)
        limit = f"{share:.0%} of the {free / 2**30:.3g} GiB free on {place}"
        if needed <= share * free:
            logger.info("cache_device auto: %s, as the slices take %s, at most %s", place, size, limit)
            return place
        full.append(limit)
    logger.info("cache_device auto: none, slices are read while training: %s is more than %s", size, " and ".join(full))
    return None


class CachedSlices(Dataset[dict[str, Any]]):
    """The items of a `SliceDataset`, held as one tensor per key on a device.

    Worker processes do not copy it: forked ones share the pages, and spawned ones map torch's shared memory.
    On a GPU it is read in the main process only.

    Args:
        dataset: the slices to hold.
        device: where to hold them.

    Raises:
        MemoryError: the estimate exceeds the free memory.
        ValueError: there is no kind of device of this name.
    """

    def __init__(self, dataset: SliceDataset, device: torch.device | str) -> None:
        try:
            self.device = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"cache_device must be cpu, cuda, auto or null, got {str(device)!r}") from error
        self.header = dataset.header
        self.path = dataset.path
        self.ids = dataset.ids
        self._reserve(dataset)
        self._rows = torch.from_numpy(dataset.rows)
        self._tensors = self._load(dataset)

    def _reserve(self, dataset: SliceDataset) -> None:
        needed, free = memory_estimate(dataset), free_memory(self.device)
        mib = 2**20
        logger.info("caching %d slices on %s: %.1f MiB of %.1f MiB free", len(dataset), self.device, needed / mib, free / mib)
        if needed > free:
            raise MemoryError(
                f"caching {len(dataset)} slices on {self.device} takes {needed / mib:.1f} MiB, {free / mib:.1f} MiB "
                "are free: leave the data set on disk, or limit the number of slices"
            )

    def _load(self, dataset: SliceDataset) -> dict[str, Tensor]:
        first, n = dataset[0], len(dataset)
        tensors = {
            name: torch.empty((n, *value.shape), dtype=value.dtype, device=self.device)
            for name, value in first.items()
            if isinstance(value, Tensor)
        }
        for i in range(n):
            item = dataset[i]
            for name, tensor in tensors.items():
                tensor[i] = item[name]
        return tensors

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.device.type == "cuda" and get_worker_info() is not None:
            raise RuntimeError(f"the data set is cached on {self.device}: use num_workers=0, there is nothing to read")
        item: dict[str, Any] = {name: tensor[index] for name, tensor in self._tensors.items()}
        return item | {"id": self.ids[index], "index": int(self._rows[index])}
