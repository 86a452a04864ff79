import errno
import json
import os

import h5py
import numpy as np
import pytest
import torch

from data_prep.mri import fastmri as command
from es_medical.data import SliceDataset, file_digest, read_header
from es_medical.physics import MRI, gaussian_line_mask


def subjects_by_split(path):
    with h5py.File(path) as file:
        pairs = zip(file["split"].asstr()[:], file["subject"].asstr()[:], strict=True)
        found = {}
        for split, subject in pairs:
            found.setdefault(split, set()).add(subject)
        return found


def items(path, **arguments):
    return {item["id"]: item for item in SliceDataset(path, **arguments)}


def same_items(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(a[key]["measurement"], b[key]["measurement"]) and torch.equal(a[key]["image"], b[key]["image"]) for key in a
    )


@pytest.fixture
def folder(tmp_path, make_volume):
    for i in range(4):
        make_volume(tmp_path / "raw" / f"file{i}.h5", seed=i)
    return tmp_path / "raw"


# A1: one bad file never stops the others
def test_truncated_and_false_files_are_named_and_the_others_go_on(tmp_path, folder, prep):
    whole = (folder / "file0.h5").read_bytes()
    (folder / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (folder / "page.h5").write_text("<!DOCTYPE html><html>403</html>")
    (folder / "empty.h5").write_bytes(b"")
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert result.exit_code == 1
    assert "done 4 · skipped 0 · failed 3" in result.stdout
    for name, cause in (("cut.h5", "truncated HDF5"), ("page.h5", "not an HDF5 file"), ("empty.h5", "empty file (0 bytes)")):
        assert any(name in line and cause in line for line in result.stdout.splitlines())
    assert read_header(tmp_path / "out.h5").n == 4
    assert not list(tmp_path.glob(".*"))


def test_failures_are_reported_again_by_a_run_that_is_up_to_date(tmp_path, folder, prep):
    (folder / "page.h5").write_text("<html>")
    assert prep("fastmri", folder, tmp_path / "out.h5").exit_code == 1
    again = prep("fastmri", folder, tmp_path / "out.h5")
    assert again.exit_code == 1
    assert "up to date" in again.stdout
    assert "page.h5" in again.stdout


def test_nothing_usable_is_an_error_and_leaves_nothing(tmp_path, prep):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "page.h5").write_text("<html>")
    result = prep("fastmri", tmp_path / "raw", tmp_path / "out.h5")
    assert result.exit_code == 1
    assert "no usable volume among 1 files" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


# A3: stray files
def test_stray_files_are_listed_and_ignored(tmp_path, folder, prep):
    for name in (".DS_Store", "file.h5.part", "notes.txt", "._file0.h5"):
        (folder / name).write_bytes(b"\0\5")
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert result.exit_code == 0
    assert "done 4 · skipped 4 · failed 0" in result.stdout


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
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert result.exit_code == 1
    assert "done 4 · skipped 1 · failed 3" in result.stdout
    causes = {"gone.h5": "broken link", "loop.h5": "broken link", "dir.h5": "a folder", "closed": "Permission denied"}
    for name, cause in causes.items():
        assert any(name in line and cause in line for line in result.stdout.splitlines())


def test_new_broken_link_is_told_by_a_run_that_would_be_up_to_date(tmp_path, folder, prep):
    prep("fastmri", folder, tmp_path / "out.h5")
    (folder / "gone.h5").symlink_to(tmp_path / "nowhere.h5")
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert result.exit_code == 1
    assert "broken link" in result.stdout


def test_linked_folders_are_followed_once(tmp_path, folder, make_volume, prep):
    make_volume(tmp_path / "elsewhere" / "linked.h5", seed=9)
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(folder)
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert result.exit_code == 0
    assert "done 5 · skipped 1 · failed 0" in result.stdout
    assert "already looked at under another name" in result.stdout


