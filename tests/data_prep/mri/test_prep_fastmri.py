import errno
import fcntl
import json
import os

import h5py
import numpy as np
import pytest
import torch
from columns import stored

from data_prep.mri import fastmri as command
from es_medical.data import SliceDataset, read_header
from es_medical.physics import MRI, gaussian_line_mask


def subjects_by_split(path):
    found = {}
    for split, subject in zip(*stored(path, "split", "subject"), strict=True):
        found.setdefault(split, set()).add(subject)
    return found


def items(path, **arguments):
    return {item["id"]: item for item in SliceDataset(path, **arguments)}


@pytest.fixture
def folder(tmp_path, make_volume):
    for i in range(4):
        make_volume(tmp_path / "raw" / f"file{i}.h5", seed=i)
    return tmp_path / "raw"


def test_what_is_no_readable_file_is_listed(tmp_path, folder, prep, monkeypatch):
    (folder / "gone.h5").symlink_to(tmp_path / "nowhere.h5")
    (folder / "loop.h5").symlink_to("loop.h5")
    (folder / "dir.h5").mkdir()
    (folder / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    result = prep("fastmri", folder, tmp_path / "out.h5", code=1)
    assert "done 4 · skipped 1 · failed 3" in result.stdout
    causes = {"gone.h5": "broken link", "loop.h5": "broken link", "dir.h5": "a folder", "closed": "Permission denied"}
    for name, cause in causes.items():
        assert any(name in line and cause in line for line in result.stdout.splitlines())


def test_linked_folders_are_followed_once(tmp_path, folder, make_volume, prep):
    make_volume(tmp_path / "elsewhere" / "linked.h5", seed=9)
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(folder)
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert "done 5 · skipped 1 · failed 0" in result.stdout
    assert "already looked at under another name" in result.stdout


# A4: undersampled file without reconstruction
def test_undersampled_file_is_never_taken_for_ground_truth(tmp_path, folder, make_volume, prep):
    make_volume(folder / "challenge.h5", seed=9, keys=(), mask=np.arange(48) % 2)
    with h5py.File(make_volume(folder / "no_mask.h5", seed=8, keys=()), "r+") as file:
        file["kspace"][..., 10:14] = 0
    result = prep("fastmri", folder, tmp_path / "out.h5", code=1)
    assert "done 4 · skipped 1 · failed 1" in result.stdout
    lines = result.stdout.splitlines()
    assert any("challenge.h5" in line and "undersampled" in line and "skipped" in line for line in lines)
    assert any("no_mask.h5" in line and "4 of 48 encoded columns are empty" in line for line in lines)


# A5: which reconstruction was used
def test_both_reconstruction_keys_are_found_and_recorded(tmp_path, make_volume, prep):
    make_volume(tmp_path / "raw" / "a.h5", seed=1, keys=("reconstruction_esc", "reconstruction_rss"))
    make_volume(tmp_path / "raw" / "b.h5", seed=2, keys=("reconstruction_rss",))
    make_volume(tmp_path / "raw" / "c.h5", seed=3, keys=())
    result = prep("fastmri", tmp_path / "raw", tmp_path / "out.h5")
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    targets = sorted(entry["target"] for entry in manifest["sources"])
    assert targets == ["ifft(kspace)", "reconstruction_esc", "reconstruction_rss"]
    assert "ground truth from reconstruction_esc: 1 volumes" in result.stdout


def test_asking_for_a_missing_reconstruction_names_what_is_there(tmp_path, folder, prep):
    result = prep("fastmri", folder / "file0.h5", tmp_path / "out.h5", "--target", "rss", code=1)
    assert "no dataset reconstruction_rss (found: ismrmrd_header, kspace, reconstruction_esc)" in result.stdout


# A12: the coil axis is told by the rank
@pytest.mark.parametrize("coils", ["single", "multi"])
def test_wrong_kind_of_kspace_is_a_clear_error(tmp_path, make_volume, prep, coils):
    rng = np.random.default_rng(0)
    k = rng.standard_normal((2, 3, 64, 48) if coils == "single" else (2, 64, 48)).astype(np.complex64)
    make_volume(tmp_path / "raw" / "a.h5", n=2, kspace=k, keys=())
    result = prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", "--coils", coils, code=1)
    other = {"single": "multi", "multi": "single"}[coils]
    assert f"is {other}-coil, expected {coils}-coil: give --coils {other}" in result.stdout


def test_multi_coil_target_is_the_root_sum_of_squares_over_coils(tmp_path, make_volume, prep):
    path = make_volume(tmp_path / "one.h5", n=2)
    with h5py.File(path) as file:
        k, expected = file["kspace"][()], file["reconstruction_esc"][1]
    weights = np.array([0.6, 0.8j, 0.0], np.complex64)[None, :, None, None]
    make_volume(tmp_path / "multi.h5", n=2, kspace=weights * k[:, None], keys=())
    prep("fastmri", tmp_path / "multi.h5", tmp_path / "out.h5", "--coils", "multi")
    (item,) = items(tmp_path / "out.h5").values()
    raw = item["image"][0].double() * item["scale"] + item["offset"]
    assert torch.allclose(raw, torch.from_numpy(expected).double(), atol=1e-5)


def test_real_multi_coil_file(tmp_path, shared_data, prep):
    source = shared_data / "kspace" / "fastmri_layout" / "multicoil_brain.h5"
    prep("fastmri", source, tmp_path / "out.h5", "--coils", "multi")
    header = read_header(tmp_path / "out.h5")
    assert (header.n, header.size) == (1, (230, 180))
    assert int(header.mask.sum()) == round(180 / 8)
    with h5py.File(source) as file, h5py.File(tmp_path / "out.h5") as out:
        scale, offset = out["scale"][0]
        assert np.allclose(out["image"][0, 0] * scale + offset, file["reconstruction_rss"][0], atol=1e-6)
        assert out["spacing"][0].tolist() == [1.0, 1.0]


# A14: small values
def test_result_does_not_depend_on_the_input_scale_and_the_scale_inverts(tmp_path, make_volume, prep):
    results = []
    for name, scale in (("a", 1.0), ("b", 1e-5)):
        path = make_volume(tmp_path / name / "same.h5", scale=scale)
        prep("fastmri", path, tmp_path / name / "out.h5")
        (item,) = items(tmp_path / name / "out.h5").values()
        with h5py.File(path) as file:
            raw = file["reconstruction_esc"][1].astype(np.float64)
        found = item["image"][0].double().numpy() * float(item["scale"]) + float(item["offset"])
        assert np.abs(found - raw).max() < 1e-6 * raw.max()
        results.append(item)
    assert torch.allclose(results[0]["image"], results[1]["image"], atol=1e-6)
    assert torch.allclose(results[0]["data_range"], results[1]["data_range"], atol=1e-6)
    assert results[0]["image"].min() == 0
    assert results[0]["image"].max() == 1


# A15: mixed sizes
def test_mixed_widths_collate(tmp_path, make_volume, prep):
    make_volume(tmp_path / "raw" / "a.h5", seed=1, width=48)
    make_volume(tmp_path / "raw" / "b.h5", seed=2, width=44, keys=())
    prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", "--slices", "all")
    batch = next(iter(torch.utils.data.DataLoader(SliceDataset(tmp_path / "out.h5"), batch_size=4)))
    assert batch["image"].shape == (4, 2, 32, 32)


def test_targets_of_different_sizes_become_320(tmp_path, make_volume, prep):
    make_volume(tmp_path / "raw" / "a.h5", seed=1)
    make_volume(tmp_path / "raw" / "b.h5", seed=2, keys=(), header=False)  # its size is fastMRI's
    with h5py.File(make_volume(tmp_path / "raw" / "c.h5", seed=3, keys=()), "r+") as file:
        file["reconstruction_esc"] = np.abs(np.random.default_rng(0).standard_normal((3, 30, 40)))
    prep("fastmri", tmp_path / "raw", tmp_path / "out.h5")
    assert read_header(tmp_path / "out.h5").size == (320, 320)
    prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", "--size", 24)
    assert read_header(tmp_path / "out.h5").size == (24, 24)


def test_noise_differs_between_slices_and_seeds_and_the_mask_is_one(tmp_path, folder, prep):
    noise = {}
    for seed in (0, 1):
        prep("fastmri", folder, tmp_path / f"{seed}.h5", "--seed", seed, "--sigma", 0.1)
        header = read_header(tmp_path / f"{seed}.h5")
        assert torch.equal(header.mask, gaussian_line_mask(32, 8, 0.03, seed))
        physics = MRI(header.mask, header.size)
        noise[seed] = [
            item["measurement"] - physics.A(item["image"][None])[0] for item in items(tmp_path / f"{seed}.h5").values()
        ]
        assert all((n[..., ~header.mask] == 0).all() for n in noise[seed])
        assert all(abs(float(n[..., header.mask].std()) - 0.1) < 0.02 for n in noise[seed])
    assert not torch.equal(noise[0][0], noise[0][1])
    assert not torch.equal(read_header(tmp_path / "0.h5").mask, read_header(tmp_path / "1.h5").mask)


# A18: orientation
def test_computed_target_equals_the_stored_reconstruction(tmp_path, make_volume, prep):
    make_volume(tmp_path / "stored.h5")
    make_volume(tmp_path / "computed.h5", keys=())
    for name in ("stored", "computed"):
        prep("fastmri", tmp_path / f"{name}.h5", tmp_path / f"{name}_out.h5", "--slices", "all")
    a, b = (SliceDataset(tmp_path / f"{name}_out.h5") for name in ("stored", "computed"))
    for left, right in zip(a, b, strict=False):
        assert torch.allclose(left["image"], right["image"], atol=1e-5)


# A19: split by subject
def test_a_patient_is_one_subject_however_the_number_is_stored(tmp_path, make_volume, prep):
    numbers = ("7", b"7", 7, 7.0, np.int64(7), np.float32(7), np.array([7]), np.array([7.0]), np.array([b"7"]), "7 ")
    for i, number in enumerate(numbers):
        make_volume(tmp_path / "raw" / f"{i}.h5", seed=i, patient=number)
    make_volume(tmp_path / "raw" / "other.h5", seed=99, patient="8")
    prep("fastmri", tmp_path / "raw", tmp_path / "out.h5")
    assert len(set.union(*subjects_by_split(tmp_path / "out.h5").values())) == 2


@pytest.mark.parametrize("measurements", ["synthetic", "real"])
def test_volumes_of_a_patient_stay_on_one_side(tmp_path, make_volume, prep, measurements):
    for i in range(12):
        make_volume(tmp_path / "raw" / f"{i}.h5", seed=i, patient=f"patient {i // 2}")
    options = ("--measurements", measurements, "--slices", "all", "--train", 0.5, "--test", 0.5)
    prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", *options)
    found = subjects_by_split(tmp_path / "out.h5")
    assert set(found) == {"train", "val", "test"}
    assert sum(len(subjects) for subjects in found.values()) == len(set.union(*found.values())) == 6


# A20: NaN, no slices, no header, empty folder
@pytest.mark.parametrize("name", ["kspace", "reconstruction_esc"])
def test_nan_is_an_error_that_names_file_and_slice(tmp_path, folder, make_volume, prep, name):
    with h5py.File(make_volume(folder / "nan.h5", seed=9), "r+") as file:
        file[name][1, 5, 5] = np.nan
    result = prep("fastmri", folder, tmp_path / "out.h5", code=1)
    assert any("nan.h5" in line and f"{name} slice 1 holds NaN" in line for line in result.stdout.splitlines())
    assert read_header(tmp_path / "out.h5").n == 4


def test_missing_header_leaves_the_spacing_unknown(tmp_path, make_volume, prep):
    for header in (True, False):
        make_volume(tmp_path / "a.h5", header=header)
        prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5")
        spacing = stored(tmp_path / "out.h5", "spacing")[0]
        assert np.array_equal(spacing, [5, 4] if header else [np.nan, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda f: (f.__delitem__("kspace"), f.create_group("kspace/0")),
         "kspace is a group of 1 other, expected a dataset of numbers"),
        (lambda f: (f.__delitem__("kspace"), f.create_dataset("kspace", (3, 64, 48), [("real", "f4"), ("phase", "f4")])),
         "kspace has 2 fields, expected complex numbers, or the fields real and imag, or re and im, or r and i"),
        (lambda f: (f.__delitem__("kspace"), f.create_dataset("kspace", data=h5py.Empty("c8"))),
         "is rank 0, expected single-coil"),
        (lambda f: (f.__delitem__("reconstruction_esc"), f.create_group("reconstruction_esc")),
         "reconstruction_esc is a group of nothing, expected a dataset of numbers"),
        (lambda f: f.__delitem__("kspace"), "no dataset kspace (found: ismrmrd_header, reconstruction_esc)"),
        (lambda f: f["reconstruction_esc"].__setitem__(..., 0), "every chosen slice is constant (slice 1: 0)"),
        (lambda f: f["reconstruction_esc"].__setitem__((0, 0, 0), -1), "negative values (down to -1)"),
        (lambda f: (f.__delitem__("reconstruction_esc"), f.create_dataset("reconstruction_esc", data=np.ones((2, 8, 8)))),
         "reconstruction_esc has shape (2, 8, 8), expected (slices, rows, columns) with 3 slices"),
    ],
)  # fmt: skip
def test_file_that_contradicts_itself_is_an_error(tmp_path, make_volume, prep, change, cause):
    with h5py.File(make_volume(tmp_path / "a.h5"), "r+") as file:
        change(file)
    assert cause in prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", code=1).stdout


