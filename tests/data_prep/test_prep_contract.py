"""What every preparation command promises: the table of commands times a list of properties."""

import functools
import os
from importlib import util

import numpy as np
import pytest
from prep_commands import COMMANDS, DRY, EACH, OF_FILES, Tried
from typer.main import get_command

from data_prep.cli import app
from data_prep.demo import brain, chest, digits, photographs
from data_prep.images.options import MNISTOptions
from data_prep.run.options import known_options
from es_medical.data import SliceWriter, file_digest, read_header

ALL_SLICES = brain.axial_slices
FILES_OF_EACH = [name for name in EACH if name in OF_FILES]


@pytest.fixture
def tried(request, tmp_path, prep, make_volume, monkeypatch, kept):
    """The command that a test is parametrised by; demos are made of less than they come with."""
    command = COMMANDS[request.param]
    if util.find_spec(command.package) is None:
        pytest.skip(f"needs {command.package}")
    monkeypatch.setattr(brain, "axial_slices", few_slices)
    monkeypatch.setattr(chest, "PATIENTS", 4)
    monkeypatch.setattr(chest, "SLICES", 3)
    monkeypatch.setattr(photographs, "SCALES", dict.fromkeys(photographs.SCALES, (2,)))
    pixels = np.random.default_rng(0).integers(0, 256, (60, *digits.SIZE), np.uint8)
    wheel = tmp_path / "wheel.csv"
    wheel.touch()
    monkeypatch.setattr(digits, "shipped", lambda *_: wheel)
    monkeypatch.setattr(digits, "read_digits", lambda _: digits.Labelled(pixels, np.arange(60, dtype=np.uint8) % 10))
    return Tried(command, tmp_path, prep, make_volume, kept(request.param))


@functools.cache
def few_slices(path, size):
    return [found[::3] for found in ALL_SLICES(path, size)]


def of(names):
    return pytest.mark.parametrize("tried", names, indirect=True)


@of(COMMANDS)
def test_second_run_does_nothing_and_a_changed_option_makes_it_anew(tried):
    last = tried.first()
    before = tried.out.stat().st_mtime_ns, file_digest(tried.out), tried.manifest()
    assert read_header(tried.out).n == tried.command.n
    assert ("licence" in read_header(tried.out).configuration) == (tried.command.fill is None)  # ours are known
    again = tried.run()
    assert "up to date: same input, same configuration" in again.splitlines()
    assert again.splitlines()[-1] == last
    assert (tried.out.stat().st_mtime_ns, file_digest(tried.out), tried.manifest()) == before
    options, said = tried.command.change
    assert f"made anew: {said}" in tried.run(*options)
    assert file_digest(tried.out) != before[1]


def test_licence_that_is_given_is_kept_by_every_command_that_reads_images():
    commands = {command.words for command in COMMANDS.values() if command.fill}
    options = {name: {one.name for one in get_command(app).commands[name].params} for name in commands}
    assert {name for name in commands if "licence" not in options[name]} == set()


@of(["mnist"])
def test_licence_is_in_file_and_manifest_and_not_that_of_a_scan_made_alike(tried):
    tried.run("--licence", "CC BY-SA 3.0")
    configuration = read_header(tried.out).configuration
    assert configuration["licence"] == tried.manifest()["configuration"]["licence"] == "CC BY-SA 3.0"
    assert known_options(MNISTOptions, {"configuration": configuration}).keys() == configuration.keys() - {
        *("command", "recipe", "licence")
    }


@of([name for name, command in COMMANDS.items() if command.image])
def test_without_image_there_is_no_ground_truth_and_the_same_measurement(tried):
    tried.first()
    whole = tried.columns()
    tried.run("--without-image")
    columns = tried.columns()
    assert "image" in whole
    assert "image" not in columns
    assert np.isnan(columns["data_range"]).all()
    assert (columns["peak"] == 1).all()
    np.testing.assert_array_equal(columns["measurement"], whole["measurement"])
    assert not read_header(tried.out).has_image


@of(DRY)
def test_dry_run_writes_nothing(tried):
    assert tried.command.preview in tried.run("--dry-run")
    assert not tried.out.parent.exists()
    if tried.command.spoil:
        tried.command.spoil(tried.source, tried.make_volume)
        tried.run("--dry-run", code=1)


@of(EACH)
def test_interrupted_run_leaves_nothing_and_an_older_file_as_it_was(tried, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SliceWriter, "append", interrupt)
        tried.run(code=130)
        assert tried.written() == []
    tried.first()
    before = tried.written(), file_digest(tried.out), tried.manifest()
    monkeypatch.setattr(SliceWriter, "append", interrupt)
    tried.run(*tried.command.change[0], code=130)
    assert (tried.written(), file_digest(tried.out), tried.manifest()) == before


@of(OF_FILES)
def test_bad_files_are_named_again_and_again_and_the_others_go_on(tried):
    causes = tried.command.spoil(tried.source, tried.make_volume)
    (tried.source / "gone.h5").symlink_to(tried.source / "nowhere")
    gone = {} if tried.command.words == "div2k" else {"gone.h5": "broken link"}  # no suffix of an image
    for _ in range(2):
        lines = tried.run(code=1).splitlines()
        for name, cause in (causes | gone).items():
            assert any(name in line and cause in line and "failed" in line for line in lines), (name, lines)
        assert read_header(tried.out).n == tried.command.n
    assert "up to date: same input, same configuration" in lines
    statuses = [one["status"] for one in tried.manifest()["sources"]]
    assert statuses.count("failed") == len(causes | gone)


