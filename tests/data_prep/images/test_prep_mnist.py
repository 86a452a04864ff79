import doctest
import gzip
import json
from collections import Counter

import pytest
import torch
from idx_bytes import images, put

from data_prep.images import idx_file, mnist
from es_medical.data import SliceDataset, read_header
from es_medical.physics.compressed_sensing import CompressedSensing

TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"


@pytest.fixture
def official(tmp_path):
    """Names of MNIST's own files, 40 and 10 images that all differ."""
    put(tmp_path / "in" / f"{TRAIN}.gz", images(40, seed=1))
    put(tmp_path / "in" / f"{TEST}.gz", images(10, seed=2))
    return tmp_path / "in"


def stored(path, split=None):
    """Grey values of the stored images, in a set."""
    data = SliceDataset(path, split)
    return {(data[i]["image"] * 255).round().to(torch.uint8).numpy().tobytes() for i in range(len(data))}


def bytes_of(pixels):
    return {one.tobytes() for one in pixels}


def sources(path):
    return json.loads(path.with_suffix(".manifest.json").read_text())["sources"]


def test_official_names_decide_train_and_test_and_the_first_ones_are_taken(tmp_path, prep, official):
    prep("mnist", official, tmp_path / "out", "--train", 30, "--test", 4, "--val", 5)
    out = tmp_path / "out" / "mnist.h5"
    header = read_header(out)
    assert header.splits == {"train": 25, "val": 5, "test": 4}
    assert (header.modality, header.size, header.channels) == ("IMAGE", (6, 5), 1)
    assert stored(out, "test") == bytes_of(images(10, seed=2)[:4])
    assert stored(out, "train") | stored(out, "val") == bytes_of(images(40, seed=1)[:30])


@pytest.mark.parametrize(("train", "n"), [("all", 40), (1000, 40), (7, 7)])
def test_all_or_more_than_there_are_takes_all(tmp_path, prep, official, train, n):
    result = prep("mnist", official, tmp_path / "a.h5", "--train", train, "--test", "all")
    splits = read_header(tmp_path / "a.h5").splits
    assert (splits["train"] + splits["val"], splits["test"]) == (n, 10)
    assert ("fewer than the 1000 asked for" in result.output) == (train == 1000)


def test_measurements_are_products_with_the_stored_matrix(tmp_path, prep, official):
    prep("mnist", official, tmp_path / "a.h5", "--ratio", 0.4, "--matrix-seed", 3)
    header, data = read_header(tmp_path / "a.h5"), SliceDataset(tmp_path / "a.h5", "train")
    assert header.matrix.shape == (12, 30)
    assert header.operator == {"kind": "compressed_sensing", "ratio": 0.4, "seed": 3}
    assert header.mask.tolist() == [True] * 12
    for item in (data[0], data[len(data) - 1]):
        torch.testing.assert_close(item["measurement"], header.matrix @ item["image"].flatten())
        assert 0 <= item["image"].min() <= item["image"].max() <= 1
    physics = CompressedSensing(header.matrix, header.size, header.mask)
    torch.testing.assert_close(physics.A(data[0]["image"][None])[0], data[0]["measurement"])


def test_matrix_depends_on_its_seed_alone(tmp_path, prep, official):
    knobs = {"a": (), "b": ("--seed", 5), "c": ("--seed", 5, "--matrix-seed", 0), "d": ("--matrix-seed", 5)}
    for name, knob in knobs.items():
        prep("mnist", official, tmp_path / f"{name}.h5", *knob)
    a, b, c, d = (read_header(tmp_path / f"{name}.h5").matrix for name in knobs)
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.allclose(a, b)


def test_noise_has_the_level_asked_for_and_depends_on_seed_and_id_alone(tmp_path, prep, official):
    for name, train in (("a", 40), ("b", 20)):
        prep("mnist", official, tmp_path / f"{name}.h5", "--sigma", 0.5, "--train", train, "--val", 0)
    header = read_header(tmp_path / "a.h5")
    assert header.sigma == 0.5
    items = {item["id"]: item for item in SliceDataset(tmp_path / "a.h5", "train")}
    noise = torch.stack([one["measurement"] - header.matrix @ one["image"].flatten() for one in items.values()])
    assert noise.std() == pytest.approx(0.5, rel=0.15)
    assert abs(torch.corrcoef(noise[:2])[0, 1]) < 0.99
    for item in SliceDataset(tmp_path / "b.h5", "train"):
        torch.testing.assert_close(item["measurement"], items[item["id"]]["measurement"])


