"""HDF5 files whose data lie elsewhere, are locked, or need a filter: never zeros, and never called damaged."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from es_medical.data import file_digest
from es_medical.data.hdf5 import links, missing_filter, why_closed
from es_medical.data.schema import open_slices

WRITER = "import h5py, sys; file = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.read()"


def virtual(path, *sources):
    """A virtual dataset of the slices of other files, one after the other."""
    shape = (1, 4, 4)
    layout = h5py.VirtualLayout((len(sources), 4, 4), "f4")
    for i, source in enumerate(sources):
        layout[i : i + 1] = h5py.VirtualSource(source, "kspace", shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("group/kspace", layout)
    return path


def plain(path, value=1.0):
    with h5py.File(path, "w") as file:
        file["kspace"] = np.full((1, 4, 4), value, np.float32)
    return path


def test_data_in_other_files_are_found_wherever_they_are(tmp_path):
    (tmp_path / "inside").mkdir()
    a, b, raw = plain(tmp_path / "a.h5"), plain(tmp_path / "inside" / "b.h5"), tmp_path / "raw.bin"
    raw.write_bytes(bytes(64))
    chain = virtual(tmp_path / "chain.h5", "a.h5", str(b), "gone.h5")
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file["g/linked"] = h5py.ExternalLink("chain.h5", "/group")
        file["own"] = np.zeros(3)
        file["again"] = h5py.SoftLink("/own")
        file["loop"] = file["g"]
        file.create_dataset("stored", (4, 4), "f4", external=[("raw.bin", 0, 64)])
    found = links(tmp_path / "all.h5")
    assert found.files == {path.resolve() for path in (chain, a, b, raw)}
    assert found.missing == ("gone.h5",)
    assert links(a) == (frozenset(), ())
    assert links(raw) == (frozenset(), ())


def test_series_of_source_files_is_found_by_its_pattern(tmp_path):
    for i in range(3):
        plain(tmp_path / f"part-{i}.h5")
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for name in ("part-%b.h5", "other-%b.h5"):
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            space = h5py.h5s.create_simple((0, 4, 4), (h5py.h5s.UNLIMITED, 4, 4))
            space.select_hyperslab((0, 0, 0), (h5py.h5s.UNLIMITED, 1, 1), block=(1, 4, 4))
            source = h5py.h5s.create_simple((1, 4, 4))
            properties.set_virtual(space, name.encode(), b"kspace", source)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.NATIVE_FLOAT, space, properties)
    assert {one.name for one in links(tmp_path / "all.h5").files} == {f"part-{i}.h5" for i in range(3)}
    assert links(tmp_path / "all.h5").missing == ("other-%b.h5",)


def test_virtual_dataset_on_itself_and_files_that_lead_to_each_other_have_an_end(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((1, 4, 4), np.float32)
        file["b"] = h5py.ExternalLink("b.h5", "/")
        layout = h5py.VirtualLayout((1, 4, 4), "f4")
        layout[:] = h5py.VirtualSource(file["x"])
        file.create_virtual_dataset("y", layout)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["a"] = h5py.ExternalLink("a.h5", "/")
    assert links(tmp_path / "a.h5") == (frozenset({(tmp_path / "b.h5").resolve()}), ())


# --- locks


@pytest.fixture
def writer(tmp_path):
    """A file that another program has open for writing."""
    path = plain(tmp_path / "busy.h5")
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield path
        process.stdin.close()


def test_locked_file_is_called_locked(writer):
    with pytest.raises(
        ValueError, match=r"busy.h5 cannot be read as HDF5 \(locked: another program .*HDF5_USE_FILE_LOCKING=FALSE"
    ):
        open_slices(writer)


@pytest.mark.parametrize("number", [37, 38, 95])  # ENOLCK, ENOSYS, EOPNOTSUPP
def test_file_system_without_locks_is_named(number):
    error = OSError(number, f"unable to lock file, errno = {number}, error message = '{os.strerror(number)}'")
    assert why_closed(error).startswith("on a file system without file locks: set HDF5_USE_FILE_LOCKING=FALSE")


def test_other_errors_say_nothing_of_locks(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"text")
    with pytest.raises(OSError, match="signature") as caught:
        h5py.File(tmp_path / "a.h5")
    assert why_closed(caught.value) == ""


# --- filters


def compressed_by(path, number):
    """A dataset of a chunk that only a filter of this number can read."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4,))
    properties.set_filter(number, h5py.h5z.FLAG_OPTIONAL, ())
    with h5py.File(path, "w") as file:
        data = h5py.h5d.create(file.id, b"kspace", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((4,)), properties)
        data.write_direct_chunk((0,), bytes(8))
    return path


@pytest.mark.parametrize(("number", "name"), [(32013, "ZFP"), (32765, "a filter")])
def test_missing_filter_is_named_with_the_way_out(tmp_path, monkeypatch, number, name):
    available = h5py.h5z.filter_avail
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: code != number and available(code))
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with h5py.File(compressed_by(tmp_path / "a.h5", number)) as file:
        assert missing_filter(file["kspace"]) == (
            f"is compressed by {name} ({number}), which is not installed: pip install hdf5plugin"
        )
    with h5py.File(plain(tmp_path / "b.h5")) as file:
        assert missing_filter(file["kspace"]) == ""


def test_digest_of_the_bytes_alone_is_that_of_before(tmp_path):
    from data_prep.run.folders import digest_or_nothing

    one = plain(tmp_path / "a.h5")
    assert digest_or_nothing(one) == file_digest(one)
    path = virtual(tmp_path / "all.h5", "a.h5")
    before = digest_or_nothing(path)
    assert before != file_digest(path)
    plain(one, 2.0)
    assert digest_or_nothing(path) != before
