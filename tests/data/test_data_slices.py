import os
import pickle
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

from es_medical.data import CachedSlices, SliceDataset, SliceHeader, SliceRecord, SliceWriter, file_digest, read_header, schema
from es_medical.data.atomic import whole_folder_or_not, whole_or_not
from es_medical.data.slices import collate

SIZE = (12, 16)


def make_header(**changes):
    mask = torch.arange(SIZE[1]) % 4 == 0
    return SliceHeader(**({"sigma": 0.05, "mask": mask, "acceleration": 4.0, "configuration": {"sigma": 0.05}} | changes))


def make_record(i, split="train", image=True):
    generator = torch.Generator().manual_seed(i)
    x, y = torch.randn(2, 2, *SIZE, generator=generator)
    return SliceRecord(y, x if image else None, f"id{i}", f"subject{i // 2}", split, 2.0 + i, -1.0, (0.5, 0.7), 1.5, i)


@pytest.fixture
def slice_file(tmp_path):
    path = tmp_path / "slices.h5"
    with SliceWriter(path, make_header(seed=7, source_digests={"ab": "cd"}), SIZE) as writer:
        for i in range(10):
            writer.append(make_record(i, "train" if i < 6 else "val" if i < 8 else "test"))
    return path


def test_what_is_written_is_read_back(slice_file):
    header = read_header(slice_file)
    assert (header.n, header.size, header.has_image, header.seed, header.modality) == (10, SIZE, True, 7, "MR")
    assert header.mask.dtype == torch.bool
    assert torch.equal(header.mask, make_header().mask)
    assert header.configuration == {"sigma": 0.05}
    assert header.source_digests == {"ab": "cd"}
    assert header.splits == {"train": 6, "val": 2, "test": 2}
    item, record = SliceDataset(slice_file, "val")[1], make_record(7)
    assert torch.equal(item["image"], record.image)
    assert torch.equal(item["measurement"], record.measurement)
    assert (item["id"], item["index"], float(item["scale"]), float(item["offset"])) == ("id7", 7, 9.0, -1.0)
    assert float(item["data_range"]) == 1.5
    assert item["sigma"].dtype == torch.float32


def test_schema_names_shapes_and_types_are_those_of_schema_1(slice_file):
    with h5py.File(slice_file) as file:
        assert file["image"].shape == file["measurement"].shape == (10, 2, *SIZE)
        assert file["image"].dtype == file["measurement"].dtype == file["spacing"].dtype == np.float32
        assert file["scale"].shape == file["spacing"].shape == (10, 2)
        assert file["scale"].dtype == np.float64
        assert file["mask"].dtype == np.uint8
        assert file["subject"].asstr()[3] == "subject1"
        assert set(file.attrs) >= {"schema", "modality", "tool_version", "configuration", "seed", "sigma", "source_digests"}
        assert file.attrs["schema"] == 1


def test_default_collate_batches_the_items(slice_file):
    batch = next(iter(DataLoader(SliceDataset(slice_file, "train"), batch_size=4)))
    assert batch["measurement"].shape == (4, 2, *SIZE)
    assert batch["sigma"].shape == batch["data_range"].shape == batch["scale"].shape == (4,)
    assert batch["id"] == ["id0", "id1", "id2", "id3"]
    assert batch["index"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_collate_is_the_default_one_without_the_copy(slice_file, workers):
    dataset, order = SliceDataset(slice_file), torch.randperm(len(SliceDataset(slice_file))).tolist()
    expected = list(DataLoader(dataset, batch_size=3, sampler=order))
    found = list(DataLoader(dataset, batch_size=3, sampler=order, num_workers=workers, collate_fn=collate))
    for a, b in zip(expected, found, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name], name
            assert getattr(value, "dtype", None) == getattr(b[name], "dtype", None)
    items = dataset.__getitems__([4, 2])
    assert collate(items)["measurement"].data_ptr() == items[0]["measurement"].data_ptr()


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])  # a new process takes seconds
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes_give_the_batches_of_the_main_process(slice_file, method, workers):
    dataset = SliceDataset(slice_file)
    both = ConcatDataset([dataset, CachedSlices(SliceDataset(slice_file), "cpu")])
    expected = list(DataLoader(both, batch_size=3))  # opens the handle that the workers inherit
    again = list(DataLoader(both, batch_size=3, num_workers=workers, multiprocessing_context=method))
    assert len(expected) == len(again) == 7
    for a, b in zip(expected, again, strict=True):
        assert a["id"] == b["id"]
        assert torch.equal(a["measurement"], b["measurement"])
        assert torch.equal(a["image"], b["image"])


def test_pickled_dataset_carries_no_open_handle(slice_file):
    dataset = SliceDataset(slice_file)
    first = dataset[0]
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[0]["image"], first["image"])
    assert dataset._file is not None


