"""A full disk while an HDF5 file is written: an error that names the file, and nothing that stays open or behind."""

import errno
import gc
import resource
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from es_medical.data.whole_hdf5 import whole_hdf5


@pytest.fixture(scope="module", autouse=True)
def nothing_open():
    gc.collect()  # what tests before these left open


@contextmanager
def files_of_at_most(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(path, check_each=False):
    with whole_hdf5(path) as (file, check):
        for i in range(20):
            data = file.create_dataset(f"x{i}", (64, 64), "f4", chunks=(8, 64), fletcher32=True)
            data[...] = np.random.default_rng(i).normal(size=(64, 64))
            if check_each:
                check()


@pytest.mark.parametrize("kib", [0, 1, 3, 40, 200, 330])
@pytest.mark.parametrize("check_each", [False, True])
def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(tmp_path, kib, check_each):
    opened = h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
    with files_of_at_most(kib * 1024), pytest.raises(OSError, match=r"x\.h5") as raised:
        write(tmp_path / "x.h5", check_each)
    assert raised.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []
    assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == opened  # one left open ends the process at its exit


def test_the_file_is_as_it_was_written(tmp_path):
    write(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        for i in range(20):
            np.testing.assert_array_equal(file[f"x{i}"], np.random.default_rng(i).normal(size=(64, 64)).astype("f4"))


def test_a_flipped_bit_is_an_error_or_changes_no_number(tmp_path):
    """Also one in the lists of chunks and filters, which have checksums only in newer formats."""
    path, values, rng = tmp_path / "x.h5", np.arange(96, dtype="f4").reshape(12, 8), np.random.default_rng(0)
    with whole_hdf5(path) as (file, _):
        for name in "ab":
            file.create_dataset(name, data=values, maxshape=(None, 8), chunks=(1, 8), fletcher32=True)
    whole, found = path.read_bytes(), 0
    for place in rng.integers(len(whole), size=250):
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            with h5py.File(path) as file:
                read = [file[name][()] for name in "ab"]
        except Exception:
            found += 1
        else:
            assert all(np.array_equal(x, values) for x in read), place
    assert found > 50