# A4: undersampled file without reconstruction
def test_undersampled_file_is_never_taken_for_ground_truth(tmp_path, folder, make_volume, prep):
    make_volume(folder / "challenge.h5", seed=9, keys=(), mask=np.arange(48) % 2)
    with h5py.File(make_volume(folder / "no_mask.h5", seed=8, keys=()), "r+") as file:
        file["kspace"][..., 10:14] = 0
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert result.exit_code == 1
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
    assert result.exit_code == 0
    manifest = json.loads((tmp_path / "out.manifest.json").read_text())
    targets = sorted(entry["target"] for entry in manifest["sources"])
    assert targets == ["ifft(kspace)", "reconstruction_esc", "reconstruction_rss"]
    assert "ground truth from reconstruction_esc: 1 volumes" in result.stdout


def test_asking_for_a_missing_reconstruction_names_what_is_there(tmp_path, folder, prep):
    result = prep("fastmri", folder / "file0.h5", tmp_path / "out.h5", "--target", "rss")
    assert result.exit_code == 1
    assert "no dataset reconstruction_rss (found: ismrmrd_header, kspace, reconstruction_esc)" in result.stdout


# A12: the coil axis is told by the rank
@pytest.mark.parametrize("coils", ["single", "multi"])
def test_wrong_kind_of_kspace_is_a_clear_error(tmp_path, make_volume, prep, coils):
    rng = np.random.default_rng(0)
    k = rng.standard_normal((2, 3, 64, 48) if coils == "single" else (2, 64, 48)).astype(np.complex64)
    make_volume(tmp_path / "raw" / "a.h5", n=2, kspace=k, keys=())
    result = prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", "--coils", coils)
    assert result.exit_code == 1
    other = {"single": "multi", "multi": "single"}[coils]
    assert f"is {other}-coil, expected {coils}-coil: give --coils {other}" in result.stdout


def test_multi_coil_target_is_the_root_sum_of_squares_over_coils(tmp_path, make_volume, prep):
    path = make_volume(tmp_path / "one.h5", n=2)
    with h5py.File(path) as file:
        k, expected = file["kspace"][()], file["reconstruction_esc"][1]
    weights = np.array([0.6, 0.8j, 0.0], np.complex64)[None, :, None, None]
    make_volume(tmp_path / "multi.h5", n=2, kspace=weights * k[:, None], keys=())
    assert prep("fastmri", tmp_path / "multi.h5", tmp_path / "out.h5", "--coils", "multi").exit_code == 0
    (item,) = items(tmp_path / "out.h5").values()
    raw = item["image"][0].double() * item["scale"] + item["offset"]
    assert torch.allclose(raw, torch.from_numpy(expected).double(), atol=1e-5)


def test_real_multi_coil_file(tmp_path, shared_data, prep):
    source = shared_data / "kspace" / "fastmri_layout" / "multicoil_brain.h5"
    assert prep("fastmri", source, tmp_path / "out.h5", "--coils", "multi").exit_code == 0
    header = read_header(tmp_path / "out.h5")
    assert (header.n, header.size) == (1, (230, 180))
    assert int(header.mask.sum()) == round(180 / 8)
    with h5py.File(source) as file, h5py.File(tmp_path / "out.h5") as out:
        scale, offset = out["scale"][0]
        assert np.allclose(out["image"][0, 0] * scale + offset, file["reconstruction_rss"][0], atol=1e-6)
        assert out["spacing"][0].tolist() == [1.0, 1.0]


# A13: the imaginary part is kept
def test_real_kspace_is_refused(tmp_path, make_volume, prep):
    make_volume(tmp_path / "a.h5", kspace=np.ones((3, 64, 48), np.float32))
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5")
    assert result.exit_code == 1
    assert "kspace is float32, expected complex" in result.stdout


# A14: small values
def test_result_does_not_depend_on_the_input_scale_and_the_scale_inverts(tmp_path, make_volume, prep):
    results = []
    for name, scale in (("a", 1.0), ("b", 1e-5)):
        path = make_volume(tmp_path / name / "same.h5", scale=scale)
        assert prep("fastmri", path, tmp_path / name / "out.h5").exit_code == 0
        (item,) = items(tmp_path / name / "out.h5").values()
        with h5py.File(path) as file:
            raw = file["reconstruction_esc"][1].astype(np.float64)
        stored = item["image"][0].double().numpy() * float(item["scale"]) + float(item["offset"])
        assert np.abs(stored - raw).max() < 1e-6 * raw.max()
        results.append(item)
    assert torch.allclose(results[0]["image"], results[1]["image"], atol=1e-6)
    assert torch.allclose(results[0]["data_range"], results[1]["data_range"], atol=1e-6)
    assert results[0]["image"].min() == 0
    assert results[0]["image"].max() == 1