# E12: the paper's data, and no stale measurements
def test_synthetic_setting_is_the_papers(tmp_path, folder, prep):
    prep("fastmri", folder, tmp_path / "out.h5")
    header = read_header(tmp_path / "out.h5")
    assert (header.sigma, header.acceleration, header.center_fraction, header.seed) == (0.005, 8, 0.03, 0)
    assert header.configuration["slices"] == "middle"
    assert header.configuration["normalise"] == "slice"
    for item in items(tmp_path / "out.h5").values():
        assert (item["image"][1] == 0).all()
        assert (float(item["image"].min()), float(item["image"].max())) == (0, 1)
        assert item["data_range"] >= 1  # of the volume, in the slice's units (F1)


def test_volume_range_is_the_volumes_maximum_in_stored_units(tmp_path, make_volume, prep):
    with h5py.File(make_volume(tmp_path / "a.h5", n=2), "r+") as file:
        file["reconstruction_esc"][1] *= 0.1
        minimum = file["reconstruction_esc"][()].min()
        maxima = [file["reconstruction_esc"][i].max() for i in (0, 1)]
    prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5")
    (item,) = items(tmp_path / "out.h5").values()
    assert float(item["data_range"] * item["scale"] + item["offset"]) == pytest.approx(maxima[0], rel=1e-6)
    prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", "--normalise", "volume")
    (item,) = items(tmp_path / "out.h5").values()
    assert float(item["data_range"]) == 1
    assert float(item["image"].max()) == pytest.approx((maxima[1] - minimum) / (maxima[0] - minimum), rel=1e-4)


