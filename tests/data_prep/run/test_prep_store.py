"""Preparation from object stores: the bytes of the same files on a disk, and one bad object is one failed file."""

import errno
import json
import logging
import re
import shutil
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from unittest.mock import Mock

import fsspec
import pytest
from prep_commands import COMMANDS, Tried

from data_prep.run import store
from data_prep.run.manifest import PrepError
from data_prep.run.options import holds
from data_prep.run.store import Copies, Stored, amount, copies_kept, place
from es_medical.data import file_digest, read_header

MEMORY = fsspec.get_filesystem_class("memory")  # fsspec has an object for each thread: patches belong to the class
PASSWORD = "SECRETPASSWORD"


@pytest.fixture
def tried(tmp_path, prep, make_volume, monkeypatch, kept):
    """Recorded volumes, one of them cut, prepared from the disk; scratch folders lie in `tmp_path`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    found, made = Tried(COMMANDS["recorded"], tmp_path, prep, make_volume, kept("recorded")), kept("store")
    (found.source / "cut.h5").write_bytes(next(found.source.rglob("SECRET0.h5")).read_bytes()[:3000])
    (found.source / "readme.txt").write_text("no volume")
    if not made.exists():
        found.run(code=1)
        shutil.copytree(found.out.parent, made)
    shutil.copytree(made, found.out.parent, dirs_exist_ok=True)
    found.other = found.out.with_name("b.h5")
    found.left = lambda: [*(tmp_path / "scratch").glob(".*")]
    return found


@pytest.fixture
def memory(tried):
    """The same files in fsspec's store in memory."""
    fs = MEMORY()
    fs.put(f"{tried.source}/", "/archive", recursive=True)
    yield fs
    fs.rm("/archive", recursive=True)


@pytest.fixture(scope="module")
def server():
    """Endpoint of an S3 server on this machine."""
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def bucket(tried, server, monkeypatch):
    """Address of the same files in a bucket."""
    for name, value in {"ENDPOINT_URL": server, "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": PASSWORD}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    fs.mkdir("bucket")
    fs.put(f"{tried.source}/", "bucket/archive", recursive=True)
    yield "s3://bucket/archive"
    fs.rm("bucket", recursive=True)


def same_as_on_disk(tried):
    files = [(path, path.with_suffix(".manifest.json")) for path in (tried.out, tried.other)]
    return len({tuple(map(file_digest, pair)) for pair in files}) == 1 and not tried.left()


def counted(monkeypatch):
    """The names of the objects that are copied from now on."""
    copied, get_file = [], MEMORY.get_file
    monkeypatch.setattr(MEMORY, "get_file", lambda fs, name, path: copied.append(name) or get_file(fs, name, path))
    return copied


def test_s3_gives_the_bytes_of_the_disk_in_threads_and_processes(tried, bucket):
    said = tried.run(out=tried.other, source=bucket, code=1)
    assert "s3://bucket/archive: 5 objects" in said
    assert re.search(r"cut\.h5 *. failed *. truncated HDF5", said)
    assert same_as_on_disk(tried)
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0", silence_logs=50
    ) as local:
        said += tried.run("--scheduler", local.scheduler_address, "--overwrite", out=tried.other, source=bucket, code=1)
    assert same_as_on_disk(tried)
    assert "up to date" in tried.run(out=tried.other, source=bucket, code=1)
    kept = said + "".join(path.read_text() for path in tried.out.parent.glob("*.json"))
    assert PASSWORD not in kept
    assert "bucket" not in json.dumps(tried.manifest())


def test_what_is_absent_in_s3_is_named_and_another_version_is_told_apart(bucket):
    fs, name = fsspec.core.url_to_fs(f"{bucket}/readme.txt", use_listings_cache=False)
    before = store._state(fs, name)
    fs.pipe(name, b"xx volume")  # as many bytes
    assert store._state(fs, name) != before
    assert store._state(fs, name)["size"] == before["size"]
    for address in ("s3://bucket/none", "s3://nobucket/archive"):
        with pytest.raises(PrepError, match=rf"no object at or below {address}"):
            place(address)


def test_each_object_is_copied_once_where_there_is_room_else_twice(tried, memory, monkeypatch):
    copied = counted(monkeypatch)
    tried.run("--slices", "all", out=tried.other, source="memory://archive", code=1)
    assert sorted(copied) == sorted(name for name in memory.find("/archive") if name.endswith(".h5"))
    assert same_as_on_disk(tried)
    copied.clear()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    tried.run("--slices", "all", "--overwrite", out=tried.other, source="memory://archive", code=1)
    assert {copied.count(name) for name in copied if "SECRET" in name} <= {1, 2}
    assert len(copied) > 5
    assert same_as_on_disk(tried)


def test_one_object_is_read_as_one_file(tried, memory):
    path = next(tried.source.rglob("SECRET1.h5"))
    tried.run("--test", 0, "--overwrite", source=path)
    tried.run("--test", 0, out=tried.other, source=f"memory://archive/{path.relative_to(tried.source)}")
    assert same_as_on_disk(tried)


def test_object_that_changes_while_it_is_read_is_one_failed_file(tried, memory, monkeypatch):
    get_file = MEMORY.get_file

    def changing(fs, name, path):
        get_file(fs, name, path)
        if "SECRET2" in name:
            memory.pipe(name, bytes(memory.size(name)))  # as many bytes

    monkeypatch.setattr(MEMORY, "get_file", changing)
    said = tried.run(out=tried.other, source="memory://archive", code=1)
    assert re.search(r"SECRET2\.h5 *. failed *. it changed while it was read", said)
    assert read_header(tried.other).n == 9