@of(FILES_OF_EACH)
def test_new_broken_link_and_new_file_are_told_by_a_run_that_would_be_up_to_date(tried):
    tried.first()
    (tried.source / "gone.png").symlink_to(tried.source / "nowhere")
    (tried.source / "gone.h5").symlink_to(tried.source / "nowhere")
    assert "broken link" in tried.run(code=1)


@of(FILES_OF_EACH)
def test_stray_files_are_listed_and_ignored(tried):
    strays = ".DS_Store", "notes.txt", "._SECRET0.h5.part"
    for name in strays:
        (tried.source / name).write_bytes(b"\0\5")
    output = tried.run()
    assert f"skipped {len(strays)} · failed 0" in output
    assert all(any(name in line and "skipped" in line for line in output.splitlines()) for name in strays)


@of(FILES_OF_EACH)
def test_nothing_usable_is_an_error_that_leaves_an_older_file(tried):
    tried.first()
    before = tried.written(), file_digest(tried.out)
    for path in sorted(tried.source.rglob("*.*")):
        path.write_text("<html>")
    output = tried.run(code=1)
    assert "error: no " in output
    assert (tried.written(), file_digest(tried.out)) == before
    empty, gone = tried.source / "empty", tried.source / "gone"
    empty.mkdir()
    assert f"below {empty}" in tried.run(source=empty, code=1)
    assert f"no file or folder {gone}" in tried.run(source=gone, code=1)


@of(COMMANDS)
def test_no_identifier_name_path_or_salt_is_stored(tried):
    salted = bool(tried.command.preview)
    tried.run("--salt", "SECRETSALT") if salted else tried.first()
    stored = b"".join(path.read_bytes() for path in tried.out.parent.iterdir())
    assert tried.written() == ["a.h5", "a.manifest.json"]
    for word in (
        b"SECRET",
        os.fsencode(tried.out.parent.parent),
        os.fsencode(tried.kept),
        b"wheel",
        b"icbm",
        b"chelsea",
        b"Nobody",
    ):
        assert word not in stored
    if salted:
        ids, splits = set(tried.columns()["id"]), read_header(tried.out).splits
        assert "up to date" not in tried.run("--salt", "other")
        assert ids.isdisjoint(tried.columns()["id"])
        assert read_header(tried.out).splits.keys() == splits.keys()


@of(EACH)
def test_only_overwrite_replaces_a_file_that_is_not_ours_and_makes_ours_anew(tried):
    tried.first()
    before = tried.out.stat().st_ino, file_digest(tried.out), tried.manifest()
    assert "made anew: other input, salt, or asked for" in tried.run("--overwrite")
    assert tried.out.stat().st_ino != before[0]
    assert (file_digest(tried.out), tried.manifest()) == before[1:]
    tried.out.write_text("thesis")
    assert "exists and is no slice file of es_medical: give another name, or --overwrite" in tried.run(code=1)
    assert tried.out.read_text() == "thesis"
    tried.run("--overwrite")
    assert file_digest(tried.out) == before[1]


@of(EACH)
def test_folder_gets_a_file_of_the_commands_name_and_another_suffix_is_refused(tried):
    assert "expected a name ending in .h5 or .hdf5, or a folder" in tried.run(out=tried.out.with_suffix(".nii"), code=1)
    assert tried.written() == []
    tried.first(tried.out.with_name(tried.command.default))
    assert "up to date" in tried.run(out=tried.out.parent)
    assert len(tried.written()) == 2


@of(FILES_OF_EACH)
def test_output_among_the_input_is_no_input_and_never_replaces_it(tried):
    inside = tried.source / "a.h5"
    tried.first(inside)
    assert "up to date" in tried.run(out=inside)
    assert read_header(inside).n == tried.command.n
    one = next(path for path in sorted(tried.source.rglob("*.*")) if path.suffix != ".json" and path != inside)
    renamed = one.rename(one.with_name("own.h5"))
    before = renamed.read_bytes()
    assert "is the source itself" in tried.run("--overwrite", source=renamed, out=renamed, code=1)
    assert renamed.read_bytes() == before


@of(OF_FILES)
def test_one_file_is_enough(tried):
    files = sorted(path for path in tried.source.rglob("*.*"))
    tried.run(source=files[0])
    assert read_header(tried.out).splits["train"] >= 1
    (entry,) = tried.manifest()["sources"]
    assert (entry["status"], entry["slices"]) == ("done", read_header(tried.out).n)


@of(OF_FILES)
def test_neither_names_nor_order_nor_workers_nor_copies_change_the_slices(tried, tmp_path):
    many = ("--workers", 3) if tried.command.workers else ()
    tried.first()
    files = sorted((path for path in tried.source.rglob("*.*")), reverse=True)
    for k, path in enumerate(files):
        target = tmp_path / "moved" / str(k % 2) / f"{k}{path.suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    copy = tmp_path / "moved" / f"copy{path.suffix}"
    copy.write_bytes(target.read_bytes())
    other = tmp_path / "other.h5"
    tried.run(*many, source=tmp_path / "moved", out=other)
    first, second = tried.columns(), tried.columns(other)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
