"""Reconstructions on the disk: raw units, spacing, one file for each subject, whole or not at all."""

import shutil
import tracemalloc
from types import SimpleNamespace

import h5py
import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from tiny import Parts, names, write_slices

from es_medical.data import SliceDataset
from es_medical.engine.evaluator import Evaluator
from es_medical.output.saving import SaveReconstructions

SIZE, SCALE, OFFSET, SPACING = (16, 24), 40.0, 3.0, (1.5, 0.75)


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("saving") / "slices.h5"
    return write_slices(path, size=SIZE, scale=(SCALE, OFFSET), spacing=SPACING)


@pytest.fixture(scope="module")
def saved(data_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return reconstruct(data_file, folder / "deep" / "folder"), folder / "deep" / "folder"


def reconstruct(data_file, folder, batch_size=2, split=None):
    """Write all reconstructions; returns what the network gave, (N, 2, H, W)."""
    parts = Parts(data_file, equivariant=False)
    dataset = SliceDataset(data_file, split, with_image=False)
    kept = []
    handlers = [SaveReconstructions(folder, dataset)]
    loader = torch.utils.data.DataLoader(dataset, batch_size)
    engine = Evaluator("cpu", loader, parts.network, parts.inferer, parts.physics, handlers)
    engine.add_event_handler("ITERATION_COMPLETED", lambda engine: kept.append(engine.state.output))
    engine.run()
    return torch.cat([one.image for one in kept]), torch.cat([one.spread for one in kept])


def test_hdf5_holds_every_slice_in_the_order_of_the_file(saved, data_file):
    (image, spread), folder = saved
    with h5py.File(folder / "reconstructions.h5") as file, h5py.File(data_file) as source:
        np.testing.assert_array_equal(file["reconstruction"][()], image.numpy())
        np.testing.assert_array_equal(file["spread"][()], spread.numpy())
        for name in ("id", "subject"):
            assert file[name].asstr()[()].tolist() == source[name].asstr()[()].tolist()
        for name in ("slice", "scale", "spacing"):
            np.testing.assert_array_equal(file[name][()], source[name][()])
        assert file["heldout"].shape == (9,)
        assert np.isfinite(file["heldout"][()]).all()


def test_nifti_holds_magnitudes_in_raw_units(saved):
    (image, spread), folder = saved
    volume = nib.load(folder / "train0_reconstruction.nii.gz")
    assert volume.shape == (24, 16, 2)  # x along the columns, y along the rows
    expected = image[:2].square().sum(1).sqrt() * SCALE + OFFSET
    np.testing.assert_allclose(volume.get_fdata(), expected.permute(2, 1, 0).numpy(), rtol=1e-5)
    deviation = nib.load(folder / "train0_spread.nii.gz").get_fdata()
    expected = spread[:2].square().sum(1).sqrt() * SCALE  # a spread has no offset
    np.testing.assert_allclose(deviation, expected.permute(2, 1, 0).numpy(), rtol=1e-5)
    assert volume.get_data_dtype() == np.float32


def test_nifti_has_the_spacing_of_its_axes(saved):
    _, folder = saved
    volume = nib.load(folder / "test3_reconstruction.nii.gz")
    assert volume.header.get_zooms()[:2] == (0.75, 1.5)  # columns, rows
    assert nib.aff2axcodes(volume.affine) == ("L", "P", "S")  # nominal: columns to the left, rows to the back
    assert b"nominal orientation" in volume.header["descrip"].item()


def test_every_subject_has_its_volumes(saved):
    _, folder = saved
    subjects = ["train0", "train1", "val2", "test3", "test4"]
    expected = {f"{subject}_{kind}.nii.gz" for subject in subjects for kind in ("reconstruction", "spread")}
    assert names(folder) == expected | {"reconstructions.h5"}
    assert nib.load(folder / "test4_reconstruction.nii.gz").shape == (24, 16, 1)


def test_slices_of_a_volume_are_in_order_whatever_the_file_has(tmp_path):
    """The rows of train0 are swapped: slice 1 stands first."""
    data_file = write_slices(tmp_path / "slices.h5", size=SIZE)
    image, _ = reconstruct(data_file, tmp_path / "a")
    swapped = shutil.copy(data_file, tmp_path / "swapped.h5")
    with h5py.File(swapped, "r+") as file:
        file["slice"][:2] = [1, 0]
    reconstruct(swapped, tmp_path / "b")
    volumes = [nib.load(tmp_path / name / "train0_reconstruction.nii.gz").get_fdata() for name in "ab"]
    np.testing.assert_array_equal(volumes[0][..., ::-1], volumes[1])
    assert not np.array_equal(volumes[0], volumes[1])
    expected = image[:2].square().sum(1).sqrt().permute(2, 1, 0)
    np.testing.assert_allclose(volumes[0], expected.numpy(), rtol=1e-5)


def test_unknown_spacing_is_one_millimetre(tmp_path):
    reconstruct(write_slices(tmp_path / "slices.h5", size=SIZE), tmp_path / "out", split="test")
    assert nib.load(tmp_path / "out" / "test3_reconstruction.nii.gz").header.get_zooms() == (1, 1, 1)


def test_batch_size_does_not_change_what_is_written(data_file, saved, tmp_path):
    (image, _), _ = saved
    again, _ = reconstruct(data_file, tmp_path, batch_size=5)
    torch.testing.assert_close(again, image, rtol=1e-4, atol=1e-6)


def test_an_interrupted_write_leaves_the_old_files(data_file, tmp_path, monkeypatch):
    reconstruct(data_file, tmp_path, split="test")
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}

    def half(image, path):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(nib, "save", half)
    with pytest.raises(RuntimeError, match="2 of 2 volumes.*test3: OSError: no space.*test4: OSError") as caught:
        reconstruct(data_file, tmp_path, split="test")
    assert isinstance(caught.value.__cause__, OSError)
    for name, content in before.items():
        if name.endswith(".nii.gz"):
            assert (tmp_path / name).read_bytes() == content
    with h5py.File(tmp_path / "reconstructions.h5") as file:
        assert file["reconstruction"].shape[0] == 3


