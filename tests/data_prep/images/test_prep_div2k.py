import os
from collections import Counter

import numpy as np
import pytest
import torch
from columns import stored
from PIL import Image

from data_prep.images.div2k import assign, crop_corners, target_size
from data_prep.images.image_file import read_image
from data_prep.images.options import DIV2KOptions
from data_prep.run.manifest import PrepError
from es_medical.data import read_header
from es_medical.physics.pixels import Inpainting
from es_medical.randomness import item_generator

SMALL = ("--size", 32, "--crop", 16)


def picture(path, height=40, width=60, seed=0, **knobs):
    """A smooth random image, of content that differs for each seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(path, **knobs)
    return path


@pytest.fixture
def folder(tmp_path):
    """Ten images, some of them below others."""
    for k in range(10):
        picture(tmp_path / "src" / ("deep" if k % 2 else ".") / f"private{k}.png", seed=k)
    return tmp_path / "src"


@pytest.fixture
def archive(tmp_path):
    """DIV2K's folders, with fewer images."""
    for k in range(1, 13):
        picture(tmp_path / "src" / "x" / "DIV2K_train_HR" / f"{k:04}.png", seed=k)
    for k in range(801, 804):
        picture(tmp_path / "src" / "y" / "DIV2K_valid_HR" / f"{k:04}.png", seed=k)
    return tmp_path / "src"


