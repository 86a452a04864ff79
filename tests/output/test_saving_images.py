"""Photographs and digits on the disk: PNG files that say what their values mean, no volumes, whole or not at all."""

import h5py
import numpy as np
import pytest
import torch
from dicom_parts import save_all
from PIL import Image
from tiny import names

from es_medical.data import Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter
from es_medical.output.png import PngWriter, check_names
from es_medical.output.saving import SaveReconstructions

SIZE, N = (6, 8), 3


def image_file(folder, channels=3, ids=("a", "b", "c"), scale=255.0):
    header = SliceHeader(0.0, torch.ones(channels, *SIZE, dtype=torch.bool), modality="IMAGE", operator={"kind": "inpainting"})
    path = folder / "images.h5"
    with SliceWriter(path, header, SIZE, with_image=False, shapes=Shapes.pixels(SIZE, channels)) as writer:
        for one in ids:
            writer.append(SliceRecord(torch.zeros(channels, *SIZE), None, one, one, "test", scale))
    return path


def photographs(channels=3, n=N):
    """Whole values 0..255, as a camera stores them, (N, C, H, W)."""
    return torch.randint(0, 256, (n, channels, *SIZE), generator=torch.Generator().manual_seed(0))


def save(folder, path, images, spread=None, **options):
    save_all(folder, path, images, torch.full_like(images, 0.1) if spread is None else spread, **options)


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image), image.text


@pytest.mark.parametrize("channels", [1, 3])
def test_perfect_reconstructions_are_the_photographs_to_the_last_bit(tmp_path, channels):
    raw = photographs(channels)
    save(tmp_path / "out", image_file(tmp_path, channels), raw / 255)
    for one, expected in zip("abc", raw.numpy(), strict=True):
        found, text = pixels(tmp_path / "out" / "png" / f"{one}_reconstruction.png")
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, expected[0] if channels == 1 else expected.transpose(1, 2, 0))
        assert text["Window"] == "0 = 0, 255 = 1 in stored units; raw = stored * 255 + 0"


def test_hdf5_is_written_as_ever_and_there_is_no_volume(tmp_path):
    images = photographs() / 255
    save(tmp_path / "out", image_file(tmp_path), images)
    kinds = {f"{one}_{kind}.png" for one in "abc" for kind in ("reconstruction", "spread")}
    assert names(tmp_path / "out") == {"reconstructions.h5", "png"}
    assert names(tmp_path / "out" / "png") == kinds
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        np.testing.assert_array_equal(file["reconstruction"][()], images.numpy())
        assert file["spread"].shape == images.shape
        assert file["id"].asstr()[()].tolist() == list("abc")
        assert (file["scale"][()] == (255, 0)).all()


def test_spread_is_gray_in_its_stated_window(tmp_path):
    spread = torch.tensor([0.05, 0.1, 0.15]).view(1, 3, 1, 1).expand(N, 3, *SIZE)
    save(tmp_path / "out", image_file(tmp_path), photographs() / 255, spread, spread_max=0.25)
    found, text = pixels(tmp_path / "out" / "png" / "b_spread.png")
    value = np.sqrt((0.05**2 + 0.1**2 + 0.15**2) / 3)  # root mean square over the channels
    np.testing.assert_array_equal(found, np.full(SIZE, round(255 * value / 0.25)))
    assert text["Window"] == "0 = 0, 255 = 0.25 in stored units; raw = stored * 255"
    assert text["Clipped"] == "0 of 48 values"


def test_values_outside_are_clipped_and_counted(tmp_path, caplog):
    images = torch.full((N, 1, *SIZE), 0.5)
    images[0, 0, 0, :3] = torch.tensor([-0.1, 1.0, 1.1])  # 1 is inside
    images[2, 0, 1, 1] = 2.0
    with caplog.at_level("INFO"):
        save(tmp_path / "out", image_file(tmp_path, 1), images)
    found, text = pixels(tmp_path / "out" / "png" / "a_reconstruction.png")
    assert found[0, :3].tolist() == [0, 255, 255]
    assert text["Clipped"] == "2 of 48 values"
    assert "3 images reconstructed" in caplog.text
    assert "3 of 144 values of the PNG files lay outside [0, 1] and were clipped" in caplog.text


def test_count_of_a_second_run_starts_anew(tmp_path):
    writer, bright = PngWriter(tmp_path), np.full((1, 2, 2), 2, np.float32)
    for _ in range(2):
        writer.write("a", (bright, bright))
        assert writer.report().startswith("4 of 4 values")


def test_image_with_nan_is_refused_and_the_others_are_written(tmp_path):
    images = photographs() / 255
    images[1, 0, 0, :2] = torch.nan
    with pytest.raises(RuntimeError, match="1 of 3 images were not written: b: ValueError: reconstruction holds 2 values"):
        save(tmp_path / "out", image_file(tmp_path), images)
    assert names(tmp_path / "out" / "png") == {f"{one}_{kind}.png" for one in "ac" for kind in ("reconstruction", "spread")}


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = image_file(tmp_path)
    save(tmp_path / "out", path, photographs() / 255)
    before = {name: (tmp_path / "out" / "png" / name).read_bytes() for name in names(tmp_path / "out" / "png")}

    def half(image, path, **_):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(Image.Image, "save", half)
    with pytest.raises(RuntimeError, match="3 of 3 images.*a: OSError: no space"):
        save(tmp_path / "out", path, torch.zeros(N, 3, *SIZE))
    assert {name: (tmp_path / "out" / "png" / name).read_bytes() for name in names(tmp_path / "out" / "png")} == before


def test_dicom_of_photographs_is_refused_before_anything_is_done(tmp_path):
    dataset = SliceDataset(image_file(tmp_path))
    for options in ({"dicom": True}, {"dicom": True, "source_dicom": "series"}):
        with pytest.raises(ValueError, match="modality IMAGE: set dicom to false"):
            SaveReconstructions(tmp_path / "out", dataset, **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("ids", "message"), [(("a", "../b", "c"), "'../b'.*no file name"), (("a", "b", "a"), "1 ids.*'a'")])
def test_ids_that_cannot_name_files_are_refused_before_anything_is_done(tmp_path, ids, message):
    dataset = SliceDataset(image_file(tmp_path, ids=ids))
    with pytest.raises(ValueError, match=message):
        SaveReconstructions(tmp_path / "out", dataset)


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "/a", "a\\b", "a\0"])
def test_what_is_no_file_name(bad):
    with pytest.raises(ValueError, match="no file name"):
        check_names(["a", bad])


def test_what_no_png_holds_is_refused(tmp_path):
    good, writer = np.zeros((3, 2, 2), np.float32), PngWriter(tmp_path / "png")
    for shape in ((2, 2), (2, 2, 2), (4, 2, 2)):
        with pytest.raises(ValueError, match="spread of shape"):
            writer.write("a", (good, np.zeros(shape, np.float32)))
    assert not (tmp_path / "png").exists()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_spread_needs_a_window(tmp_path, bad):
    with pytest.raises(ValueError, match="spread_max"):
        PngWriter(tmp_path, bad)