@pytest.mark.parametrize("change", ["other bytes", "gone"])
def test_object_that_is_another_one_at_its_second_reading_fails_alone_and_is_tried_again(tried, memory, monkeypatch, change):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    name = next(name for name in memory.find("/archive") if name.endswith("SECRET2.h5"))
    whole, get_file, times = memory.cat(name), MEMORY.get_file, []

    def changing(fs, one, path):
        times.append(one)
        if times.count(name) == 2:
            memory.pipe(name, memory.cat(name.replace("SECRET2", "SECRET1"))) if change == "other bytes" else memory.rm(name)
        get_file(fs, one, path)

    with monkeypatch.context() as patch:
        patch.setattr(MEMORY, "get_file", changing)
        said = tried.run("--workers", 1, out=tried.other, source="memory://archive", code=1)
    assert re.search(r"SECRET2\.h5 *. failed *. when its slices were made, its store no longer gave what was checked", said)
    assert read_header(tried.other).n == 9
    memory.pipe(name, whole)
    assert "up to date" not in tried.run(out=tried.other, source="memory://archive", code=1)
    assert same_as_on_disk(tried)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError("Forbidden: https://host/x?X-Amz-Signature=SECRETSIGNATURE"),
            "can't be read from its store (Per",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "there is no room for its copy: set TMPDIR to a larger disk"),
    ],
)
def test_object_that_cannot_be_copied_is_one_failed_file(tried, memory, monkeypatch, error, said):
    get_file = MEMORY.get_file

    def failing(fs, name, path):
        get_file(fs, name, path)
        if "SECRET2" in name:
            raise error

    monkeypatch.setattr(MEMORY, "get_file", failing)
    printed = tried.run(out=tried.other, source="memory://archive", code=1)
    assert re.search(rf"SECRET2\.h5 *. failed *. {re.escape(said)}", printed)
    assert "SECRETSIGNATURE" not in printed
    assert read_header(tried.other).n == 9
    assert not tried.left()


def test_addresses_that_cannot_be_read_are_errors_that_name_them(tried, memory, monkeypatch):
    with pytest.raises(PrepError, match="no object at or below memory://none"):
        place("memory://none")
    with pytest.raises(PrepError, match="expected protocol://PLACE; names and passwords come from the environment") as caught:
        place(f"s3://key:{PASSWORD}@bucket/archive")
    assert PASSWORD not in str(caught.value)
    with pytest.raises(PrepError, match="nostore://a"):
        place("nostore://a")
    with monkeypatch.context() as patch:
        patch.setattr(MEMORY, "find", Mock(side_effect=PermissionError("Access Denied")))
        with pytest.raises(PrepError, match="memory://archive: PermissionError: Access Denied"):
            place("memory://archive")
    monkeypatch.setattr("fsspec.core.url_to_fs", Mock(side_effect=ImportError("Install s3fs to access S3")))
    with pytest.raises(PrepError, match=r"s3://bucket needs a package: pip install 'es_medical\[s3\]'"):
        place("s3://bucket")
    with pytest.raises(PrepError) as caught:  # by a process of another machine
        store._fetched(Stored("s3://bucket/a.h5", "a.h5", 1), tried.other)
    assert (str(caught.value), "Install s3fs" in caught.value.detail) == ("can't be read from its store", True)


def test_web_server_gives_a_file_forbids_it_or_has_nothing_and_no_signature_is_shown():
    pytest.importorskip("aiohttp")

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(next((code for name, code in {"a.h5": 200, "secret.h5": 403}.items() if name in self.path), 404))
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD, log_message = do_GET, Mock()

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for name, said in (("secret.h5", "403"), ("none.h5", "404")):
            address = f"http://127.0.0.1:{server.server_port}/{name}"
            with pytest.raises(PrepError, match=rf"{address}.*{said}") as caught:
                place(f"{address}?X-Amz-Signature={PASSWORD}")
            assert PASSWORD not in str(caught.value)
        found = place(f"http://127.0.0.1:{server.server_port}/a.h5?X-Amz-Signature={PASSWORD}")
        assert PASSWORD not in str(found)
        assert [one.name for one in found.objects] == ["a.h5"]
        server.shutdown()


def test_only_fastmri_reads_addresses_and_nothing_is_written_to_one(tried, prep):
    assert "only fastmri reads from object stores" in prep("lidc", "s3://bucket/archive", tried.other, code=1).output
    assert "expected a place on a disk" in tried.run(out="s3://bucket/b.h5", code=1)


def test_file_address_is_the_file_itself(tried):
    assert place(f"file://{tried.source}") == tried.source


def test_sizes_decide_between_threads_and_processes(memory):
    archive = place("memory://archive")
    total = sum(one.size for one in archive.objects)
    assert (holds(archive, total), holds(archive, total + 1)) == (True, False)
    assert amount([Stored("https://host/a", "a", None)]) == "1 objects"
    assert holds(archive._replace(objects=(Stored("https://host/a", "a", None),)), 10**12)  # nobody knows


def test_copies_stay_within_their_room_but_for_those_in_use(tmp_path, memory, monkeypatch):
    objects = place("memory://archive").objects[:3]
    copies = Copies(tmp_path)
    copies.room = sum(one.size for one in objects[:2])

    def there():
        return len(list(tmp_path.glob("*.h5")))

    with copies.of(objects[0]) as first, copies.of(objects[1]):
        with copies.of(objects[2]):
            assert there() == 3
        assert file_digest(first.path) == first.digest
    with copies.of(objects[2]):
        assert there() <= 2


def test_copies_are_private_and_end_with_their_last_holder(tried, memory):
    with copies_kept() as outer:
        with copies_kept() as inner, inner.of(place("memory://archive").objects[0]) as copy:
            assert inner is outer
            assert outer.folder.stat().st_mode & 0o77 == 0
        assert copy.path.exists()
    assert not tried.left()
    assert store._Kept.holders == 0