def expected(path, size=32, crop=16):
    """The central crop of an image that is resized to a shorter side of `size`, written down anew."""
    with Image.open(path) as image:
        ratio = size / min(image.size)
        small = np.asarray(image.resize([round(n * ratio) for n in image.size], Image.Resampling.BICUBIC))
    top, left = ((n - crop) // 2 for n in small.shape[:2])
    return (small[top : top + crop, left : left + crop] / 255).astype(np.float32).transpose(2, 0, 1)


def test_stored_images_are_central_crops_seen_through_the_mask(tmp_path, prep, folder):
    out = tmp_path / "out" / "div2k.h5"
    prep("div2k", folder, out.parent, *SMALL)
    header, (x, y) = read_header(out), stored(out, "image", "measurement")
    assert (header.n, header.size, header.channels, header.modality) == (10, (16, 16), 3, "IMAGE")
    assert header.operator == {"kind": "inpainting", "mask": "values", "keep": 0.3}
    wanted = {expected(path).tobytes() for path in folder.rglob("*.png")}
    assert {one.tobytes() for one in x} == wanted
    physics = Inpainting(header.mask, header.size, 3)
    np.testing.assert_array_equal(y, physics.A(torch.from_numpy(x)).numpy())
    columns = ("scale", "peak", "data_range", "slice")
    scale, peak, data_range, number = stored(out, *columns)
    assert {*map(tuple, scale), *peak, *data_range, *number} == {(1.0, 0.0), 1.0, 0}


@pytest.mark.parametrize(
    ("kind", "shape", "keep"),
    [("values", (3, 16, 16), 0.3), ("pixels", (16, 16), 0.3), ("random_columns", (16,), 5 / 16), ("even_columns", (16,), 0.5)],
)
def test_masks(tmp_path, prep, folder, kind, shape, keep):
    out = tmp_path / "a.h5"
    prep("div2k", folder, out, *SMALL, "--mask", kind)
    mask = read_header(out).mask
    assert tuple(mask.shape) == shape
    assert abs(float(mask.float().mean()) - keep) < (0.1 if len(shape) > 1 else 1e-6)
    y = stored(out, "measurement")
    assert not y[:, ~mask.expand(3, 16, 16).numpy()].any()


def test_even_columns_have_one_share_only(tmp_path, prep, folder):
    result = prep("div2k", folder, tmp_path / "a.h5", *SMALL, "--mask", "even_columns", "--keep", 0.3, code=1)
    assert "keep 0.3: every other column keeps 0.5" in result.stderr
    prep("div2k", folder, tmp_path / "a.h5", *SMALL, "--keep", 0, code=1)


def test_noise_stands_on_kept_values_only_and_depends_on_the_image_alone(tmp_path, prep, folder):
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    prep("div2k", folder, a, *SMALL, "--sigma", 0.1)
    (folder / "private0.png").unlink()
    prep("div2k", folder, b, *SMALL, "--sigma", 0.1, "--workers", 3)
    mask = read_header(a).mask.numpy()
    ids, x, y = stored(a, "id", "image", "measurement")
    noise = (y - mask * x)[:, mask]
    assert abs(noise.std() - 0.1) < 0.01
    assert not y[:, ~mask].any()
    known = dict(zip(ids, y, strict=True))
    ids, y = stored(b, "id", "measurement")
    assert len(ids) == 9
    assert all(np.array_equal(known[key], one) for key, one in zip(ids, y, strict=True))


def test_mask_seed_changes_the_mask_and_nothing_else(tmp_path, prep, folder):
    for name, seed in (("a.h5", 0), ("b.h5", 1)):
        prep("div2k", folder, tmp_path / name, *SMALL, "--mask-seed", seed)
    a, b = (read_header(tmp_path / name).mask for name in ("a.h5", "b.h5"))
    assert not torch.equal(a, b)
    for column in ("id", "split", "image"):
        np.testing.assert_array_equal(stored(tmp_path / "a.h5", column), stored(tmp_path / "b.h5", column))


def test_folders_of_div2k_decide_the_split(tmp_path, prep, archive):
    picture(archive / "DIV2K_train_LR_bicubic" / "X2" / "0001x2.png", seed=99)
    out = tmp_path / "a.h5"
    result = prep("div2k", archive, out, *SMALL, "--val", 2)
    assert "DIV2K_train_HR holds 12 images, in the whole data set 800" in result.output
    assert "not in DIV2K_train_HR or DIV2K_valid_HR" in result.output
    assert read_header(out).splits == {"train": 10, "val": 2, "test": 3}
    splits, x = stored(out, "split", "image")
    tested = {expected(path).tobytes() for path in archive.rglob("08*.png")}
    assert {one.tobytes() for one, split in zip(x, splits, strict=True) if split == "test"} == tested


def test_shares_are_upper_limits_where_folders_decide_the_split():
    roles = {f"t{k}": "train" for k in range(20)} | {f"v{k}": "test" for k in range(5)}
    splits = assign(roles, DIV2KOptions(train=10, test=2, val=3))
    assert Counter(splits.values()) == {"train": 7, "val": 3, "test": 2, None: 13}
    assert {key for key, split in splits.items() if split == "test"} < {f"v{k}" for k in range(5)}
    assert Counter(assign(roles, DIV2KOptions(test=0)).values()) == {"train": 19, "val": 1, None: 5}


@pytest.mark.parametrize("there", ["DIV2K_train_HR", "DIV2K_valid_HR"])
def test_half_of_div2k_is_refused_and_can_be_split_on_its_own(tmp_path, prep, archive, there):
    for path in archive.rglob("*.png"):
        if there not in path.parts:
            path.unlink()
    assert f"{there} without DIV2K_" in prep("div2k", archive, tmp_path / "a.h5", *SMALL, code=1).stderr
    assert not (tmp_path / "a.h5").exists()
    inside = next(archive.rglob(there))
    prep("div2k", inside, tmp_path / "a.h5", *SMALL)
    assert read_header(tmp_path / "a.h5").splits["test"] == 1


def test_other_folders_are_split_by_content_and_not_by_name(tmp_path, prep, folder):
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    prep("div2k", folder, a, *SMALL, "--train", 0.7, "--test", 0.3)
    assert read_header(a).splits == {"train": 6, "val": 1, "test": 3}
    for k, path in enumerate(sorted(folder.rglob("*.png"))):
        path.rename(folder / f"{(k * 7) % 10}.png")
    prep("div2k", folder, b, *SMALL, "--train", 0.7, "--test", 0.3)
    for column in ("id", "split", "image"):
        np.testing.assert_array_equal(stored(a, column), stored(b, column))


def test_moving_an_image_to_the_test_folder_makes_the_file_anew(tmp_path, prep, archive):
    out = tmp_path / "a.h5"
    prep("div2k", archive, out, *SMALL)
    (archive / "x" / "DIV2K_train_HR" / "0001.png").rename(archive / "y" / "DIV2K_valid_HR" / "0001.png")
    prep("div2k", archive, out, *SMALL)
    assert read_header(out).splits["test"] == 4


def test_pipes_are_not_waited_for(tmp_path, prep, folder):
    os.mkfifo(folder / "pipe.png")
    assert "not a regular file" in prep("div2k", folder, tmp_path / "a.h5", *SMALL).output


def test_unreadable_file_is_named(tmp_path, prep, folder, monkeypatch):
    secret = folder / "private3.png"
    opened = type(secret).open

    def refusing(self, *arguments, **knobs):
        if self.name == "private3.png":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **knobs)

    (folder / "deep" / "private3.png").rename(secret)
    monkeypatch.setattr(type(secret), "open", refusing)
    assert "cannot be read (Permission denied)" in prep("div2k", folder, tmp_path / "a.h5", *SMALL, code=1).output
    assert read_header(tmp_path / "a.h5").n == 9


def test_image_between_crop_and_size_is_taken_as_it_is_and_this_is_said(tmp_path, prep, folder):
    path = picture(folder / "small.png", 20, 30, seed=70)
    out = tmp_path / "a.h5"
    assert "shorter side below 32: not enlarged" in prep("div2k", folder, out, *SMALL).output
    with Image.open(path) as image:
        crop = (np.asarray(image)[2:18, 7:23] / 255).astype(np.float32).transpose(2, 0, 1)
    assert crop.tobytes() in {one.tobytes() for one in stored(out, "image")}


