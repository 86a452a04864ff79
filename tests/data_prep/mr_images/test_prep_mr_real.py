"""Real volumes: NIfTI and NRRD heads, a wrist and a brain in DICOM, an enhanced knee."""

import numpy as np
import pydicom
import pytest
from columns import columns
from mr_volumes import in_nifti, looked_up, of_volumes, planes, raw_values

EXACT = ("--percentiles", 0, 100, "--sigma", 0, "--slices", "every:9")


@pytest.mark.parametrize("plane", ["axial", "sagittal"])
@pytest.mark.parametrize("name", ["nichart_Subj1_T1", "stroke_T1_brain", "torchio_fernando_t2"])
def test_pixels_of_a_head_are_its_voxels(tmp_path, prep, shared_data, name, plane):
    path = shared_data / "mr_magnitude" / f"{name}.nii.gz"
    if plane == "sagittal" and name.startswith("torchio"):
        pytest.skip("voxels of 0.75 x 5.5 mm are made square there")
    prep("mr", path, tmp_path / "a.h5", "--plane", plane, *EXACT)
    stored, known = looked_up(columns(tmp_path / "a.h5"), in_nifti(path), step=13)
    assert len(known) > 200
    np.testing.assert_allclose(stored, known, atol=1e-3 * known.max())


def test_two_studies_of_two_people_stay_apart(tmp_path, prep, shared_data):
    output = prep(
        "mr", shared_data / "mr_volumes", tmp_path / "a.h5", "--slices", "every:12", "--size", 64, "--spacing", 4
    ).output
    assert "5 volumes of 3 subjects" in output
    assert "patient01: open_ms_patient01_study1_FLAIR.nii.gz, open_ms_patient01_study1_T1W.nii.gz" in output
    volumes = of_volumes(tmp_path / "a.h5")
    splits = {}
    for one in volumes:
        splits.setdefault(one["subject"][0], set()).update(one["split"])
    assert sorted(map(len, splits.values())) == [1, 1, 1]


@pytest.mark.parametrize("folder", ["mr_magnitude/dicom_wrist", "mr_volumes/siemens_dicom"])
def test_pixels_of_a_series_are_those_of_its_files(tmp_path, prep, shared_data, folder):
    prep("mr", shared_data / folder, tmp_path / "a.h5", "--percentiles", 0, 100, "--sigma", 0)
    found = columns(tmp_path / "a.h5")
    files = {}
    for path in (shared_data / folder).iterdir():
        one = pydicom.dcmread(path)
        files[tuple(np.round(np.array(one.ImagePositionPatient, float), 3))] = one.pixel_array
    assert len(set(found["volume"])) == 1
    assert len(found["id"]) == len(files)
    for image, plane in zip(raw_values(found), planes(found), strict=True):
        rows, columns_ = next(iter(files.values())).shape
        corner = (image.shape[0] // 2 - rows // 2, image.shape[1] // 2 - columns_ // 2)
        pixels = files[tuple(np.round(plane.world(*corner), 3))]
        inside = image[corner[0] : corner[0] + rows, corner[1] : corner[1] + columns_]
        np.testing.assert_allclose(inside, pixels, atol=0.02)


def test_frames_of_an_enhanced_knee_in_motion_are_volumes_of_one_patient(tmp_path, prep, shared_data):
    path = shared_data / "mr_magnitude" / "dicom_knee_multiframe.dcm"
    output = prep("mr", path, tmp_path / "a.h5", "--percentiles", 0, 100, "--sigma", 0).output
    assert "19 volumes of 1 subjects" in output
    found, stored = columns(tmp_path / "a.h5"), pydicom.dcmread(path).pixel_array.astype(float)
    assert len(set(found["subject"])) == 1
    left = list(stored)
    for image in raw_values(found):
        left.pop(next(i for i, frame in enumerate(left) if np.allclose(frame, image, atol=0.1)))
    assert not left
