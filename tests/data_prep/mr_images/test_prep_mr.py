"""Volumes of known geometry and values: where each voxel is, and what it is, in slice files, NIfTI and DICOM."""

import nibabel as nib
import numpy as np
import pytest
from columns import columns
from dicom_parts import points, save
from mr_volumes import AFFINES, affine_of, head, in_nifti, looked_up, of_volumes, planes, raw_values, write_nifti

from es_medical.data import read_header
from es_medical.data.geometry import AXIAL_SUPINE

EXACT = ("--percentiles", 0, 100, "--sigma", 0)
ORIENTATIONS = {
    "axial": AXIAL_SUPINE,
    "coronal": (1.0, 0.0, 0.0, 0.0, 0.0, -1.0),
    "sagittal": (0.0, 1.0, 0.0, 0.0, 0.0, -1.0),
}


def made(prep, source, *options, code=0, out=None):
    out = out or (source.parent if source.is_file() else source) / "out" / "a.h5"
    output = prep("mr", source, out, *options, code=code).output
    return (columns(out) if out.exists() else None), " ".join(output.replace("│", " ").split())


@pytest.mark.parametrize("directions", AFFINES)
@pytest.mark.parametrize("plane", ORIENTATIONS)
def test_every_pixel_is_a_voxel_of_its_place_and_value(tmp_path, prep, directions, plane):
    path = write_nifti(tmp_path / "a.nii.gz", head(), affine_of(AFFINES[directions]))
    found, _ = made(prep, path, "--plane", plane, *EXACT)
    stored, known = looked_up(found, in_nifti(path), step=3)
    assert len(known) > 200
    np.testing.assert_allclose(stored, known, atol=1e-3)
    for one in planes(found):
        assert np.dot(one.orientation[:3], ORIENTATIONS[plane][:3]) > 0.8  # the usual directions of DICOM, as near as can be
        assert np.dot(one.orientation[3:], ORIENTATIONS[plane][3:]) > 0.8
        assert one.slice_spacing == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("plane", "spacing"), [("axial", None), ("coronal", None), ("axial", 2.3), ("coronal", 1.0), ("sagittal", 2.3)]
)
def test_a_marked_voxel_is_where_it_was_in_nifti_and_dicom(tmp_path, prep, plane, spacing):
    """Voxels of 1.2 x 1.6 x 3.5 mm: in two of the planes pixels are not square, and are made so."""
    voxels, voxel = head(), (7, 15, 11)
    voxels[voxel] = 1000
    affine = affine_of(AFFINES["oblique"], (1.2, 1.6, 3.5))
    path = write_nifti(tmp_path / "a.nii", voxels, affine)
    found, _ = made(prep, path, "--plane", plane, *(("--spacing", spacing) if spacing else ()), *EXACT)
    images = raw_values(found).astype(np.float32)
    save(tmp_path / "saved", tmp_path / "out" / "a.h5", images / images.max(), dicom=True)
    pixel = found["spacing"][0, 0]
    expected = (affine @ [*voxel, 1])[:3] * (-1, -1, 1)
    assert found["spacing"][0, 1] == pytest.approx(pixel)
    for point in points(tmp_path / "saved", found["volume"][0]):
        assert np.linalg.norm(point - expected) < 0.75 * pixel


