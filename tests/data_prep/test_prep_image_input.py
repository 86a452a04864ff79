"""What inference takes for photographs and digits: a slice file as it is, images measured as the training data was."""

from pathlib import Path

import numpy as np
import pytest
import torch
from columns import stored
from idx_bytes import images, put
from PIL import Image
from rich.console import Console

from data_prep.images import div2k, mnist
from data_prep.images.options import DIV2KOptions, MNISTOptions
from data_prep.inference import image_file, raise_failures
from data_prep.run.manifest import PrepError
from data_prep.run.runner import PrepRun
from es_medical.data import Shapes, SliceHeader, SliceRecord, SliceWriter, read_header
from es_medical.engine.checkpoint import BEST, preparation

CROP, DIGIT = 16, (6, 5)


def picture(path, height=24, width=20, seed=0):
    """A random image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def trained(folder, data_file, **changes):
    """A folder of weights that were trained on a slice file, as far as inference looks."""
    folder.mkdir()
    torch.save({"preparation": preparation(data_file) | changes}, folder / BEST)
    return str(folder)


def photographs(folder, **knobs):
    """A training file of photographs and its weights."""
    for seed in range(4):
        picture(folder / "photos" / f"{seed}.png", seed=seed + 100)
    options = DIV2KOptions(**({"size": 20, "crop": CROP, "sigma": 0.1, "train": 3, "test": 1} | knobs))
    out = folder / "train.h5"
    assert div2k.prepare(PrepRun("div2k", options, out, "pepper", 1, None, Console()), folder / "photos")
    return out, trained(folder / "models", out)


def digits(folder, **knobs):
    """A training file of digits and its weights."""
    put(folder / "digits" / "all.idx", images(20, DIGIT, seed=9))
    options = MNISTOptions(**({"ratio": 0.5, "train": 15, "test": 5} | knobs))
    out = folder / "train.h5"
    assert mnist.prepare(PrepRun("mnist", options, out, "pepper", 1, None, Console()), folder / "digits")
    return out, trained(folder / "models", out)


@pytest.mark.parametrize("mask", ["values", "pixels", "random_columns", "even_columns"])
@pytest.mark.parametrize("mask_seed", [None, 7])
def test_photographs_go_through_the_mask_of_the_training_data(tmp_path, mask, mask_seed):
    data_file, models = photographs(tmp_path, mask=mask, mask_seed=mask_seed, seed=3)
    picture(tmp_path / "in" / "one.png")
    made = image_file(str(tmp_path / "in"), str(tmp_path / "out"), models)
    old, new = read_header(data_file), read_header(made)
    assert torch.equal(new.mask, old.mask)
    assert dict(new.operator) == dict(old.operator)
    assert (new.sigma, new.size, new.channels, new.modality) == (0.1, (CROP, CROP), 3, "IMAGE")
    measured = stored(made, "measurement")
    assert ((measured == 0) == ~np.broadcast_to(new.mask.numpy(), measured.shape)).all()


def test_all_photographs_of_a_folder_are_for_test_whatever_their_folder(tmp_path):
    """One folder of DIV2K without the other, and an image beside it: no split is asked for."""
    _, models = photographs(tmp_path, crops=3)
    picture(tmp_path / "in" / "DIV2K_train_HR" / "0001.png", seed=1)
    picture(tmp_path / "in" / "other.jpg", 40, 30, seed=2)
    picture(tmp_path / "in" / "below" / "exact.png", CROP, CROP, seed=3)
    made = image_file(str(tmp_path / "in"), str(tmp_path / "out"), models)
    header = read_header(made)
    assert dict(header.splits) == {"test": 3}  # the central crop of each, though training drew three
    assert header.has_image
    with Image.open(tmp_path / "in" / "below" / "exact.png") as image:
        exact = np.asarray(image).transpose(2, 0, 1) / np.float32(255)
    stored_images = stored(made, "image")
    assert [bool(np.array_equal(one, exact)) for one in stored_images].count(True) == 1
    raise_failures(made)


def test_weights_of_the_demo_take_photographs_at_the_scale_of_its_test_crops(tmp_path):
    data_file, _ = photographs(tmp_path)
    demo = {
        name: value for name, value in read_header(data_file).configuration.items() if name not in ("crop", "resize", "crops")
    }
    models = trained(tmp_path / "demo", data_file, configuration=demo | {"command": "demo natural", "size": CROP})
    source = picture(tmp_path / "in" / "one.png", 3 * CROP, 60)  # three crops high: not resized
    found = stored(image_file(str(source), str(tmp_path / "out"), models), "image")
    with Image.open(source) as image:
        expected = np.asarray(image)[16:32, 22:38].transpose(2, 0, 1) / np.float32(255)
    np.testing.assert_array_equal(found, expected[None])


def test_one_photograph_is_enough_and_its_name_stays_outside(tmp_path):
    _, models = photographs(tmp_path)
    source = picture(tmp_path / "in" / "SECRETNAME.png")
    made = Path(image_file(str(source), str(tmp_path / "out"), models))
    assert made.parent == tmp_path / "out"
    assert read_header(made).n == 1
    for file in made.parent.iterdir():
        assert "SECRET" not in file.name
        assert b"SECRET" not in file.read_bytes()


def test_broken_and_small_photographs_are_left_out_and_told_at_the_end(tmp_path):
    _, models = photographs(tmp_path)
    picture(tmp_path / "in" / "good.png")
    picture(tmp_path / "in" / "small.png", CROP - 1, 40)
    (tmp_path / "in" / "bad.png").write_text("no image")
    for _ in range(2):  # the second time nothing is prepared anew
        made = image_file(str(tmp_path / "in"), str(tmp_path / "out"), models)
        assert read_header(made).n == 1
        with pytest.raises(PrepError, match="2 of 3 sources failed.*shorter side"):
            raise_failures(made, str(tmp_path / "in"))


def test_second_time_nothing_is_done(tmp_path):
    _, models = photographs(tmp_path)
    source = str(picture(tmp_path / "in" / "one.png"))
    made = image_file(source, str(tmp_path / "out"), models)
    first = Path(made).stat().st_ino
    assert image_file(source, str(tmp_path / "out"), models) == made
    assert Path(made).stat().st_ino == first


def test_mask_that_cannot_be_drawn_anew_is_refused(tmp_path):
    data_file, _ = photographs(tmp_path)
    measured = read_header(data_file).mask
    measured[0, 0, 0] = ~measured[0, 0, 0]
    models = trained(tmp_path / "other", data_file, measured=measured.tolist())
    with pytest.raises(PrepError, match="mask of the training data cannot be drawn anew"):
        image_file(str(picture(tmp_path / "in" / "one.png")), str(tmp_path / "out"), models)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("matrix_seed", [None, 7])
def test_digits_go_through_the_matrix_of_the_training_data(tmp_path, matrix_seed):
    data_file, models = digits(tmp_path, matrix_seed=matrix_seed, seed=3)
    put(tmp_path / "in" / "new.gz", images(4, DIGIT))
    made = image_file(str(tmp_path / "in"), str(tmp_path / "out"), models)
    old, new = read_header(data_file), read_header(made)
    assert torch.equal(new.matrix, old.matrix)
    assert dict(new.operator) == dict(old.operator)
    assert (new.size, new.channels, dict(new.splits)) == (DIGIT, 1, {"test": 4})
    y, x = stored(made, "measurement", "image")
    np.testing.assert_array_equal(x[:, 0] * 255, images(4, DIGIT))
    np.testing.assert_allclose(y, x.reshape(4, -1) @ old.matrix.numpy().T, rtol=1e-4, atol=1e-5)


def test_every_digit_is_reconstructed_blank_ones_and_copies_too(tmp_path):
    _, models = digits(tmp_path)
    pixels = images(5, DIGIT)
    pixels[1], pixels[3] = 0, pixels[2]
    source = put(tmp_path / "in" / "t10k-images-idx3-ubyte.gz", pixels)  # a name that asks for a split
    put(tmp_path / "in" / "train-images-idx3-ubyte", images(2, DIGIT, seed=1))
    assert dict(read_header(image_file(str(tmp_path / "in"), str(tmp_path / "out"), models)).splits) == {"test": 7}
    alone = image_file(str(source), str(tmp_path / "alone"), models)
    ids, number = stored(alone, "id", "slice")
    assert len(set(ids)) == 5
    assert number.tolist() == [0, 1, 2, 3, 4]


def test_digits_of_another_size_are_refused(tmp_path):
    _, models = digits(tmp_path)
    source = put(tmp_path / "in" / "large.gz", images(2, (7, 5)))
    with pytest.raises(PrepError, match="images of 7 x 5: the weights were trained on 6 x 5 pixels"):
        image_file(str(source), str(tmp_path / "out"), models)


def test_weights_of_other_data_are_refused(tmp_path):
    path, size = tmp_path / "train.h5", (4, 4)
    header = SliceHeader(0.1, torch.ones(4, dtype=torch.bool), configuration={"command": "fastmri", "mask": "1111"})
    with SliceWriter(path, header, size, with_image=False, shapes=Shapes.kspace(size)) as writer:
        writer.append(SliceRecord(torch.zeros(2, *size), None, "a", "a", "train"))
    source = str(picture(tmp_path / "in" / "one.png"))
    with pytest.raises(PrepError, match=r"not trained on photographs or digits.*\(made by: fastmri\)"):
        image_file(source, str(tmp_path / "out"), trained(tmp_path / "models", path))


def test_output_among_the_input_is_refused(tmp_path):
    _, models = photographs(tmp_path)
    picture(tmp_path / "in" / "one.png")
    for out in ("in", "in/eval"):
        with pytest.raises(PrepError, match="lies in"):
            image_file(str(tmp_path / "in"), str(tmp_path / out), models)


def test_folder_without_images_is_refused(tmp_path):
    for name, make in (("photos", photographs), ("digits", digits)):
        (tmp_path / name / "in").mkdir(parents=True)
        (tmp_path / name / "in" / "notes.txt").write_text("nothing")
        with pytest.raises(PrepError, match="no (image|IDX file)"):
            image_file(str(tmp_path / name / "in"), str(tmp_path / name / "out"), make(tmp_path / name)[1])
