from collections import Counter
from importlib import util

import h5py
import numpy as np
import pytest
import torch

from data_prep.demo import photographs as demo_natural
from data_prep.demo.photographs import SCALES, SHIPPED, photograph
from es_medical.data import SliceDataset, read_header

LEAST = {"train": 150, "test": 20, "val": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The demo as it comes, or a skip where the extra is not installed."""
    if any(util.find_spec(one.package) is None for one in SHIPPED):
        pytest.skip("the extra `demo` is not installed")
    from typer.testing import CliRunner

    from data_prep.__main__ import app

    out = tmp_path_factory.mktemp("natural")
    result = CliRunner().invoke(app, ["demo", "natural", str(out)], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return out / "demo_natural.h5"


def test_demo_is_large_enough_and_split_by_photograph(made):
    header = read_header(made)
    assert (header.size, header.channels, header.modality) == ((64, 64), 3, "IMAGE")
    assert all(header.splits[split] >= least for split, least in LEAST.items())
    with h5py.File(made) as file:
        pairs = set(zip(file["subject"].asstr()[()], file["split"].asstr()[()], strict=True))
        x = file["image"][()]
    assert Counter(split for _, split in pairs) == {"train": 5, "val": 1, "test": 2}
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


def test_second_run_does_nothing(made, prep):
    before = made.stat().st_mtime_ns
    assert "up to date" in prep("demo", "natural", made).output
    assert made.stat().st_mtime_ns == before


def test_options_of_the_demo(tmp_path, prep, made):
    result = prep("demo", "natural", tmp_path, "--size", 32, "--mask", "even_columns", "--sigma", 0.05, "--without-image")
    assert result.exit_code == 0, result.output
    header = read_header(tmp_path / "demo_natural.h5")
    assert (header.size, header.sigma, header.has_image) == ((32, 32), 0.05, False)
    assert header.mask.tolist() == [True, False] * 16


def test_large_crops_are_neither_enlarged_nor_taken_twice(tmp_path, prep, made):
    prep("demo", "natural", tmp_path, "--size", 128)
    with h5py.File(tmp_path / "demo_natural.h5") as file:
        assert len({one.tobytes() for one in file["image"][()]}) == len(file["image"]) > 50


def test_tiles_do_not_overlap():
    marked = torch.arange(3 * 40 * 50).reshape(3, 40, 50)
    tiles = list(demo_natural._tiles(marked, 16))
    assert len(tiles) == 2 * 3
    assert len(np.unique(torch.cat([tile.flatten() for tile in tiles]))) == 6 * 3 * 16 * 16
    assert tiles[0][0, 0, 0] == marked[0, 4, 1]


@pytest.mark.parametrize(("package", "name"), [("skimage", "scikit-image"), ("sklearn", "scikit-learn")])
def test_missing_package_is_an_error_with_the_command(tmp_path, prep, monkeypatch, package, name):
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda wanted: None if wanted == package else found(wanted))
    result = prep("demo", "natural", tmp_path / "a.h5")
    assert result.exit_code == 1
    assert name in result.stderr
    assert "pip install 'es_medical[demo]'" in result.stderr
    assert not (tmp_path / "a.h5").exists()


def test_package_without_its_photographs_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "skimage").mkdir()
    (tmp_path / "skimage" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "skimage", raising=False)
    with pytest.raises(ValueError, match=r"scikit-image holds no chelsea\.png"):
        photograph(SHIPPED[0])


def test_packages_are_found_and_not_imported(tmp_path, made):
    import subprocess
    import sys

    code = (
        "import sys; from data_prep.demo.photographs import SHIPPED, photograph; [photograph(one) for one in SHIPPED]; "
        "print({'skimage', 'sklearn'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_every_split_has_scales():
    assert {one.split for one in SHIPPED} == set(SCALES)