@pytest.mark.parametrize("plane", ORIENTATIONS)
def test_resampling_keeps_sizes_in_mm(tmp_path, prep, plane):
    """A ball of 12 mm of smooth edge in voxels of 1 x 1.4 x 2.1 mm."""
    sides, shape = np.array([1.0, 1.4, 2.1]), (48, 34, 23)
    at = np.stack(np.meshgrid(*((np.arange(n) - n // 2) * side for n, side in zip(shape, sides, strict=True)), indexing="ij"))
    path = write_nifti(tmp_path / "a.nii", 1 / (1 + np.exp(np.linalg.norm(at, axis=0) - 12)), affine_of(sides=sides))
    found, _ = made(prep, path, "--plane", plane, "--slices", "middle", "--spacing", 1.3, *EXACT)
    inside = raw_values(found)[0] > 0.5
    assert [inside.any(1).sum() * 1.3, inside.any(0).sum() * 1.3] == pytest.approx([24, 24], abs=2.7)
    assert inside.sum() * 1.3**2 == pytest.approx(np.pi * 12**2, rel=0.06)


def test_acquired_plane_is_across_thick_slices_and_axial_for_cubes(tmp_path, prep):
    for k, sides in enumerate([(1, 1, 4), (1, 4, 1), (4, 1, 1), (1, 1.1, 1)]):
        write_nifti(tmp_path / f"{k}.nii", head(seed=k), affine_of(sides=sides))
    _, output = made(prep, tmp_path, "--subject-pattern", ".+")
    assert "slices of several planes: axial, coronal, sagittal" in output
    told = sorted(round(float(one["slice_spacing"][0]), 2) for one in of_volumes(tmp_path / "out" / "a.h5"))
    assert told == [1, 4, 4, 4]


def test_scaled_integers_and_units_of_the_header_count(tmp_path, prep):
    stored = (head() * 10).astype(np.int16)
    path = write_nifti(tmp_path / "a.nii", stored, change=lambda image: image.header.set_slope_inter(0.5, 20))
    nib.load(path)
    data = bytearray(path.read_bytes())
    np.frombuffer(data, "<f4", 2, 112)[:] = 0.5, 20
    data[123] = 3  # micrometres
    path.write_bytes(bytes(data))
    found, _ = made(prep, path, *EXACT)
    assert found["spacing"][0] == pytest.approx([1.5e-3, 1.5e-3])
    assert found["slice_spacing"][0] == pytest.approx(1.5e-3)
    assert found["position"][0] == pytest.approx(np.array([31 - 28.5, -12 - 34.5, 7.5 + 1.5]) * 1e-3, abs=5e-3)
    assert raw_values(found).max() == pytest.approx(0.5 * stored.max() + 20)


def test_values_are_scaled_by_percentiles_of_slice_or_volume(tmp_path, prep):
    path = write_nifti(tmp_path / "a.nii", head() * np.linspace(1, 2, 18, dtype=np.float32))
    by_slice, _ = made(prep, path)
    assert by_slice["image"][:, 0].max((1, 2)) == pytest.approx(1)
    by_volume, _ = made(prep, path, "--normalise", "volume", "--percentiles", 1, 99)
    low, high = np.percentile(head() * np.linspace(1, 2, 18), (1, 99))
    assert by_volume["scale"] == pytest.approx(np.broadcast_to([high - low, low], by_volume["scale"].shape), rel=1e-4)
    assert by_volume["image"].min() == 0
    assert by_volume["image"].max() == 1
    assert by_volume["data_range"] == pytest.approx(1)


def test_empty_slices_are_left_out_and_the_others_keep_their_numbers(tmp_path, prep):
    voxels = head()
    voxels[:, :, 9] = 0
    path = write_nifti(tmp_path / "a.nii", voxels)
    found, output = made(prep, path, *EXACT)
    assert 9 not in found["slice"]
    assert "empty slices left out (3)" in output  # both ends, and the blank one
    assert made(prep, path, "--slices", "every:4", *EXACT)[0]["slice"].tolist() == [1, 5, 13]
    assert "error: no slice could be made" in made(prep, path, "--slices", "middle", code=1)[1]


def test_size_crops_or_pads_about_the_centre_and_says_what_it_cuts(tmp_path, prep):
    path = write_nifti(tmp_path / "a.nii", head((40, 44, 18)))
    found, output = made(prep, path, "--size", 24, *EXACT)
    assert read_header(tmp_path / "out" / "a.h5").size == (24, 24)
    assert "tissue cut off by --size" in output
    np.testing.assert_allclose(*looked_up(found, in_nifti(path)), atol=1e-3)
    found, output = made(prep, path, *EXACT)
    assert read_header(tmp_path / "out" / "a.h5").size == (48, 48)  # 44, in steps of 8
    assert "cut off" not in output
    np.testing.assert_allclose(*looked_up(found, in_nifti(path)), atol=1e-3)


def test_different_pixel_sizes_in_one_file_are_said_and_spacing_makes_them_equal(tmp_path, prep):
    for k, side in enumerate((1.0, 1.5)):
        write_nifti(tmp_path / f"{k}.nii", head(seed=k), affine_of(sides=(side,) * 3))
    assert "pixels of 1 to 1.5 mm in one file: --spacing MM makes them equal" in made(prep, tmp_path)[1]
    found, output = made(prep, tmp_path, "--spacing", 2)
    assert "pixels of" not in output
    assert (found["spacing"] == 2).all()


BAD = {
    "four axes": (
        lambda path: write_nifti(path, np.stack([head(), head()], -1)),
        "2 volumes (or channels) in one file: --volume N takes one of each such file, from 0",
    ),
    "nan": (lambda path: write_nifti(path, np.where(head() > 140, np.nan, head())), "values are not finite (NaN or infinite)"),
    "labels": (lambda path: write_nifti(path, np.round(head() / 40).astype(np.uint8)), "a mask or label map, not an image"),
    "complex": (lambda path: write_nifti(path, head().astype(np.complex64)), "values of type complex64: expected real numbers"),
    "sheared": (
        lambda path: write_nifti(path, head(), affine_of(np.array([[1, 0.4, 0], [0, 1, 0], [0, 0, 1.0]]))),
        "rows and columns are not perpendicular",
    ),
    "thin": (lambda path: write_nifti(path, head(), affine_of(sides=(30, 1, 31))), "pixels of 1 x 30 mm in this plane"),
    "blank": (lambda path: write_nifti(path, np.arange(8000.0).reshape(20, 20, 20) * 0 + 7), "a mask or label map"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_cannot_be_used_is_refused_by_name_and_the_others_go_on(tmp_path, prep, kind):
    write, cause = BAD[kind]
    write(tmp_path / "bad.nii")
    write_nifti(tmp_path / "good.nii", head())
    found, output = made(prep, tmp_path, code=1)
    assert f"bad.nii failed {cause}" in output or cause in output
    assert len(set(found["volume"])) == 1


def test_a_volume_of_a_file_of_several_is_chosen_by_number(tmp_path, prep):
    path = write_nifti(tmp_path / "a.nii", np.stack([head(seed=k) for k in range(3)], -1))
    found, _ = made(prep, path, "--volume", 2, *EXACT)
    np.testing.assert_allclose(*looked_up(found, in_nifti(path, 2)), atol=1e-3)
    assert "--volume 3: the file has 3, counted from 0" in made(prep, path, "--volume", 3, code=1, out=tmp_path / "b.h5")[1]


def test_without_position_in_the_header_none_is_invented(tmp_path, prep):
    def unplaced(image):
        image.set_sform(None, 0)
        image.set_qform(None, 0)

    found, output = made(prep, write_nifti(tmp_path / "a.nii", head(), affine_of(sides=(1.5, 1.5, 1.5)), unplaced))
    assert "no position or orientation in the header: nominal ones in outputs" in output
    assert np.isnan(found["position"]).all()
    assert np.isnan(found["orientation"]).all()
    assert found["spacing"] == pytest.approx(1.5)


def test_disagreeing_forms_are_said(tmp_path, prep):
    path = write_nifti(tmp_path / "a.nii", head(), change=lambda image: image.set_qform(affine_of(origin=(0, 0, 0)), 1))
    found, output = made(prep, path, *EXACT)
    assert "qform and sform disagree: sform is used" in output
    np.testing.assert_allclose(*looked_up(found, in_nifti(path)), atol=1e-3)


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_nrrd_and_metaimage_are_read_like_nifti(tmp_path, prep, suffix):
    import SimpleITK

    path = write_nifti(tmp_path / "a.nii", head(), affine_of(AFFINES["oblique"], (1.5, 1.5, 3)))
    SimpleITK.WriteImage(SimpleITK.ReadImage(str(path)), str(tmp_path / f"b{suffix}"))
    found, _ = made(prep, tmp_path / f"b{suffix}", *EXACT)
    np.testing.assert_allclose(*looked_up(found, in_nifti(path)), atol=1e-3)


PEOPLE = [f"patient{k:02d}_study{s}_{c}.nii.gz" for k in range(6) for s in (1, 2) for c in ("T1W", "FLAIR")]


def test_all_volumes_of_a_person_are_in_one_split_whatever_the_study_and_stay_volumes_of_their_own(tmp_path, prep):
    for k, name in enumerate(PEOPLE):
        write_nifti(tmp_path / name, head((16, 16, 6), seed=k), affine_of(origin=(0, 0, 0.75 * k)))
    _, output = made(prep, tmp_path, "--test", 0.3, "--train", 0.7)
    assert "24 volumes of 6 subjects" in output
    assert "patient00: " in output
    volumes = of_volumes(tmp_path / "out" / "a.h5")
    assert len(volumes) == 24
    splits = {}
    for one in volumes:
        splits.setdefault(one["subject"][0], set()).update(one["split"])
        assert len(set(one["split"])) == 1
        np.testing.assert_allclose(np.diff(one["position"][:, 2]), 1.5)  # slices of one study only
    assert len(splits) == 6
    assert all(len(one) == 1 for one in splits.values())
    assert {"train", "val", "test"} == set.union(*splits.values())


@pytest.mark.parametrize(
    ("names", "pattern", "n"),
    [
        (["sub-a/ses-1/anat/x_T1w.nii", "sub-a/ses-2/anat/x_T1w.nii", "sub-b/anat/x_T1w.nii"], None, 2),
        (["A/1/x.nii", "A/2/x.nii", "B/1/x.nii"], None, 2),
        (["all/A_T1.nii", "all/A_T2.nii", "all/B_T1.nii"], None, 2),
        (["IXI002-Guys-0828-T1.nii", "IXI002-Guys-0828-T2.nii", "IXI012-HH-1211-T1.nii"], None, 2),
        (["x1.nii", "x2.nii", "y1.nii"], "^(x|y)", 2),
        (["sub-1_a.nii", "sub-1_b.nii", "sub-2.nii"], ".+", 3),
    ],
)
def test_subjects_are_told_by_names(tmp_path, prep, names, pattern, n):
    for k, name in enumerate(names):
        write_nifti(tmp_path / name, head((16, 16, 4), seed=k))
    found, output = made(prep, tmp_path, *(("--subject-pattern", pattern) if pattern else ()))
    assert f"3 volumes of {n} subjects" in output
    assert len(set(found["subject"])) == n


def test_patterns_that_tell_no_subject_are_refused(tmp_path, prep):
    write_nifti(tmp_path / "a.nii", head())
    assert "--subject-pattern x(.) is not found in a.nii" in made(prep, tmp_path, "--subject-pattern", "x(.)", code=1)[1]
    assert "no regular expression" in made(prep, tmp_path, "--subject-pattern", "(", code=1)[1]
    assert "expected 0 <= low < high <= 100" in made(prep, tmp_path, "--percentiles", 5, 5, code=1)[1]


def test_one_subject_for_all_is_said(tmp_path, prep):
    for k in range(2):
        write_nifti(tmp_path / f"sub-01_run-{k}.nii", head(seed=k))
    assert "all volumes count as one subject" in made(prep, tmp_path)[1]


def test_the_checksum_of_a_packed_file_is_compared_and_another_file_is_taken(tmp_path, prep):
    """A flipped bit can leave a stream that unpacks: nibabel reads it without a word."""
    for seed in range(2):
        path = write_nifti(tmp_path / "in" / f"p{seed}.nii.gz", head(seed=seed))
    content = bytearray(path.read_bytes())
    content[-8] ^= 1  # a bit of the checksum itself
    path.write_bytes(content)
    found, output = made(prep, tmp_path / "in", "--test", 0, "--val", 0, code=1, out=tmp_path / "out" / "a.h5")
    assert "the voxels cannot be read (BadGzipFile): cut short or damaged" in output
    assert len(set(found["volume"])) == 1