def test_without_image_the_ground_truth_is_never_read(slice_file, monkeypatch):
    read = []
    for name in ("__getitem__", "read_direct"):
        kept = getattr(h5py.Dataset, name)
        seen = lambda self, *a, kept=kept, **k: (read.append(self.name), kept(self, *a, **k))[1]  # noqa: E731
        monkeypatch.setattr(h5py.Dataset, name, seen)
    dataset = SliceDataset(slice_file, "train", with_image=False)
    items = list(DataLoader(dataset, batch_size=6))
    assert "image" not in items[0]
    assert "/measurement" in read
    assert "/image" not in read


def test_file_without_ground_truth_works_when_the_image_is_asked_for(tmp_path):
    path = tmp_path / "none.h5"
    with SliceWriter(path, make_header(), SIZE, with_image=False) as writer:
        writer.append(make_record(0, image=False))
    dataset = SliceDataset(path, "train")
    assert not dataset.with_image
    assert set(dataset[0]) == {"measurement", "sigma", "peak", "data_range", "scale", "offset", "id", "index"}


def test_limit_spreads_over_the_split(slice_file):
    assert SliceDataset(slice_file, "train", limit=3).ids == ["id0", "id2", "id4"]
    assert len(SliceDataset(slice_file, "train", limit=100)) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"split": "valid"}, "'valid'.*train, val, test"), ({"limit": 0}, "limit 0.*at least 1")],
)
def test_wrong_argument_names_the_right_ones(slice_file, arguments, message):
    with pytest.raises(ValueError, match=message):
        SliceDataset(slice_file, **arguments)


def test_empty_split_says_what_the_file_holds(tmp_path):
    path = tmp_path / "train_only.h5"
    with SliceWriter(path, make_header(), SIZE) as writer:
        writer.append(make_record(0))
    with pytest.raises(ValueError, match=r"no slice of split 'test'.*'train': 1"):
        SliceDataset(path, "test")


def test_other_files_are_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.h5"):
        read_header(tmp_path / "missing.h5")
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(ValueError, match=r"text\.h5 cannot be read as HDF5"):
        read_header(tmp_path / "text.h5")
    with h5py.File(tmp_path / "new.h5", "w") as file:
        file.attrs["schema"] = 2
    with pytest.raises(ValueError, match=r"no slice file of schema 1 \(its schema: 2\)"):
        read_header(tmp_path / "new.h5")


@pytest.fixture
def reads(monkeypatch):
    """Paths of the slice files that are opened."""
    opened, open_slices = [], schema.open_slices
    monkeypatch.setattr(schema, "open_slices", lambda path: (opened.append(path), open_slices(path))[1])
    return opened


def age(path, seconds):
    os.utime(path, ns=(time.time_ns() - int(seconds * 1e9),) * 2)


def test_header_of_a_settled_file_is_read_once_and_each_caller_has_its_own(slice_file, reads):
    age(slice_file, 60)
    first, again = read_header(slice_file), read_header(slice_file)
    assert len(reads) == 1
    assert (again.n, again.configuration) == (first.n, first.configuration)
    first.mask.fill_(False)
    assert torch.equal(again.mask, make_header().mask)
    assert torch.equal(read_header(slice_file).mask, make_header().mask)


@pytest.mark.parametrize("seconds", [0, -60, 50])  # the same time stamp just now and by a fast clock; another one
def test_header_of_a_file_that_changed_is_read_anew(slice_file, reads, seconds):
    age(slice_file, 60)
    read_header(slice_file)
    now = time.time_ns()
    for seed in (7, 8):
        with h5py.File(slice_file, "r+") as file:  # of the same size
            file.attrs["seed"] = seed
        os.utime(slice_file, ns=(now - int((seconds + seed * (seconds > 0)) * 1e9),) * 2)
        assert read_header(slice_file).seed == seed


def test_header_of_a_replaced_file_is_read_anew(slice_file, tmp_path):
    """With size and time of the old one, as some copies keep them."""
    with h5py.File(slice_file, "r+") as file:
        file.attrs["seed"] = 7
    age(slice_file, 60)
    read_header(slice_file)
    before = slice_file.stat()
    other = shutil.copy2(slice_file, tmp_path / "other.h5")
    with h5py.File(other, "r+") as file:
        file.attrs["seed"] = 8
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    Path(other).replace(slice_file)
    assert slice_file.stat().st_size == before.st_size
    assert read_header(slice_file).seed == 8


def test_exception_leaves_the_older_file_and_no_temporary_one(slice_file):
    before = file_digest(slice_file)

    def interrupted():
        with SliceWriter(slice_file, make_header(), SIZE) as writer:
            writer.append(make_record(0))
            raise KeyboardInterrupt

    pytest.raises(KeyboardInterrupt, interrupted)
    assert file_digest(slice_file) == before
    assert [path.name for path in slice_file.parent.iterdir()] == ["slices.h5"]


