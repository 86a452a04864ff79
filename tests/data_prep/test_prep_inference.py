"""What inference takes: a slice file as it is, a fastMRI volume or a folder of them."""

from pathlib import Path

import numpy as np
import pytest
from columns import columns, nifti
from raw import HEADER
from tiny import CENTER, SIGMA, Parts, causes, execute, workflow, write_slices

from data_prep.inference import ct_file, image_file, raise_failures, scan_file, slice_file
from data_prep.run.manifest import PrepError, Pseudonyms, default_salt
from es_medical.data import read_header
from es_medical.engine.training_data import preparation
from es_medical.engine.weights.state_file import BEST, write_state

KNOBS = (2.0, CENTER, SIGMA)


def taking(*inputs):
    """A test that runs for each of them, which get a source, a folder for the output and a folder of weights."""
    return pytest.mark.parametrize("take", inputs)


def synthetic(source, output_dir, ckpt_dir):
    return slice_file(source, output_dir, *KNOBS)


@taking(synthetic, scan_file, ct_file, image_file)
def test_slice_file_is_taken_as_it_is(tmp_path, take):
    """Whatever became of other files when it was made: that was said then."""
    path = str(write_slices(tmp_path / "slices.h5"))
    assert take(path, str(tmp_path / "out"), str(tmp_path / "models")) == path
    assert not (tmp_path / "out").exists()
    raise_failures(path)
    raise_failures(path, path)


@taking(synthetic, scan_file, ct_file, image_file)
def test_nothing_there_names_the_knob(tmp_path, take):
    with pytest.raises(FileNotFoundError, match="--data_file"):
        take(str(tmp_path / "absent"), str(tmp_path / "out"), str(tmp_path / "models"))


@taking(scan_file, ct_file, image_file)
def test_no_weights_says_what_to_do(tmp_path, take, make_volume):
    make_volume(tmp_path / "in" / "a.h5")
    with pytest.raises(FileNotFoundError, match="train first, or set ckpt_dir"):
        take(str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "models"))


def test_volume_is_prepared_with_all_its_slices(tmp_path, make_volume):
    path = make_volume(tmp_path / "in" / "file1.h5")
    made = slice_file(str(path), str(tmp_path / "out"), *KNOBS)
    header = read_header(made)
    assert Path(made).parent == tmp_path / "out"
    assert (header.n, header.size) == (3, (32, 32))
    assert (header.acceleration, header.center_fraction, header.sigma) == KNOBS


def test_seed_gives_the_mask_of_the_training_data(tmp_path, make_volume):
    path = str(make_volume(tmp_path / "in" / "file1.h5"))
    masks = [read_header(slice_file(path, str(tmp_path / f"out{i}"), *KNOBS, seed)).mask for i, seed in enumerate((0, 0, 5))]
    assert masks[0].equal(masks[1])
    assert not masks[0].equal(masks[2])
    own = read_header(slice_file(path, str(tmp_path / "out3"), *KNOBS, 0, 5)).mask  # a seed for the mask alone
    assert own.equal(masks[2])