def test_impossible_mask_is_an_error_before_anything_is_written(tmp_path, folder, prep):
    result = prep("fastmri", folder, tmp_path / "out.h5", "--center-fraction", 0.5, code=1)
    assert "exceeds the 4 lines that acceleration 8 leaves" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_slice_files_among_the_volumes_are_skipped_and_unexpected_errors_are_named(tmp_path, folder, prep, monkeypatch):
    prep("fastmri", folder, folder / "slices.h5")
    assert "a slice file of es_medical, not raw data" in prep("fastmri", folder, tmp_path / "out.h5").stdout
    inspect = command.inspect
    monkeypatch.setattr(command, "inspect", lambda path, *rest: inspect(path, *rest) if path.stem != "file1" else 1 / 0)
    assert "unexpected ZeroDivisionError" in prep("fastmri", folder, tmp_path / "out.h5", "--overwrite", code=1).stdout
    assert read_header(tmp_path / "out.h5").n == 3


# --- data in other files, locks and filters


def lead_to(path, source, link):
    """A file of the layout whose k-space and images lie in another one."""
    with h5py.File(source) as file, h5py.File(path, "w") as out:
        for name in ("kspace", "reconstruction_esc"):
            data = file[name]
            layout = h5py.VirtualLayout(data.shape, data.dtype)
            layout[...] = h5py.VirtualSource(os.fspath(source), name, data.shape)
            if link:
                out[name] = h5py.ExternalLink(os.fspath(source), name)
            else:
                out.create_virtual_dataset(name, layout)
    return path