@pytest.mark.parametrize(("more", "cause"), [(0, "is damaged"), (70_000, "not what was written")])
def test_a_changed_character_of_the_operator_is_an_error(tmp_path, more, cause):
    """HDF5 keeps no checksum of long text: an angle of another value would be another operator, unseen."""
    path, known = tmp_path / "slices.h5", b'"angle": 0.05'
    with SliceWriter(path, replace(make_header(), operator={"angle": 0.05, "more": "x" * more}), SIZE) as writer:
        writer.append(make_record(0))
    content = path.read_bytes()
    assert content.count(known) == 1
    path.write_bytes(content.replace(known, b'"angle": 0.15'))
    with pytest.raises(ValueError, match=rf"slices\.h5.*{cause}"):
        read_header(path)


def test_a_changed_name_is_an_error(slice_file):
    content = slice_file.read_bytes()
    key = SliceDataset(slice_file, "train").ids[0].encode()
    slice_file.write_bytes(content.replace(key, key[:-1] + b"?"))
    with pytest.raises(ValueError, match=r"slices\.h5.*damaged"):
        SliceDataset(slice_file, "train")


def test_texts_of_any_length_are_read_as_they_were_written(tmp_path):
    path, names = tmp_path / "slices.h5", ["", "a", "Größe", "x" * 300]
    with SliceWriter(path, replace(make_header(), digest=""), SIZE) as writer:
        for i, name in enumerate(names):
            writer.append(make_record(i)._replace(subject=name, split="train"))
    with h5py.File(path) as file:
        assert file["subject"].asstr()[:].tolist() == names
    assert read_header(path).digest == ""


def test_full_disk_ends_the_writing_at_once_and_leaves_nothing(tmp_path):
    """The first slice that does not fit is an error: a preparation does not go on for hours (see test_whole_hdf5)."""
    before, made = resource.getrlimit(resource.RLIMIT_FSIZE), list[int]()

    def write():
        with SliceWriter(tmp_path / "a.h5", make_header(), SIZE) as writer:
            for i in range(100):
                made.append(i)
                writer.append(make_record(i))

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"a\.h5"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(made) < 100
    assert list(tmp_path.iterdir()) == []


def test_empty_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="an empty data set is an error"), SliceWriter(tmp_path / "a.h5", make_header(), SIZE):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "dev"}, "'dev'.*train, val, test"),
        ({"image": None}, "image missing"),
        ({"measurement": torch.zeros(2, 4, 4)}, r"\(2, 4, 4\), expected \(2, 12, 16\)"),
        ({"image": torch.zeros(2, *SIZE, dtype=torch.complex64)}, "complex64, expected real"),
    ],
)
def test_record_that_does_not_fit_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message), SliceWriter(tmp_path / "bad.h5", make_header(), SIZE) as writer:
        writer.append(make_record(0)._replace(**changes))


def test_same_slices_give_the_same_bytes(tmp_path):
    for name in ("a.h5", "b.h5"):
        with SliceWriter(tmp_path / name, make_header(), SIZE) as writer:
            writer.append(make_record(0))
    assert file_digest(tmp_path / "a.h5") == file_digest(tmp_path / "b.h5")


def killed_while_writing(path, folder=False):
    if os.fork() == 0:
        with (whole_folder_or_not if folder else whole_or_not)(path) as temporary:
            (temporary / "a" if folder else temporary).write_bytes(b"half a file")
            os.kill(os.getpid(), signal.SIGKILL)
    os.wait()


def test_leftovers_of_a_killed_run_are_removed_and_those_of_a_running_one_are_not(tmp_path):
    killed_while_writing(tmp_path / "a.h5")
    killed_while_writing(tmp_path / "folder", folder=True)
    (left,) = tmp_path.iterdir()  # the second run has removed that of the first
    running = tmp_path / left.name.replace(left.name.split("-")[1], str(os.getppid()))
    running.touch()
    with SliceWriter(tmp_path / "a.h5", make_header(), SIZE) as writer:
        writer.append(make_record(0))
    assert {path.name for path in tmp_path.iterdir()} == {"a.h5", running.name}


def test_two_writers_of_one_file_leave_it_whole(tmp_path):
    first, second = (SliceWriter(tmp_path / "a.h5", make_header(), SIZE) for _ in range(2))
    with first:
        first.append(make_record(0))
        with second:
            second.append(make_record(1))
            second.append(make_record(2))
        assert read_header(tmp_path / "a.h5").n == 2
    assert read_header(tmp_path / "a.h5").n == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_folder_of_a_process_killed_between_two_renames_is_put_back(tmp_path):
    old = tmp_path / ".old_series"
    old.mkdir()
    (old / "0001.dcm").write_bytes(b"older")
    with pytest.raises(OSError, match="full"), whole_folder_or_not(tmp_path / "series"):
        raise OSError("full")
    assert (tmp_path / "series" / "0001.dcm").read_bytes() == b"older"