def test_missing_slice_is_a_gap_and_a_second_volume_a_file_of_its_own(tmp_path):
    data_file = write_slices(tmp_path / "slices.h5", size=SIZE)
    with h5py.File(data_file, "r+") as file:
        file["slice"][:2] = [1, 3]  # train0: slice 2 is missing
        file["subject"][2:4] = [file["subject"][4]] * 2  # train1 becomes a second volume of val2
    reconstruct(data_file, tmp_path / "out")
    gap = nib.load(tmp_path / "out" / "train0_reconstruction.nii.gz").get_fdata()
    assert gap.shape[2] == 3
    assert np.isnan(gap[..., 1]).all()
    assert np.isfinite(gap[..., [0, 2]]).all()
    assert {"val2_reconstruction.nii.gz", "val2_2_reconstruction.nii.gz"} <= names(tmp_path / "out")


def test_two_scans_of_one_patient_are_two_volumes(tmp_path):
    """Their slice numbers need not overlap: the slice file says which volume a slice is of."""
    from es_medical.output.columns import by_volume

    subjects, volumes = np.array([b"one"] * 3), np.array([b"first", b"first", b"second"])
    columns = {"subject": subjects, "volume": volumes, "slice": np.array([8, 9, 10])}
    assert {name: rows.tolist() for name, rows in by_volume(columns).items()} == {"first": [0, 1], "second": [2]}
    unknown = columns | {"volume": np.array([b"", b"", b""])}
    assert {name: rows.tolist() for name, rows in by_volume(unknown).items()} == {"one": [0, 1, 2]}


def save_one_by_one(folder, path, rows):
    """Runs the handler over slices in this order; the image of row 3 is 3 everywhere."""
    dataset = SliceDataset(path)

    def reconstruct(engine, batch):
        value = float(batch["index"][0])
        if value < 0:
            raise FloatingPointError("no number")
        image = torch.from_numpy(np.full((1, 2, *dataset.header.size), value, np.float32))
        return SimpleNamespace(image=image, spread=image / 10, heldout=image[:, 0, 0, 0])

    engine = Engine(reconstruct)
    SaveReconstructions(folder, dataset).attach(engine)
    engine.run([{"index": torch.tensor([row])} for row in rows])


def test_slices_in_another_order_are_written_in_that_of_the_file(data_file, tmp_path):
    save_one_by_one(tmp_path, data_file, [2, 0, 1, 8, 7, 6, 3, 5, 4])
    with h5py.File(tmp_path / "reconstructions.h5") as file, h5py.File(data_file) as source:
        assert file["reconstruction"][:, 0, 0, 0].tolist() == file["heldout"][()].tolist() == list(range(9))
        assert file["id"][()].tolist() == source["id"][()].tolist()


def test_a_reconstruction_that_stops_leaves_no_file(data_file, tmp_path):
    with pytest.raises(FloatingPointError, match="no number"):
        save_one_by_one(tmp_path / "out", data_file, [0, 1, -1])
    assert names(tmp_path / "out") == set()


def test_images_do_not_stay_in_memory(tmp_path):
    path = write_slices(tmp_path / "slices.h5", size=(64, 64), splits={"train": 0, "val": 0, "test": 60})
    tracemalloc.start()
    save_one_by_one(tmp_path / "out", path, range(60))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (tmp_path / "out" / "reconstructions.h5").stat().st_size / 4  # image and spread, 3.9 MB