def test_copies_are_taken_once_and_kept_for_test(tmp_path, prep, archive):
    copy = archive / "x" / "DIV2K_train_HR" / "copy.png"
    copy.write_bytes((archive / "y" / "DIV2K_valid_HR" / "0801.png").read_bytes())
    with Image.open(archive / "y" / "DIV2K_valid_HR" / "0802.png") as image:
        image.save(archive / "x" / "DIV2K_train_HR" / "recoded.bmp")
    out = tmp_path / "a.h5"
    result = prep("div2k", archive, out, *SMALL)
    splits, x = stored(out, "split", "image")
    assert len({one.tobytes() for one in x}) == len(x) == 15
    assert Counter(splits)["test"] == 3
    assert "copy of another file" in result.output
    assert "same pixels as another one" in result.output


def test_no_image_is_an_error_with_the_expected_paths_and_no_network(tmp_path, prep, monkeypatch):
    def refused(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refused)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "DIV2K_train_HR.zip").write_bytes(b"PK")
    for source in (tmp_path / "src", tmp_path / "absent"):
        result = prep("div2k", source, tmp_path / "a.h5", code=1)
        for word in ("DIV2K_train_HR", "DIV2K_valid_HR", "0001.png", "https://data.vision.ee.ethz.ch/cvl/DIV2K/", "by hand"):
            assert word in result.stderr
    assert "DIV2K_train_HR.zip: to be unpacked" in prep("div2k", tmp_path / "src", tmp_path / "a.h5", code=1).stderr


def test_more_crops_are_of_training_images_only_and_the_same_in_any_folder(tmp_path, prep, folder):
    one, many = tmp_path / "one.h5", tmp_path / "many.h5"
    prep("div2k", folder, one, *SMALL)
    prep("div2k", folder, many, *SMALL, "--crops", 4)
    header = read_header(many)
    assert header.splits == {"train": 32, "val": 1, "test": 1}
    subjects, numbers, x, splits = stored(many, "subject", "slice", "image", "split")
    assert set(Counter(subjects[splits == "train"]).values()) == {4}
    assert {one.tobytes() for one in x[numbers == 0]} == {one.tobytes() for one in stored(one, "image")}
    assert len({one.tobytes() for one in x}) == 34
    moved = tmp_path / "moved.h5"
    for path in folder.glob("*.png"):
        path.rename(path.with_stem(f"x{path.stem}"))
    prep("div2k", folder, moved, *SMALL, "--crops", 4, "--workers", 1)
    np.testing.assert_array_equal(stored(moved, "image"), x)


def test_corners_lie_inside_and_never_repeat():
    corners = crop_corners((20, 24), 16, 100, item_generator(0, "a"))
    assert corners[0] == (2, 4)
    assert len(corners) == 5 * 9
    assert set(corners) == {(i, j) for i in range(5) for j in range(9)}
    assert crop_corners((21, 25), 16, 1, item_generator(0, "a")) == [(2, 4)]
    assert crop_corners((16, 16), 16, 3, item_generator(0, "a")) == [(0, 0)]
    few = crop_corners((64, 64), 16, 4, item_generator(0, "a"))
    assert few == crop_corners((64, 64), 16, 4, item_generator(0, "a"))
    assert few[1:] != crop_corners((64, 64), 16, 4, item_generator(0, "b"))[1:]


def test_stretched_images_are_square_before_the_crop(tmp_path, prep, folder):
    assert target_size((40, 60), 32, "stretch") == (32, 32)
    prep("div2k", folder, tmp_path / "a.h5", "--size", 16, "--crop", 16, "--resize", "stretch")
    whole = {read_image(path).resized((16, 16)).numpy().tobytes() for path in folder.rglob("*.png")}
    assert {one.tobytes() for one in stored(tmp_path / "a.h5", "image")} == whole


def test_no_side_is_enlarged():
    for old in ((16, 500), (31, 31), (32, 32), (33, 40), (1000, 33)):
        for resize in ("short", "stretch"):
            new = target_size(old, 32, resize)
            assert new[0] <= old[0]
            assert new[1] <= old[1]
            assert min(new) == min(32, *old)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(PrepError, match="crop 64: expected 1 to 32"):
        DIV2KOptions(size=32, crop=64)
    with pytest.raises(PrepError, match="crops 0"):
        DIV2KOptions(crops=0)


def test_real_photographs(tmp_path, prep, shared_data):
    out = tmp_path / "a.h5"
    prep("div2k", shared_data / "natural", out, "--size", 64, "--crop", 32, "--train", 0.8, "--test", 0.2)
    header, (x, y) = read_header(out), stored(out, "image", "measurement")
    assert header.n == len(list((shared_data / "natural").glob("*.png")))
    assert header.splits["test"] == round(0.2 * header.n)
    assert x.min() >= 0
    assert x.max() <= 1
    assert all(np.ptp(one) > 0.2 for one in x)
    neighbours = np.mean(np.abs(np.diff(x, axis=-1)))
    assert neighbours < 0.5 * np.mean(np.abs(x - x[..., np.random.default_rng(0).permutation(32)]))
    np.testing.assert_array_equal(y, x * header.mask.numpy())