@pytest.mark.parametrize("link", [True, False])
def test_data_in_another_file_are_read_once_belong_to_the_digest_and_are_missed(link, tmp_path, folder, make_volume, prep):
    elsewhere = make_volume(tmp_path / "elsewhere" / "data.h5", seed=7)
    lead_to(folder / "leads.h5", elsewhere, link)
    lead_to(folder / "copy.h5", folder / "file0.h5", link)
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert "done 5 · skipped 1 · failed 0" in result.stdout
    assert any(
        "file0.h5" in line and "a part of another file, which leads to it" in line for line in result.stdout.splitlines()
    )
    make_volume(elsewhere, seed=8)
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert "up to date" not in result.stdout
    elsewhere.unlink()
    result = prep("fastmri", folder, tmp_path / "out.h5", code=1)
    assert "done 4 · skipped 1 · failed 1" in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if "leads.h5" in line)
    assert "a part of its data lies in another file, and another file is missing" in line
    assert "data.h5" in line
    assert "data.h5" not in (tmp_path / "out.manifest.json").read_text()


def test_locked_files_and_missing_filters_are_not_called_damaged(tmp_path, folder, prep, monkeypatch):
    numbers = {"kspace": 32013}
    with h5py.File(folder / "file1.h5", "r+") as file:
        k = file["kspace"][()]
        del file["kspace"]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(k.shape)
        properties.set_filter(numbers["kspace"], h5py.h5z.FLAG_OPTIONAL, ())
        space, kind = h5py.h5s.create_simple(k.shape), h5py.h5t.py_create(k.dtype)
        h5py.h5d.create(file.id, b"kspace", kind, space, properties).write_direct_chunk((0, 0, 0), bytes(8))
    available = h5py.h5z.filter_avail
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: code != numbers["kspace"] and available(code))
    with (folder / "file0.h5").open("rb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)  # as HDF5 does in a program that writes
        said = prep("fastmri", folder, tmp_path / "locked.h5", code=1).stdout
    assert any("file0.h5" in line and "locked: another program has it open for writing" in line for line in said.splitlines())
    result = prep("fastmri", folder, tmp_path / "out.h5", code=1)
    assert "kspace slice 1 is compressed by ZFP (32013), which is not installed: pip install hdf5plugin" in result.stdout
    assert "done 3 · skipped 0 · failed 1" in result.stdout