def test_equal_images_never_stand_in_two_splits(tmp_path, prep):
    train, test = images(40, seed=1), images(10, seed=2)
    train[3], train[17] = test[0], train[4]  # one leaks, one is there twice
    test[9] = test[1]
    put(tmp_path / "in" / TRAIN, train)
    put(tmp_path / "in" / TEST, test)
    result = prep("mnist", tmp_path / "in", tmp_path / "a.h5", "--train", "all", "--test", "all")
    split_of = [stored(tmp_path / "a.h5", split) for split in ("train", "val", "test")]
    assert sum(map(len, split_of)) == len(set.union(*split_of)) == read_header(tmp_path / "a.h5").n == 47
    assert test[0].tobytes() in split_of[2]
    assert "2 images left out that equal another one" in result.output
    assert "1 images left out that equal another one" in result.output


def test_test_images_that_are_not_taken_do_not_thin_out_training(tmp_path, prep):
    train, test = images(40, seed=1), images(10, seed=2)
    train[3] = test[5]
    put(tmp_path / "in" / TRAIN, train)
    put(tmp_path / "in" / TEST, test)
    prep("mnist", tmp_path / "in", tmp_path / "a.h5", "--train", "all", "--test", 5, "--val", 0)
    assert read_header(tmp_path / "a.h5").splits["train"] == 40


def test_blank_images_are_left_out_and_counted(tmp_path, prep):
    train = images(40, seed=1)
    train[5], train[6] = 0, 255
    put(tmp_path / "in" / TRAIN, train)
    put(tmp_path / "in" / TEST, images(10, seed=2))
    result = prep("mnist", tmp_path / "in", tmp_path / "a.h5", "--test", "all")
    assert read_header(tmp_path / "a.h5").n == 48
    assert "2 blank images left out" in result.output
    assert "2 blank" in json.dumps(sources(tmp_path / "a.h5"))


def test_other_names_are_divided_by_the_seed(tmp_path, prep):
    put(tmp_path / "in" / "x" / "one.gz", images(40, seed=1))
    put(tmp_path / "in" / "two", images(20, seed=2))
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        prep("mnist", tmp_path / "in", tmp_path / f"{name}.h5", "--train", 40, "--test", 10, "--seed", seed, "--salt", "s")
        assert read_header(tmp_path / f"{name}.h5").splits == {"train": 38, "val": 2, "test": 10}
    a, b, c = (stored(tmp_path / f"{name}.h5", "test") for name in "abc")
    assert a == b != c
    assert stored(tmp_path / "a.h5") <= bytes_of(images(40, seed=1)) | bytes_of(images(20, seed=2))


def test_fewer_than_asked_for_of_other_names_keep_the_ratio(tmp_path, prep):
    put(tmp_path / "digits", images(60))
    prep("mnist", tmp_path / "digits", tmp_path / "a.h5", "--train", 200, "--test", 100)
    assert read_header(tmp_path / "a.h5").splits == {"train": 38, "val": 2, "test": 20}


@pytest.mark.parametrize(("own", "split"), [(TRAIN, "test"), (TEST, "train")])
def test_another_file_serves_what_mnist_leaves_open(tmp_path, prep, own, split):
    put(tmp_path / "in" / own, images(30, seed=1))
    put(tmp_path / "in" / "mine.gz", images(30, seed=2))
    prep("mnist", tmp_path / "in", tmp_path / "a.h5", "--train", 20, "--test", 5)
    assert stored(tmp_path / "a.h5", split) <= bytes_of(images(30, seed=2))
    other = "train" if split == "test" else "test"
    assert stored(tmp_path / "a.h5", other) <= bytes_of(images(30, seed=1)[:20])


def test_another_file_beside_both_of_mnist_is_skipped(tmp_path, prep, official):
    put(official / "mine.gz", images(30, seed=5))
    assert "both files of MNIST are there" in prep("mnist", official, tmp_path / "a.h5").output
    assert not stored(tmp_path / "a.h5") & bytes_of(images(30, seed=5))


def test_few_images_of_other_names_leave_one_for_test():
    assert mnist.pool_counts(60, 20_000, 100) == (59, 1)
    assert mnist.pool_counts(60, 20_000, 0) == (60, 0)


def test_one_of_mnists_files_alone_serves_both(tmp_path, prep):
    put(tmp_path / "in" / f"{TRAIN}.gz", images(40, seed=1))
    prep("mnist", tmp_path / "in" / f"{TRAIN}.gz", tmp_path / "a.h5", "--train", 30, "--test", 10)
    assert read_header(tmp_path / "a.h5").splits == {"train": 28, "val": 2, "test": 10}


@pytest.mark.parametrize("copy", [TRAIN, "kept/other.name"])
def test_same_file_packed_and_not_is_taken_once(tmp_path, prep, official, copy):
    put(official / copy, images(40, seed=1))
    result = prep("mnist", official, tmp_path / "a.h5")
    assert read_header(tmp_path / "a.h5").n == 50
    assert Counter(one["status"] for one in sources(tmp_path / "a.h5")) == {"done": 2, "skipped": 1}
    assert "same content as another file" in result.output


