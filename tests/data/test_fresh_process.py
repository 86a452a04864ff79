"""What depends on all that a process holds: memory of reading and of workers, and filters that are not loaded yet.

All in one process of its own, whose start takes seconds: a long test session holds gigabytes, also those that a worker forked
from it writes to.
"""

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from es_medical.data import SliceHeader, SliceRecord, SliceWriter

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="peak memory is read in Linux's /proc")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small file, one 16 times as large, one to cache, and one compressed by a filter of hdf5plugin ("" without it)."""
    folder = tmp_path_factory.mktemp("fresh")
    for name, n, coils, side in (("small", 4, 4, 96), ("large", 64, 4, 96), ("cached", 50, 0, 128)):
        header = SliceHeader(0.1, torch.ones(side, dtype=torch.bool))
        with SliceWriter(folder / name, header, (side, side), not coils, coils) as writer:
            y = torch.randn(2, *([coils] if coils else []), side, side)
            for i in range(n):
                writer.append(SliceRecord(y, None if coils else y, f"id{i}", f"s{i}", "train", maps=y if coils else None))
    if util.find_spec("hdf5plugin") is None:
        return [folder / "small", folder / "large", folder / "cached", ""]
    import hdf5plugin

    with h5py.File(folder / "compressed", "w") as file:
        file.create_dataset("kspace", data=np.arange(64.0), compression=hdf5plugin.Zstd())
    return [folder / name for name in ("small", "large", "cached", "compressed")]


@pytest.fixture(scope="module")
def found(files):
    command = [sys.executable, str(Path(__file__).with_name("fresh_process.py")), *map(str, files)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "100000"}  # what is freed goes back to the system at once
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=env)
    return json.loads(run.stdout.splitlines()[-1])


def test_memory_of_reading_does_not_grow_with_the_file(files, found):
    small, large = (path.stat().st_size / 2**20 for path in files[:2])
    first, second = found["peaks"]
    assert large > small + 32
    assert second - first < (large - small) / 2


def test_two_workers_and_two_epochs_do_not_copy_the_cache(found):
    size, growth = found["workers"]
    assert len(growth) == 2
    assert size > 10 * 2**20
    assert max(growth) < size / 2


def test_filters_of_hdf5plugin_are_used_where_it_is_installed(files, found):
    if not files[3]:
        pytest.skip("the package hdf5plugin (extra `hdf5`) is not installed")
    assert found["filter"] == ["", 63.0]