# A15: mixed sizes
def test_mixed_widths_collate(tmp_path, make_volume, prep):
    make_volume(tmp_path / "raw" / "a.h5", seed=1, width=48)
    make_volume(tmp_path / "raw" / "b.h5", seed=2, width=44, keys=())
    assert prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", "--slices", "all").exit_code == 0
    batch = next(iter(torch.utils.data.DataLoader(SliceDataset(tmp_path / "out.h5"), batch_size=4)))
    assert batch["image"].shape == (4, 2, 32, 32)


def test_targets_of_different_sizes_become_320(tmp_path, make_volume, prep):
    make_volume(tmp_path / "raw" / "a.h5", seed=1)
    make_volume(tmp_path / "raw" / "b.h5", seed=2, keys=(), header=False)  # its size is fastMRI's
    with h5py.File(make_volume(tmp_path / "raw" / "c.h5", seed=3, keys=()), "r+") as file:
        file["reconstruction_esc"] = np.abs(np.random.default_rng(0).standard_normal((3, 30, 40)))
    assert prep("fastmri", tmp_path / "raw", tmp_path / "out.h5").exit_code == 0
    assert read_header(tmp_path / "out.h5").size == (320, 320)
    assert prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", "--size", 24).exit_code == 0
    assert read_header(tmp_path / "out.h5").size == (24, 24)


# A17: reproducible whatever the folder, order, worker count
def test_moved_folder_and_workers_give_the_same_slices(tmp_path, folder, prep):
    assert prep("fastmri", folder, tmp_path / "a.h5", "--slices", "all").exit_code == 0
    for i, path in enumerate(sorted(folder.glob("*.h5"), reverse=True)):
        (tmp_path / "elsewhere" / str(i)).mkdir(parents=True)
        path.rename(tmp_path / "elsewhere" / str(i) / f"renamed{i}.h5")
    assert prep("fastmri", tmp_path / "elsewhere", tmp_path / "b.h5", "--slices", "all", "--workers", 2).exit_code == 0
    assert same_items(items(tmp_path / "a.h5"), items(tmp_path / "b.h5"))
    assert subjects_by_split(tmp_path / "a.h5") == subjects_by_split(tmp_path / "b.h5")


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
        assert prep("fastmri", tmp_path / f"{name}.h5", tmp_path / f"{name}_out.h5", "--slices", "all").exit_code == 0
    a, b = (SliceDataset(tmp_path / f"{name}_out.h5") for name in ("stored", "computed"))
    for left, right in zip(a, b, strict=False):
        assert torch.allclose(left["image"], right["image"], atol=1e-5)


# A19: split by subject
def test_a_patient_is_one_subject_however_the_number_is_stored(tmp_path, make_volume, prep):
    numbers = ("7", b"7", 7, 7.0, np.int64(7), np.float32(7), np.array([7]), np.array([7.0]), np.array([b"7"]), "7 ")
    for i, number in enumerate(numbers):
        make_volume(tmp_path / "raw" / f"{i}.h5", seed=i, patient=number)
    make_volume(tmp_path / "raw" / "other.h5", seed=99, patient="8")
    assert prep("fastmri", tmp_path / "raw", tmp_path / "out.h5").exit_code == 0
    assert len(set.union(*subjects_by_split(tmp_path / "out.h5").values())) == 2


def test_volumes_of_a_patient_stay_on_one_side(tmp_path, make_volume, prep):
    for i in range(12):
        make_volume(tmp_path / "raw" / f"{i}.h5", seed=i, patient=f"patient {i // 2}")
    assert (
        prep("fastmri", tmp_path / "raw", tmp_path / "out.h5", "--slices", "all", "--train", 0.5, "--test", 0.5).exit_code == 0
    )
    found = subjects_by_split(tmp_path / "out.h5")
    assert set(found) == {"train", "val", "test"}
    assert sum(len(subjects) for subjects in found.values()) == len(set.union(*found.values())) == 6
    assert b"patient 1" not in (tmp_path / "out.h5").read_bytes()