def test_second_run_does_nothing_for_the_same_content_packed_otherwise(tmp_path, prep, official):
    prep("mnist", official, tmp_path / "a.h5")
    before = (tmp_path / "a.h5").stat().st_mtime_ns
    (official / TEST).write_bytes(gzip.decompress((official / f"{TEST}.gz").read_bytes()))
    (official / f"{TEST}.gz").unlink()
    assert "up to date" in prep("mnist", official, tmp_path / "a.h5").output
    assert (tmp_path / "a.h5").stat().st_mtime_ns == before


@pytest.mark.parametrize("knob", [("--train", 3), ("--test", 3), ("--val", 3), ("--sigma", 1), ("--seed", 3), ("--salt", "s")])
def test_every_knob_makes_the_file_anew(tmp_path, prep, official, knob):
    prep("mnist", official, tmp_path / "a.h5")
    assert "up to date" not in prep("mnist", official, tmp_path / "a.h5", *knob).output


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: put(path / "notes.txt", b"hello")])
def test_no_files_says_what_was_expected_and_that_nothing_is_downloaded(tmp_path, prep, make):
    make(tmp_path / "in")
    result = prep("mnist", tmp_path / "in", tmp_path / "a.h5", code=1)
    for said in (f"{TRAIN}.gz", f"{TEST}.gz", "nothing is downloaded"):
        assert said in result.stderr
    assert not (tmp_path / "a.h5").exists()


def test_half_a_download_of_mnist_stops_and_leaves_an_older_file(tmp_path, prep, official):
    prep("mnist", official, tmp_path / "a.h5")
    before = (tmp_path / "a.h5").read_bytes()
    whole = (official / f"{TEST}.gz").read_bytes()
    (official / f"{TEST}.gz").write_bytes(whole[: len(whole) // 2])
    assert "cut off before its end" in prep("mnist", official, tmp_path / "a.h5", code=1).stderr
    assert (tmp_path / "a.h5").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "a.manifest.json", "in"]


def test_images_of_different_sizes_are_refused(tmp_path, prep):
    put(tmp_path / "in" / "one", images(9, (6, 5)))
    put(tmp_path / "in" / "two", images(9, (5, 6)))
    result = prep("mnist", tmp_path / "in", tmp_path / "a.h5", code=1)
    assert "one: 6 x 5, two: 5 x 6" in result.stderr.replace("two: 5 x 6, one: 6 x 5", "one: 6 x 5, two: 5 x 6")


def test_two_data_sets_with_the_names_of_mnist_are_refused(tmp_path, prep, official):
    put(official / "fashion" / TRAIN, images(40, seed=8))
    assert f"fashion/{TRAIN}, {TRAIN}.gz" in prep("mnist", official, tmp_path / "a.h5", code=1).stderr


def test_content_other_than_that_of_mnist_is_told(tmp_path, prep, official, monkeypatch):
    assert prep("mnist", official, tmp_path / "a.h5").output.count("named as a file of MNIST, but MD5") == 2
    known = {file.name.removesuffix(".gz"): (file.role, file.images.md5) for file in mnist.scan(official, tmp_path / "b.h5")[0]}
    monkeypatch.setattr(mnist, "OFFICIAL", known)
    assert "MD5" not in prep("mnist", official, tmp_path / "b.h5").output


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        (("--val", 40), "no image is left for training"),
        (("--train", 0), "no image is left for training"),
        (("--train", "many"), "expected a number of images, or all"),
        (("--test", "-1"), "expected a number of images, or all"),
        (("--ratio", 0.01), "0 measurements: expected 1 to 30"),
    ],
)
def test_knobs_that_fit_no_data_set_are_refused(tmp_path, prep, official, knobs, said):
    assert said in prep("mnist", official, tmp_path / "a.h5", *knobs, code=1).stderr
    assert not (tmp_path / "a.h5").exists()


def test_images_too_large_for_a_dense_matrix_are_refused(tmp_path, prep):
    put(tmp_path / "big", images(3, (129, 128)))
    assert "129 x 128" in prep("mnist", tmp_path / "big", tmp_path / "a.h5", code=1).stderr


def test_real_files(tmp_path, prep, shared_data):
    result = prep("mnist", shared_data / "mnist", tmp_path / "a.h5", "--train", 300, "--test", 20)
    assert "MD5" not in result.output  # those of the test file are MNIST's own
    header, data = read_header(tmp_path / "a.h5"), SliceDataset(tmp_path / "a.h5", "test")
    assert header.splits == {"train": 285, "val": 15, "test": 20}
    assert header.matrix.shape == (235, 784)
    assert Counter(one["status"] for one in sources(tmp_path / "a.h5")) == {"done": 2, "skipped": 2}
    bright = torch.stack([item["image"] for item in data]).mean()
    assert 0.08 < bright < 0.2


@pytest.mark.parametrize("module", [idx_file, mnist])
def test_examples_in_docstrings_are_true(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
