from collections import Counter
from importlib import util

import numpy as np
import pytest
import torch
from columns import stored

from data_prep.demo import photographs as demo_natural
from data_prep.demo.photographs import SCALES, SHIPPED
from es_medical.data import SliceDataset, read_header

LEAST = {"train": 150, "test": 20, "val": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory, prep):
    """The demo as it comes, or a skip where the extra is not installed."""
    if any(util.find_spec(one.package) is None for one in SHIPPED):
        pytest.skip("the extra `demo` is not installed")
    out = tmp_path_factory.mktemp("natural")
    prep("demo", "natural", out)
    return out / "demo_natural.h5"


def test_demo_is_large_enough_and_split_by_photograph(made):
    header = read_header(made)
    assert (header.size, header.channels, header.modality) == ((64, 64), 3, "IMAGE")
    assert all(header.splits[split] >= least for split, least in LEAST.items())
    subject, split, x = stored(made, "subject", "split", "image")
    pairs = set(zip(subject, split, strict=True))
    assert Counter(split for _, split in pairs) == {"train": 5, "val": 2, "test": 2}
    assert len({subject for subject, _ in pairs}) == len(pairs)
    assert (x.min() >= 0, x.max() <= 1) == (True, True)
    assert len({one.tobytes() for one in x}) == header.n


def test_measurements_are_what_the_mask_keeps(made):
    header, item = read_header(made), SliceDataset(made, "test")[0]
    assert abs(float(header.mask.float().mean()) - 0.3) < 0.02
    assert torch.equal(item["measurement"], item["image"] * header.mask)


def test_same_scene_from_two_sides_is_in_one_split():
    motorcycles = {one.split for one in SHIPPED if "motorcycle" in one.place}
    assert len(motorcycles) == 1


def test_options_of_the_demo(tmp_path, prep, made):
    prep("demo", "natural", tmp_path, "--size", 32, "--mask", "even_columns", "--sigma", 0.05, "--without-image")
    header = read_header(tmp_path / "demo_natural.h5")
    assert (header.size, header.sigma, header.has_image) == ((32, 32), 0.05, False)
    assert header.mask.tolist() == [True, False] * 16


def test_large_crops_are_neither_enlarged_nor_taken_twice(tmp_path, prep, made):
    prep("demo", "natural", tmp_path, "--size", 128)
    x = stored(tmp_path / "demo_natural.h5", "image")
    assert len({one.tobytes() for one in x}) == len(x) > 50


def test_tiles_do_not_overlap():
    marked = torch.arange(3 * 40 * 50).reshape(3, 40, 50)
    tiles = list(demo_natural._tiles(marked, 16))
    assert len(tiles) == 2 * 3
    assert len(np.unique(torch.cat([tile.flatten() for tile in tiles]))) == 6 * 3 * 16 * 16
    assert tiles[0][0, 0, 0] == marked[0, 4, 1]


def test_every_split_has_scales():
    assert {one.split for one in SHIPPED} == set(SCALES)