def blob(size, spacing):
    """A smooth image of a field of view about index n//2, the same in mm whatever the pixels."""
    rows, columns = ((np.arange(n) - n // 2) * step for n, step in zip(size, spacing, strict=True))
    return np.exp(-(((rows[:, None] - 20) / 25) ** 2) - ((columns + 10) / 20) ** 2).astype(np.float32)


def scan(make_volume, path, size, spacing):
    """A volume with a reconstruction of such pixels, (3, H, W), and a header that says so."""
    field = [n * step for n, step in zip(size, spacing, strict=True)]
    text = HEADER.format(width=48, maximum=47, center=24).replace("<x>32</x><y>32</y>", f"<x>{size[0]}</x><y>{size[1]}</y>")
    text = text.replace("<x>160</x><y>128</y>", f"<x>{field[0]}</x><y>{field[1]}</y>")
    images = np.stack([factor * blob(size, spacing) for factor in (1, 2, 3)])
    return make_volume(path, keys=(), header=False, ismrmrd_header=text, reconstruction_esc=images)


@pytest.fixture
def trained(tmp_path, make_volume, prep):
    """The folder of weights that were trained on 32 x 32 pixels of 5 x 4 mm."""
    scan(make_volume, tmp_path / "raw" / "a.h5", (32, 32), (5.0, 4.0))
    knobs = ("--acceleration", 2, "--center-fraction", CENTER, "--sigma", SIGMA, "--slices", "all")
    prep("fastmri", tmp_path / "raw", tmp_path / "slices.h5", *knobs, "--train", 1, "--test", 0, "--val", 0)
    write_state({"preparation": preparation(tmp_path / "slices.h5")}, tmp_path / "models" / BEST)
    return str(tmp_path / "models")


@pytest.mark.parametrize(
    ("size", "spacing", "covering"),
    [
        ((64, 64), (2.5, 2.0), (32, 32)),  # the same field of view in finer pixels: the object keeps its size and is whole
        ((80, 96), (2.5, 2.0), (40, 48)),  # a larger one: nothing is cut
        ((20, 16), (8.0, 8.0), (32, 32)),  # coarser pixels
        ((40, 40), (5.0, 4.0), (40, 40)),  # those of the training
        ((40, 40), (5.05, 3.97), (40, 40)),  # within 2 %
    ],
)
def test_scan_of_other_pixels_is_resampled_to_those_of_the_training(
    tmp_path, make_volume, trained, size, spacing, covering, capsys
):
    path = str(scan(make_volume, tmp_path / "in" / "a.h5", size, spacing))
    made = slice_file(path, str(tmp_path / "out"), *KNOBS, ckpt_dir=trained)
    kept = spacing if covering == size else (5.0, 4.0)
    found = columns(made)
    assert read_header(made).size == covering
    np.testing.assert_allclose(found["spacing"], [kept] * 3, rtol=1e-5)
    for image in found["image"][:, 0]:
        np.testing.assert_allclose(image, blob(covering, kept), atol=0.02)
    assert ("rescaled from pixels of" in capsys.readouterr().out) == (covering != size)


def test_pixels_of_older_weights_and_of_scans_without_a_header_stay(tmp_path, make_volume, trained):
    path = str(make_volume(tmp_path / "in" / "a.h5", header=False))
    assert read_header(slice_file(path, str(tmp_path / "out"), *KNOBS, ckpt_dir=trained)).size == (32, 32)
    write_state({"preparation": {}}, Path(trained) / BEST)
    path = str(scan(make_volume, tmp_path / "other" / "b.h5", (64, 64), (2.5, 2.0)))
    assert read_header(slice_file(path, str(tmp_path / "out"), *KNOBS, ckpt_dir=trained)).size == (64, 64)


def test_second_time_nothing_is_done_and_other_noise_is_made_anew(tmp_path, make_volume):
    path, out = str(make_volume(tmp_path / "in" / "file1.h5")), str(tmp_path / "out")
    made = slice_file(path, out, *KNOBS)
    first = Path(made).stat().st_ino
    assert slice_file(path, out, *KNOBS) == made
    assert Path(made).stat().st_ino == first
    assert slice_file(path, out, 2.0, CENTER, 0.1) == made
    assert read_header(made).sigma == 0.1


def test_name_of_the_input_stays_outside(tmp_path, make_volume):
    path, out = make_volume(tmp_path / "in" / "SECRETNAME.h5"), tmp_path / "out"
    made = slice_file(str(path), str(out), *KNOBS)
    assert Path(made) == out / f"{Pseudonyms(default_salt(0)).of('input', 'SECRETNAME.h5')}_slices.h5"
    assert len(list(out.iterdir())) == 2
    for file in out.iterdir():
        assert "SECRET" not in file.name
        assert b"SECRET" not in file.read_bytes()


def test_folder_of_volumes(tmp_path, make_volume):
    for i in range(2):
        make_volume(tmp_path / "in" / f"file{i}.h5", seed=i)
    assert read_header(slice_file(str(tmp_path / "in"), str(tmp_path / "out"), *KNOBS)).n == 6


def test_what_is_no_volume_is_refused(tmp_path):
    (tmp_path / "notes.h5").write_text("not HDF5")
    with pytest.raises(PrepError):
        slice_file(str(tmp_path / "notes.h5"), str(tmp_path / "out"), *KNOBS)


def test_broken_volume_of_a_folder_is_left_out_and_told_at_the_end(tmp_path, make_volume):
    make_volume(tmp_path / "in" / "SECRET.h5")
    (tmp_path / "in" / "bad.h5").write_text("not HDF5")
    for _ in range(2):  # the second time nothing is prepared anew
        made = slice_file(str(tmp_path / "in"), str(tmp_path / "out"), *KNOBS)
        assert read_header(made).n == 3
        with pytest.raises(PrepError, match="1 of 2 sources failed and were not reconstructed: not an HDF5 file") as caught:
            raise_failures(made)
        assert "SECRET" not in str(caught.value)


def test_no_failure_is_no_error(tmp_path, make_volume):
    raise_failures(slice_file(str(make_volume(tmp_path / "in" / "a.h5")), str(tmp_path / "out"), *KNOBS))


@pytest.mark.filterwarnings("ignore:the weights in .* were trained with:UserWarning")
def test_good_volumes_are_reconstructed_before_the_error(tmp_path, make_volume):
    Parts(write_slices(tmp_path / "train.h5", size=(32, 32))).checkpoints(tmp_path / "models").save_best(1.0, 1)
    good = make_volume(tmp_path / "in" / "good.h5")
    (tmp_path / "in" / "cut.h5").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    with pytest.raises(RuntimeError) as caught:
        execute(workflow(["inference.json"], tmp_path, tmp_path / "in", ""))
    assert "PrepError: 1 of 2 sources failed and were not reconstructed: truncated HDF5 file" in causes(caught.value)
    found = columns(tmp_path / "eval" / "reconstructions.h5")
    assert found["reconstruction"].shape == (3, 2, 32, 32)
    (subject,) = set(found["volume"])
    assert (tmp_path / "eval" / f"{subject}_reconstruction.nii.gz").exists()


@pytest.mark.filterwarnings("ignore:the weights in .* were trained with:UserWarning")
def test_volume_in_reconstructions_out(tmp_path, make_volume):
    """`python -m monai.bundle run --config_file configs/inference.json --data_file VOLUME`, in this process."""
    train = write_slices(tmp_path / "train.h5", size=(32, 32))
    Parts(train).checkpoints(tmp_path / "models").save_best(1.0, 1)
    volume = make_volume(tmp_path / "in" / "file1.h5", scale=50.0)
    execute(workflow(["inference.json"], tmp_path, volume, ""))
    out = tmp_path / "eval"
    found, target = columns(out / "reconstructions.h5"), columns(volume)["reconstruction_esc"]
    assert found["reconstruction"].shape == (3, 2, 32, 32)
    (subject,) = set(found["volume"])
    result = nifti(out / f"{subject}_reconstruction.nii.gz")
    assert result.shape == target.shape
    shares = np.linalg.norm(result - target, axis=(1, 2)) / np.linalg.norm(target, axis=(1, 2))
    assert (shares < 0.5).all()  # the scanner's own units and the right slices, though nothing was trained
    assert (out / f"{subject}_spread.nii.gz").exists()
