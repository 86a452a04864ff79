"""Preparation by processes of dask: the same file, whatever was done before and whoever did it."""

import pickle
import re
import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import h5py
import pytest
import torch
from prep_commands import COMMANDS, Tried
from raw import phantom, seen_by_coils, to_kspace
from torch.utils.data import DataLoader

from data_prep.run import cluster, parts
from data_prep.run.manifest import PrepError
from data_prep.run.options import Engine, holds
from es_medical.data import SliceDataset, SliceWriter, file_digest, read_header

KILLED = ("key", SimpleNamespace(address="tcp://127.0.0.1:1"), 4)
dask, distributed = map(pytest.importorskip, ("dask", "distributed"))


@pytest.fixture(scope="module")
def scheduler():
    """Address of a scheduler with one worker: in this process, but behind a socket as any other."""
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0", silence_logs=50
    ) as local:
        yield local.scheduler_address


@pytest.fixture
def tried(request, tmp_path, prep, make_volume, scheduler, kept):
    """A command with its input, done in a thread (`out/a.h5`) and then by `run`, through the scheduler."""
    name = getattr(request, "param", "recorded")
    found = Tried(COMMANDS[name], tmp_path, prep, make_volume, kept(name))
    found.by_processes = lambda *more, **given: found.run("--scheduler", scheduler, *more, **given)
    return found


@pytest.fixture
def volumes(tried):
    """The recorded volumes, prepared in a thread, and where processes write."""
    tried.first()
    tried.other = tried.out.with_name("b.h5")
    return tried


def parts_of(out):
    return sorted(out.with_suffix(".parts").glob("[!.]*.h5"))


@pytest.mark.parametrize("tried", ["lidc all", "sinogram"], indirect=True)
def test_processes_write_the_same_bytes_as_threads_and_leave_nothing_else(tried):
    tried.first()
    before, manifest, there = file_digest(tried.out), tried.manifest(), tried.written()
    assert "dashboard" in tried.by_processes("--overwrite")
    assert (file_digest(tried.out), tried.manifest(), tried.written()) == (before, manifest, there)


@pytest.mark.parametrize("kind", ["ismrmrd", "twix"])
def test_scans_of_scanners_give_the_same_bytes_by_processes(tmp_path, prep, scheduler, request, kind):
    source, outs = tmp_path / "in", (tmp_path / "a.h5", tmp_path / "b.h5")
    source.mkdir()
    if kind == "ismrmrd":
        scans = pytest.importorskip("ismrmrd_scans")
        for i in range(2):
            k = to_kspace(seen_by_coils(phantom((2, 64, 32), i), 2))
            scans.write(source / f"{i}.h5", scans.readouts(k), scans.header((64, 32), recon=(32, 32)))
    else:
        pytest.importorskip("mapvbvd", reason="Siemens raw files need the extra `twix`")
        shutil.copy(request.getfixturevalue("shared_data") / "kspace" / "scanner" / "twixtools_gre.dat", source)
    options = (
        "--measurements",
        "real",
        "--coils",
        "multi",
        "--slices",
        "all",
        "--acceleration",
        2,
        "--center-fraction",
        0.3,
        "--virtual-coils",
        1,
    )
    for out, more in zip(outs, ((), ("--scheduler", scheduler)), strict=True):
        prep("fastmri", source, out, *options, *more)
    assert len({(file_digest(out), file_digest(out.with_suffix(".manifest.json"))) for out in outs}) == 1


def test_interrupted_run_goes_on_with_the_parts_that_are_there(volumes, monkeypatch):
    append, left = SliceWriter.append, iter(range(5))

    def interrupted(writer, record):
        if writer.path == volumes.other and next(left, None) is None:
            raise KeyboardInterrupt
        append(writer, record)

    with monkeypatch.context() as patch:
        patch.setattr(SliceWriter, "append", interrupted)
        said = volumes.by_processes(out=volumes.other, code=130)
    assert re.search(r"finished volumes are kept in .*b\.parts: the same command goes on", said)
    n = len(parts_of(volumes.other))
    assert n > 0
    said = re.search(r"resumed: (\d) of 4 volumes are done", volumes.by_processes(out=volumes.other))
    assert int(said[1]) >= n  # the worker may have ended one more
    assert file_digest(volumes.other) == file_digest(volumes.out)
    assert not volumes.other.with_suffix(".parts").exists()