# A20: NaN, no slices, no header, empty folder
@pytest.mark.parametrize("name", ["kspace", "reconstruction_esc"])
def test_nan_is_an_error_that_names_file_and_slice(tmp_path, folder, make_volume, prep, name):
    with h5py.File(make_volume(folder / "nan.h5", seed=9), "r+") as file:
        file[name][1, 5, 5] = np.nan
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert result.exit_code == 1
    assert any("nan.h5" in line and f"{name} slice 1 holds NaN" in line for line in result.stdout.splitlines())
    assert read_header(tmp_path / "out.h5").n == 4


def test_no_slices_is_an_error(tmp_path, make_volume, prep):
    make_volume(tmp_path / "a.h5", kspace=np.zeros((0, 64, 48), np.complex64), keys=())
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5")
    assert result.exit_code == 1
    assert "(0, 64, 48) holds no slices" in result.stdout


def test_missing_header_leaves_the_spacing_unknown(tmp_path, make_volume, prep):
    for header in (True, False):
        make_volume(tmp_path / "a.h5", header=header)
        assert prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5").exit_code == 0
        with h5py.File(tmp_path / "out.h5") as file:
            assert np.array_equal(file["spacing"][0], [5, 4] if header else [np.nan, np.nan], equal_nan=True)


def test_empty_or_missing_folder_is_an_error_with_the_searched_path(tmp_path, prep):
    (tmp_path / "raw").mkdir()
    result = prep("fastmri", tmp_path / "raw", tmp_path / "out.h5")
    assert result.exit_code == 1
    assert f"no .h5 file below {tmp_path / 'raw'}" in result.stderr
    assert f"no file or folder {tmp_path / 'gone'}" in prep("fastmri", tmp_path / "gone", tmp_path / "out.h5").stderr


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda f: (f.__delitem__("kspace"), f.create_group("kspace/0")),
         "kspace is a group of 1 other, expected a dataset of numbers"),
        (lambda f: (f.__delitem__("kspace"), f.create_dataset("kspace", (3, 64, 48), [("real", "f4"), ("imag", "f4")])),
         "kspace has the fields real, imag, expected plain numbers; HDF5 stores complex numbers as fields r, i"),
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
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5")
    assert result.exit_code == 1
    assert cause in result.stdout


# E12: the paper's data, and no stale measurements
def test_synthetic_setting_is_the_papers(tmp_path, folder, prep):
    assert prep("fastmri", folder, tmp_path / "out.h5").exit_code == 0
    header = read_header(tmp_path / "out.h5")
    assert (header.sigma, header.acceleration, header.center_fraction, header.seed) == (0.005, 8, 0.03, 0)
    assert header.configuration["slices"] == "middle"
    assert header.configuration["normalise"] == "slice"
    for item in items(tmp_path / "out.h5").values():
        assert (item["image"][1] == 0).all()
        assert (float(item["image"].min()), float(item["image"].max())) == (0, 1)
        assert item["data_range"] >= 1  # of the volume, in the slice's units (F1)


def test_changed_knob_makes_new_measurements_and_the_same_does_nothing(tmp_path, folder, prep):
    out = tmp_path / "out.h5"
    prep("fastmri", folder, out)
    first, stamp = file_digest(out), out.stat().st_mtime_ns
    assert "up to date" in prep("fastmri", folder, out).stdout
    assert out.stat().st_mtime_ns == stamp
    changed = prep("fastmri", folder, out, "--sigma", 0.1)
    assert "made anew: sigma 0.005 -> 0.1" in changed.stdout
    assert read_header(out).sigma == 0.1
    assert file_digest(out) != first
    prep("fastmri", folder, out)
    assert file_digest(out) == first


def test_changed_input_makes_the_file_anew(tmp_path, folder, make_volume, prep):
    prep("fastmri", folder, tmp_path / "out.h5")
    make_volume(folder / "file4.h5", seed=4)
    assert "up to date" not in prep("fastmri", folder, tmp_path / "out.h5").stdout
    assert read_header(tmp_path / "out.h5").n == 5


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


