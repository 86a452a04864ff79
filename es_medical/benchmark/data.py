"""Slices a second that a training can read: from the file by 0, 2 and 4 workers, and from memory, next to reading the bytes."""

import os
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import h5py
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from es_medical.benchmark.timing import Job, Ratio, alternate, medians, ratio
from es_medical.cores import usable_cores
from es_medical.data import CachedSlices, SliceDataset, SliceHeader, SliceRecord, SliceWriter
from es_medical.data.slices import collate

ORDERS = {"in order": SequentialSampler, "shuffled": RandomSampler}
BYTES = "bytes"


class DataResult(NamedTuple):
    """Speeds of whole epochs, each job in turn.

    Attributes:
        slices: number of slices in an epoch.
        mebibytes: of a slice, as it is read in training (without ground truth).
        batch: number of slices in a batch.
        device: where batches are needed.
        cores: cores that the process may use.
        per_second: median slices a second, by job, "SOURCE, ORDER".
        to_bytes: speed / speed of reading the bytes in that order, in neighbouring rounds.
    """

    slices: int
    mebibytes: float
    batch: int
    device: str
    cores: int
    per_second: dict[str, float]
    to_bytes: dict[str, Ratio]


def run(options: Namespace) -> Iterator[DataResult]:
    """Run the benchmark with the options of the command line."""
    with TemporaryDirectory() as folder:
        path = options.file or make_slices(Path(folder) / "slices.h5", options.slices, options.size, options.coils)
        yield benchmark_data(path, options.batch, options.workers, options.repeats, torch.device(options.device))


def make_slices(path: Path, n: int, size: int, coils: int) -> Path:
    """Write a slice file of noise as k-space and maps."""
    mask = torch.arange(size) % 4 == 0
    random = torch.Generator().manual_seed(0)
    with SliceWriter(path, SliceHeader(sigma=0.1, mask=mask), (size, size), False, coils) as writer:
        noise = torch.randn(writer.shapes.measurement, generator=random)
        for i in range(n):
            writer.append(SliceRecord(noise, None, f"slice{i}", f"subject{i}", "train", maps=noise if coils else None))
    return path


def benchmark_data(
    path: Path, batch: int = 4, workers: Sequence[int] = (0, 2, 4), repeats: int = 5, device: torch.device | str = "cpu"
) -> DataResult:
    """Time epochs of the training slices of a file in turn, with the file in the page cache.

    On a GPU the copy of each batch to it is counted, also from pinned memory, and slices are held on the GPU too.

    Args:
        path: slice file.
        batch: number of slices in a batch.
        workers: numbers of worker processes.
        repeats: number of timed rounds.
        device: where batches are needed.
    """
    device, dataset = torch.device(device), SliceDataset(path, "train", with_image=False)
    jobs: dict[str, Job] = {}
    with ExitStack() as opened, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores is what is asked for
        places = _places(path, dataset)
        file = opened.enter_context(path.open("rb", buffering=0))
        for order, sampler in ORDERS.items():
            jobs[f"{BYTES}, {order}"] = partial(_read_bytes, file.fileno(), places, sampler)
            for source, loader in _loaders(dataset, batch, workers, device, sampler).items():
                opened.callback(_end, loader)
                jobs[f"{source}, {order}"] = partial(_epoch, loader, device)
        times = alternate(jobs, repeats, 1, torch.device("cpu"))  # an epoch ends when its last batch is there
    size = sum(n for _, n in places[0]) / 2**20
    per_second = {job: 1e3 * len(dataset) / value for job, value in medians(times).items()}
    to_bytes = {job: ratio(times, f"{BYTES}, {job.split(', ')[1]}", job) for job in jobs if not job.startswith(BYTES)}
    return DataResult(len(dataset), size, batch, str(device), usable_cores(), per_second, to_bytes)


def _loaders(
    dataset: SliceDataset,
    batch: int,
    workers: Sequence[int],
    device: torch.device,
    sampler: Any,  # noqa: ANN401 - a class
) -> dict[str, DataLoader]:
    """Make the loader of each source of slices."""
    on_gpu = device.type == "cuda"
    sources: dict[str, tuple[Any, int, bool]] = {f"{n} workers": (dataset, n, False) for n in workers}
    sources |= {f"{n} workers pinned": (dataset, n, True) for n in workers if on_gpu}
    sources["cached on cpu"] = (CachedSlices(dataset, "cpu"), 0, False)
    if on_gpu:
        sources["cached on cuda"] = (CachedSlices(dataset, device), 0, False)
    return {
        name: DataLoader(
            one, batch, sampler=sampler(one), num_workers=n, persistent_workers=n > 0, collate_fn=collate, pin_memory=pinned
        )
        for name, (one, n, pinned) in sources.items()
    }


def _epoch(loader: DataLoader, device: torch.device) -> None:
    """Bring every batch to the device, as `Batch.of` does."""
    for batch in loader:
        for value in batch.values():
            if isinstance(value, Tensor):
                value.to(device, non_blocking=True)
    if device.type == "cuda":
        torch.cuda.synchronize()


def _places(path: Path, dataset: SliceDataset) -> list[list[tuple[int, int]]]:
    """Return where the pixels of each slice lie in the file: (offset, bytes) of each part."""
    with h5py.File(path) as file:
        parts = [file[name] for name in ("measurement", "maps") if name in file]
        if any(one.is_virtual for one in parts):
            raise ValueError(f"the slices of {path} lie in its parts: give one of them, or a file of one piece")
        return [[(one.id.get_chunk_info(int(row)).byte_offset, one[int(row)].nbytes) for one in parts] for row in dataset.rows]


def _read_bytes(file: int, places: list[list[tuple[int, int]]], sampler: Any) -> None:  # noqa: ANN401
    """Read the same bytes, slice by slice, into one buffer."""
    buffer = memoryview(bytearray(max(n for parts in places for _, n in parts)))
    for i in sampler(places):
        for offset, n in places[i]:
            os.preadv(file, [buffer[:n]], offset)


def _end(loader: DataLoader) -> None:
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()


def table(result: DataResult) -> str:
    """Return a result as a text table."""
    lines = [
        f"{result.slices} slices of {result.mebibytes:.3g} MiB, batch {result.batch}, to {result.device}, {result.cores} cores",
        f"{'':28s} {'slices/s':>9s} {'MiB/s':>9s}   speed / reading the bytes",
    ]
    for job, speed in result.per_second.items():
        lines.append(f"{job:28s} {speed:9.0f} {speed * result.mebibytes:9.0f}   {result.to_bytes.get(job, '')}")
    return "\n".join(lines)