def test_parts_that_a_killed_run_left_are_removed_by_the_next_one_and_nothing_else(volumes):
    def leave():
        folder.mkdir(exist_ok=True)
        for name in ("0123456789abcdef.0123456789abcdef.h5", ".made_5.h5", ".partial_host-1-2_.made_5.h5", "mine.h5"):
            (folder / name).write_bytes(b"x")

    folder = volumes.out.with_suffix(".parts")
    for how in (volumes.by_processes, lambda: volumes.run("--overwrite")):
        leave()
        how()
        assert [path.name for path in folder.iterdir()] == ["mine.h5"]
    (folder / "mine.h5").unlink()
    volumes.by_processes()
    assert not folder.exists()
    volumes.by_processes("--parts", "keep", "--overwrite")
    kept = parts_of(volumes.out)
    assert "up to date" in volumes.by_processes()
    assert parts_of(volumes.out) == kept != []


def test_part_is_made_anew_where_its_bytes_its_source_or_an_option_changed(volumes):
    volumes.by_processes("--parts", "keep", out=volumes.other)
    first = parts_of(volumes.other)
    stamps = {path.name: path.stat().st_mtime_ns for path in first}
    damaged = bytearray(first[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    first[0].write_bytes(damaged)
    with h5py.File(next(volumes.source.rglob("SECRET3.h5")), "r+") as file:
        file["kspace"][1] *= 2
    said = volumes.by_processes("--overwrite", out=volumes.other)
    assert "resumed: 3 of 4 volumes are done" in said
    volumes.run("--overwrite")
    assert file_digest(volumes.other) == file_digest(volumes.out)
    volumes.by_processes("--parts", "keep", "--overwrite", out=volumes.other)
    assert {path.name for path in parts_of(volumes.other)} & stamps.keys() != stamps.keys()
    assert "resumed" not in volumes.by_processes("--added-noise", 0.1, out=volumes.other)


def test_virtual_file_is_read_like_the_one_file_and_can_be_moved(volumes, tmp_path):
    volumes.by_processes("--parts", "keep", out=volumes.other)
    moved = tmp_path / "moved"
    shutil.copytree(volumes.out.parent, moved)
    shutil.rmtree(volumes.out.parent)
    one, other = SliceDataset(moved / "a.h5"), SliceDataset(moved / "b.h5")
    assert read_header(moved / "b.h5").digest == read_header(moved / "a.h5").digest
    for mine, theirs in zip(one, DataLoader(other, batch_size=None, num_workers=1), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(str(mine[name]) == str(theirs[name]) for name in mine.keys() - {"measurement", "image"})
        assert torch.equal(mine["measurement"], theirs["measurement"])
        assert torch.equal(mine["image"], theirs["image"])
    assert pickle.loads(pickle.dumps(other))[2]["id"] == one[2]["id"]
    link = tmp_path / "link.h5"  # as where data lie on another disk than the bundle
    link.symlink_to(moved / "b.h5")
    assert torch.equal(SliceDataset(link)[2]["measurement"], one[2]["measurement"])


def test_virtual_file_without_its_parts_is_an_error_and_never_fill_values(volumes):
    volumes.by_processes("--parts", "keep", out=volumes.other)
    opened = SliceDataset(volumes.other)
    whole = opened[0]["measurement"]
    last = parts_of(volumes.other)
    for path in last:
        with h5py.File(path) as file:
            if file["id"].asstr()[-1] == opened.ids[-1]:
                path.rename(path.with_suffix(".away"))  # while it is read: HDF5 gives fill values, and says nothing
    with pytest.raises(ValueError, match=r"b\.h5: measurement of row 11 lies in another file, which is missing or damaged"):
        opened[11]
    with pytest.raises(ValueError, match=r"1 of the 4 parts with its pixels are missing or changed: keep the folder b\.parts"):
        SliceDataset(volumes.other)
    assert "resumed: 3 of 4" in volumes.by_processes("--parts", "keep", "--overwrite", out=volumes.other)
    assert torch.equal(SliceDataset(volumes.other)[0]["measurement"], whole)


def test_part_with_the_bytes_of_another_one_is_an_error(volumes):
    volumes.by_processes("--parts", "keep", out=volumes.other)
    first, *others = parts_of(volumes.other)
    same = next(path for path in others if path.stat().st_size == first.stat().st_size)
    shutil.copyfile(same, first)
    slices = SliceDataset(volumes.other)
    with pytest.raises(ValueError, match=r"b\.h5.* data_prep"):
        [slices[k] for k in range(12)]


def test_volume_that_ends_its_process_again_and_again_is_one_failed_file(volumes, monkeypatch):
    def killing(plan, tasks, folder, key):
        if tasks[0].source.endswith("SECRET1.h5"):
            raise distributed.KilledWorker(*KILLED)
        return parts.part_of(plan, tasks, folder, key)

    monkeypatch.setattr(cluster, "part_of", killing)
    volumes.by_processes(out=volumes.other, code=1)
    manifest = Tried.manifest(SimpleNamespace(out=volumes.other))
    assert sorted(source["status"] for source in manifest["sources"]) == ["done"] * 3 + ["failed"]
    assert read_header(volumes.other).n == 9


def test_item_that_ends_its_process_in_a_first_pass_costs_itself_alone(scheduler, tmp_path):
    def squared(k):
        if k == 3:
            raise distributed.KilledWorker(*KILLED)
        return k * k

    with distributed.Client(scheduler) as client:
        mapped = cluster.Cluster(client, tmp_path, None, False).mapped
        assert list(mapped(squared, range(40), lambda k: -k)) == [-3 if k == 3 else k * k for k in range(40)]


def test_what_tasks_share_is_looked_at_once_for_their_keys():
    class Series:
        looks = 0

        def __dask_tokenize__(self):
            self.looks += 1
            return "series"

    series = Series()
    tokens = [tuple(cluster._tokens((series, k), known)) for known in [{}] for k in range(5)]
    assert (series.looks, len(set(tokens))) == (1, 5)
    assert tokens[3] == tuple(cluster._tokens((Series(), 3), {}))


def test_processes_are_asked_for_only_where_there_is_much_to_do(tmp_path):
    for k in range(3):
        (tmp_path / f"{k}").write_bytes(bytes(100))
    assert (holds(tmp_path, 300), holds(tmp_path, 301)) == (True, False)
    assert not Engine(workers=2).processes(tmp_path)
    assert Engine(workers=1, parts="gather").processes(tmp_path)


def test_scheduler_that_is_not_there_and_two_choices_of_processes_are_errors(tried, monkeypatch):
    monkeypatch.setattr(cluster, "WAIT", 0.2)
    assert "no scheduler at tcp://127.0.0.1:9" in tried.run("--scheduler", "tcp://127.0.0.1:9", code=1)
    assert "--workers and --scheduler: expected one of them" in tried.run("--scheduler", "x", "--workers", 2, code=1)


@pytest.mark.parametrize("back", [True, False])
def test_result_that_is_lost_with_its_process_is_made_again_and_not_waited_for_without_end(tmp_path, monkeypatch, back):
    monkeypatch.setattr(cluster, "LOOK", 0.1)
    monkeypatch.setattr(cluster, "PATIENCE", 20 if back else 0.3)
    monkeypatch.setattr(distributed.Future, "done", lambda _: True)  # as long as nobody knows that the process has ended
    soon = dask.config.set({"distributed.deploy.lost-worker-timeout": "0.1s"})
    alone = {"threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with soon, distributed.LocalCluster(n_workers=1, **alone) as local, distributed.Client(local) as client:
        future = client.submit(pow, 2, 3)
        distributed.wait([future])
        for worker in [*local.workers.values()]:
            local.sync(worker.close)
        if not back:
            local.worker_spec.clear()
        expected = nullcontext() if back else pytest.raises(PrepError, match="no process is left")
        with expected:
            assert cluster.Cluster(client, tmp_path, None, False)._result(future) == 8
