"""Half-widths and flagged pixels on the disk."""

from types import SimpleNamespace

import h5py
import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from PIL import Image
from tiny import names, write_images, write_slices

from es_medical.data import SliceDataset
from es_medical.output.saving import SaveReconstructions

N = {"train": 0, "val": 0, "test": 4}


def save(folder, path, image, halfwidth, **options):
    """Runs the handler over all slices at once; None for no intervals."""
    own = {} if halfwidth is None else {"halfwidth": halfwidth}
    result = SimpleNamespace(image=image, spread=torch.zeros_like(image), heldout=torch.zeros(len(image)), **own)
    engine = Engine(lambda engine, batch: result)
    SaveReconstructions(folder, SliceDataset(path), **options).attach(engine)
    engine.run([{"index": torch.arange(len(image))}])


def wide(n, value=0.3, pixels=3):
    """Half-widths of 0.01, and `value` at the first pixels of every slice but the first."""
    halfwidth = torch.full((n, 1, 16, 16), 0.01)
    halfwidth[1:, 0, 0, :pixels] = value
    return halfwidth


def test_volumes_get_a_map_of_half_widths_and_one_of_flagged_pixels(tmp_path, caplog):
    """Magnitudes from 0 to 2 in raw units 10 times as large; 0.3 is more than 0.1 of the range and 0.01 is less."""
    path = write_slices(tmp_path / "slices.h5", splits=N, scale=(10.0, 0.0))
    image = torch.zeros(4, 2, 16, 16)
    image[:, 0, 8, 8] = -2.0
    with caplog.at_level("INFO"):
        save(tmp_path / "out", path, image, wide(4))
    kinds = ("reconstruction", "spread", "halfwidth", "flagged")
    assert names(tmp_path / "out") == {"reconstructions.h5", *(f"test{i}_{kind}.nii.gz" for i in (0, 1) for kind in kinds)}
    first, second = (np.asarray(nib.load(tmp_path / "out" / f"test{i}_flagged.nii.gz").dataobj) for i in (0, 1))
    expected = np.zeros((16, 16, 2))
    expected[:3, 0] = 1  # (W, H, slices): the first pixels of the first row
    np.testing.assert_array_equal(second, expected)
    np.testing.assert_array_equal(first, expected * [0, 1])
    halfwidth = np.asarray(nib.load(tmp_path / "out" / "test1_halfwidth.nii.gz").dataobj)
    np.testing.assert_allclose(halfwidth, np.where(expected, 3.0, 0.1), rtol=1e-6)
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        np.testing.assert_array_equal(file["halfwidth"][()], wide(4).numpy())
        assert file["flagged"][()].sum() == 9
        assert file["n_flagged"][()].tolist() == [0, 3, 3, 3]
    assert "test0: 3 of 512 pixels flagged (0.6 %), half-width above 0.1 of the range, most in slice 1: 3" in caplog.text
    assert "test1: 6 of 512 pixels flagged (1.2 %)" in caplog.text


def test_range_is_that_of_the_whole_volume(tmp_path):
    """A dark slice is not flagged everywhere: it is judged by the range of its volume."""
    path = write_slices(tmp_path / "slices.h5", splits=N)
    image = torch.zeros(4, 2, 16, 16)
    image[0, 0, 8, 8] = 1.0  # slice 0 of volume test0; slice 1 is dark
    save(tmp_path / "out", path, image, torch.full((4, 1, 16, 16), 0.05))
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        assert file["n_flagged"][()].tolist() == [0, 0, 256, 256]  # test1 is blank: its range is 0


def test_photographs_get_pngs(tmp_path, caplog):
    path = write_images(tmp_path / "images.h5", splits=N)
    image = torch.zeros(4, 3, 16, 16)
    image[:, :, 0, 0] = 1.0
    with caplog.at_level("INFO"):
        save(tmp_path / "out", path, image, wide(4), flag=0.25)
    kinds = ("reconstruction", "spread", "halfwidth", "flagged")
    assert names(tmp_path / "out") == {"reconstructions.h5", "png"}
    assert names(tmp_path / "out" / "png") == {f"item{i}_{kind}.png" for i in range(4) for kind in kinds}
    with Image.open(tmp_path / "out" / "png" / "item1_flagged.png") as picture:
        found = np.asarray(picture)
    assert found.shape == (16, 16)
    assert (found[0, :3] == 255).all()
    assert found.sum() == 3 * 255
    with Image.open(tmp_path / "out" / "png" / "item1_halfwidth.png") as picture:
        assert np.asarray(picture)[0, 0] == 255  # above the 0.2 that is white
        assert picture.text["Window"].startswith("0 = 0, 255 = 0.2 in stored units")
    assert "item1: 3 of 256 pixels flagged (1.2 %), half-width above 0.25 of the range" in caplog.text


@pytest.mark.parametrize("write", [write_slices, write_images])
def test_without_intervals_nothing_is_added(tmp_path, write, caplog):
    path = write(tmp_path / "slices.h5", splits=N)
    with caplog.at_level("INFO"):
        save(tmp_path / "out", path, torch.zeros(4, 2 if write is write_slices else 3, 16, 16), None)
    assert not any("halfwidth" in str(one) or "flagged" in str(one) for one in (tmp_path / "out").rglob("*"))
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        assert not {"halfwidth", "flagged", "n_flagged"} & set(file)
    assert "flagged" not in caplog.text


@pytest.mark.parametrize("flag", [0.0, -1.0, float("nan")])
def test_flag_must_be_positive(tmp_path, flag):
    path = write_slices(tmp_path / "slices.h5", splits=N)
    with pytest.raises(ValueError, match="flag is a fraction of the image's range, a positive number"):
        SaveReconstructions(tmp_path, SliceDataset(path), flag=flag)