def test_nothing_that_identifies_leaves_the_terminal(tmp_path, make_volume, prep):
    make_volume(tmp_path / "SECRETFOLDER" / "SECRETNAME.h5", patient="SECRETPATIENT")
    (tmp_path / "SECRETFOLDER" / "SECRETBAD.h5").write_text("<SECRET>")
    (tmp_path / "SECRETFOLDER" / "SECRETNOTES.txt").write_text("x")
    prep("fastmri", tmp_path / "SECRETFOLDER", tmp_path / "out.h5", "--salt", "SECRETSALT", "--workers", 1)
    for path in tmp_path.glob("out.*"):
        content = path.read_bytes()
        assert b"SECRET" not in content
        assert str(tmp_path).encode() not in content
    assert len(list(tmp_path.glob("out.*"))) == 2


def test_salt_changes_ids_and_not_the_split_sizes(tmp_path, folder, prep):
    prep("fastmri", folder, tmp_path / "a.h5", "--salt", "one")
    prep("fastmri", folder, tmp_path / "b.h5", "--salt", "two")
    assert not items(tmp_path / "a.h5").keys() & items(tmp_path / "b.h5").keys()
    assert read_header(tmp_path / "a.h5").splits == read_header(tmp_path / "b.h5").splits
    assert "up to date" not in prep("fastmri", folder, tmp_path / "a.h5", "--salt", "two").stdout


def test_copies_of_a_file_are_counted_once(tmp_path, folder, prep):
    (folder / "copy.h5").write_bytes((folder / "file1.h5").read_bytes())
    result = prep("fastmri", folder, tmp_path / "out.h5")
    assert "done 4 · skipped 1" in result.stdout
    assert read_header(tmp_path / "out.h5").n == 4


def test_without_image_stores_no_ground_truth(tmp_path, folder, prep):
    prep("fastmri", folder, tmp_path / "with.h5")
    prep("fastmri", folder, tmp_path / "out.h5", "--without-image")
    a, b = items(tmp_path / "with.h5"), items(tmp_path / "out.h5")
    assert not read_header(tmp_path / "out.h5").has_image
    assert all(torch.equal(a[key]["measurement"], b[key]["measurement"]) for key in a)
    assert all(torch.isnan(item["data_range"]) for item in b.values())


def test_dry_run_writes_nothing(tmp_path, folder, prep):
    result = prep("fastmri", folder, tmp_path / "out.h5", "--dry-run")
    assert result.exit_code == 0
    assert "file2.h5: 1 slices from reconstruction_esc to" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_output_that_is_not_ours_or_is_the_source_is_not_replaced(tmp_path, folder, prep):
    before = (folder / "file0.h5").read_bytes()
    assert "is the source itself" in prep("fastmri", folder / "file0.h5", folder / "file0.h5", "--overwrite").stderr
    assert "is no slice file of es_medical" in prep("fastmri", folder, folder / "file0.h5").stderr
    assert (folder / "file0.h5").read_bytes() == before
    assert "expected a name ending in .h5" in prep("fastmri", folder, tmp_path / "out.nii").stderr


def test_output_inside_the_source_folder_is_not_read_as_a_volume(tmp_path, folder, prep):
    assert prep("fastmri", folder, folder / "out.h5").exit_code == 0
    assert "up to date" in prep("fastmri", folder, folder / "out.h5").stdout
    result = prep("fastmri", folder, tmp_path / "other")
    assert result.exit_code == 0
    assert "a slice file of es_medical, not raw data" in result.stdout
    assert read_header(tmp_path / "other" / "fastmri.h5").n == 4


def test_interrupted_run_leaves_nothing(tmp_path, folder, prep, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "make", interrupt)
    prep("fastmri", folder, tmp_path / "out.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_impossible_mask_is_an_error_before_anything_is_written(tmp_path, folder, prep):
    result = prep("fastmri", folder, tmp_path / "out.h5", "--center-fraction", 0.5)
    assert result.exit_code == 1
    assert "exceeds the 4 lines that acceleration 8 leaves" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
