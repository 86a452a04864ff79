"""MR DICOM images: which form a volume, in which order, with which values and places; and what is no magnitude image."""

import numpy as np
import pytest
from columns import columns
from dicom_parts import OBLIQUE, points, save, scanned, source_plane, write_slice
from enhanced_dicom import enhanced
from mr_volumes import head, of_volumes, planes, raw_values

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
SIZE, SPACING = (24, 20), (1.5, 1.5)
EXACT = ("--percentiles", 0, 100, "--sigma", 0)
VOXELS = np.round(head((12, *SIZE))[3:9] * 10).astype(np.uint16)  # (slices, rows, columns), none of them empty


def image(k, voxels=VOXELS, number=None, orientation=OBLIQUE, spacing=SPACING, between=4.0, **changes):
    """Slice k of the volume, with values 0.5 * stored + 3."""
    plane = source_plane(k, orientation=orientation, spacing=spacing, between=between)
    one = scanned(plane, number or k + 1, SIZE, **({"RescaleSlope": "0.5", "RescaleIntercept": "3"} | changes))
    one.PixelData = voxels[k % len(voxels)].tobytes()
    one.BitsStored, one.HighBit = 16, 15
    return one


def series(folder, order=(3, 0, 5, 1, 4, 2), name="", **how):
    """The volume in files whose names and numbers say nothing of the order."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, k in enumerate(order):
        write_slice(folder / f"{name}{i}.dcm", image(k, number=i + 1, **how))
    return folder


def made(prep, source, *options, code=0):
    out = source.parent / "out" / "a.h5"
    output = prep("mr", source, out, *EXACT, *options, code=code).output
    return (columns(out) if out.exists() else None), " ".join(output.replace("│", " ").split())


def truth(k):
    """Pixels of slice k as they are stored: padded to 24 x 24 about the centre."""
    return np.pad(0.5 * VOXELS[k] + 3, ((0, 0), (2, 2)))


def assert_is_the_volume(found, numbers=range(6), between=4.0):
    inside = slice(2, -2)
    np.testing.assert_allclose(raw_values(found)[..., inside], [truth(k)[:, inside] for k in numbers], atol=0.01)
    for k, one in zip(numbers, planes(found), strict=True):
        np.testing.assert_allclose(one.world(0, 2), source_plane(k, spacing=SPACING, between=between).position, atol=1e-4)
        np.testing.assert_allclose(one.orientation, OBLIQUE, atol=1e-6)
        assert one.spacing == SPACING


@pytest.mark.parametrize("kind", ["classic", "enhanced"])
def test_slices_are_in_the_order_of_positions_with_their_own_values_and_places(tmp_path, prep, kind):
    folder = tmp_path / "in"
    if kind == "classic":
        series(folder)
    else:
        folder.mkdir()
        write_slice(folder / "one", enhanced([image(k) for k in (3, 0, 5, 1, 4, 2)]))
    found, _ = made(prep, folder)
    assert_is_the_volume(found)
    assert found["slice_spacing"] == pytest.approx(4)


@pytest.mark.parametrize("options", [(), ("--spacing", 1.1, "--size", 40), ("--spacing", 1.9, "--size", 16)])
def test_a_marked_pixel_is_where_it_was_in_nifti_and_dicom_with_and_without_the_source(tmp_path, prep, options):
    voxels = VOXELS.copy()
    voxels[4, 15, 6] = 9000
    folder = series(tmp_path / "in", voxels=voxels)
    found, _ = made(prep, folder, *options)
    images = raw_values(found).astype(np.float32)
    expected, off = source_plane(4, spacing=SPACING).world(15, 6), 0.75 * options[1] if options else 1e-3
    for k, source in enumerate(({}, {"source_dicom": folder})):
        save(tmp_path / str(k), tmp_path / "out" / "a.h5", images / images.max(), dicom=True, **source)
        for point in points(tmp_path / str(k), found["volume"][0]):
            assert np.linalg.norm(point - expected) < off


@pytest.mark.parametrize(("plane", "normal"), [("coronal", 1), ("axial", 2), ("sagittal", 0)])
def test_another_plane_is_made_of_a_regular_series(tmp_path, prep, plane, normal):
    voxels = VOXELS.copy()
    voxels[4, 15, 6] = 9000
    found, _ = made(prep, series(tmp_path / "in", voxels=voxels), "--plane", plane)
    images = raw_values(found)
    at = np.unravel_index(images.argmax(), images.shape)
    assert np.linalg.norm(planes(found)[at[0]].world(*at[1:]) - source_plane(4, spacing=SPACING).world(15, 6)) < 0.75 * 1.5
    assert np.abs(planes(found)[0].normal).argmax() == normal


def test_a_missing_slice_is_said_and_no_other_plane_is_made(tmp_path, prep):
    folder = series(tmp_path / "in", order=(3, 0, 5, 1, 4))
    found, output = made(prep, folder)
    assert "slice missing at" in output
    assert_is_the_volume(found, (0, 1, 3, 4, 5))
    assert "slices are missing: no other plane" in made(prep, folder, "--plane", "axial", "--overwrite", code=1)[1]


CASES = {  # of CASES2: changes of the second stack, and what tells it from the first
    "S1 two studies": ({"study": "1.2.3.99"}, "StudyInstanceUID"),
    "S1 two frames of reference": ({"FrameOfReferenceUID": "1.2.3.77"}, "FrameOfReferenceUID"),
    "S2 two phases": ({"AcquisitionNumber": "2"}, "AcquisitionNumber"),
    "two echoes": ({"EchoTime": "90"}, "EchoTime"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shift", [0.0, 1.25])
def test_two_stacks_of_one_series_are_two_volumes_never_a_mixture(tmp_path, prep, case, shift):
    changes, told = CASES[case]
    later = np.full((6, *SIZE), 40, np.uint16) * (1 + np.arange(SIZE[1], dtype=np.uint16))
    for i, k in enumerate((3, 0, 5, 1, 4, 2)):
        folder = tmp_path / "in"
        folder.mkdir(exist_ok=True)
        write_slice(folder / f"{i}a.dcm", image(k, number=i + 1, AcquisitionNumber="1"))
        second = image(k, later, number=i + 1, **({"AcquisitionNumber": "1"} | changes))
        second.ImagePositionPatient = (np.array(source_plane(k).position) + shift * source_plane(0).normal).tolist()
        write_slice(folder / f"{i}b.dcm", second)
    _, output = made(prep, folder)
    assert f"told from others of its series by {told}" in output
    assert "2 volumes of 1 subjects" in output
    first, second = sorted(of_volumes(tmp_path / "out" / "a.h5"), key=lambda one: -len(np.unique(raw_values(one))))
    assert_is_the_volume(first)
    assert len(np.unique(np.round(raw_values(second), 2))) == SIZE[1]  # a ramp
    assert set(first["split"]) == set(second["split"])


def test_stacks_that_nothing_tells_apart_are_refused_by_name(tmp_path, prep):
    folder = series(tmp_path / "in" / "mixed", AcquisitionNumber="1")
    series(folder, name="b", voxels=VOXELS[::-1], AcquisitionNumber="1")
    _, output = made(prep, tmp_path / "in", code=1)
    assert "several images at 6 positions" in output


def test_copies_of_images_are_left_out_and_said(tmp_path, prep):
    series(tmp_path / "in")
    write_slice(tmp_path / "in" / "copy.dcm", image(3, number=1))
    found, output = made(prep, tmp_path / "in")
    assert "1 copies of slices left out" in output
    assert_is_the_volume(found)


def test_a_survey_of_three_directions_is_three_volumes(tmp_path, prep):
    for k, orientation in enumerate((AXIAL, (1, 0, 0, 0, 0, -1), (0, 1, 0, 0, 0, -1))):
        series(tmp_path / "in", name=f"{k}-", orientation=orientation, order=(2, 3))
    found, output = made(prep, tmp_path / "in")
    assert "3 volumes of 1 subjects" in output
    assert len(set(found["volume"])) == 3


OTHERS = {
    "phase image": ({"ImageType": ["ORIGINAL", "PRIMARY", "P", "ND"]}, "phase, not a magnitude image"),
    "map": ({"ImageType": ["DERIVED", "PRIMARY", "DIFFUSION", "ADC"]}, "apparent diffusion coefficients, not a magnitude"),
    "localizer": ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, "a localizer (scout)"),
    "burned in": ({"BurnedInAnnotation": "YES"}, "text is burned into the pixels"),
    "CT": ({"Modality": "CT"}, "not an MR image: another modality"),
    "colour": ({"SamplesPerPixel": 3}, "a colour image"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_magnitude_image_is_left_out_and_listed(tmp_path, prep, kind):
    changes, cause = OTHERS[kind]
    series(tmp_path / "in" / "good")
    (tmp_path / "in" / "other").mkdir()
    write_slice(tmp_path / "in" / "other" / "x.dcm", image(0, **({"SeriesInstanceUID": "1.2.77"} | changes)))
    found, output = made(prep, tmp_path / "in")
    assert f"other/x.dcm skipped {cause}" in output
    assert_is_the_volume(found)


def test_padding_is_not_an_intensity(tmp_path, prep):
    voxels = VOXELS.astype(np.int16)
    voxels[:, :4, :4] = -32768
    found, _ = made(prep, series(tmp_path / "in", voxels=voxels, PixelPaddingValue=-32768, PixelRepresentation=1))
    assert raw_values(found).min() >= 0


def test_spacing_that_is_no_number_is_not_invented(tmp_path, prep):
    folder = tmp_path / "in"
    folder.mkdir()
    for k in range(6):
        one = image(k)
        del one.PixelSpacing
        write_slice(folder / f"{k}.dcm", one)
    found, output = made(prep, folder)
    assert np.isnan(found["spacing"]).all()
    assert "no pixel spacing" in output
    np.testing.assert_allclose(found["orientation"], [OBLIQUE] * 6, atol=1e-6)
    assert found["slice_spacing"] == pytest.approx(4)
    assert "no axial slices can be made" in made(prep, folder, "--plane", "axial", "--overwrite", code=1)[1]
    assert "--spacing cannot be used" in made(prep, folder, "--spacing", 2, "--overwrite", code=1)[1]


def test_one_patient_number_for_all_is_said_and_a_pattern_is_the_way_out(tmp_path, prep):
    for k in range(4):
        series(tmp_path / "in" / f"case{k}", voxels=VOXELS + k, study=f"1.2.{k}", series=f"1.3.{k}", PatientID="ANON")
    assert "all volumes count as one subject" in made(prep, tmp_path / "in")[1]
    found, output = made(prep, tmp_path / "in", "--subject-pattern", "case[0-9]")
    assert "4 volumes of 4 subjects" in output
    assert len(set(found["subject"])) == 4
    assert "ANON" not in output


def test_sizes_and_pixels_that_differ_within_a_series_are_refused(tmp_path, prep):
    folder = series(tmp_path / "in", order=(0, 1, 2))
    write_slice(folder / "odd.dcm", image(3, spacing=(1.0, 1.0)))
    assert "pixels of (1.0, 1.0) and of (1.5, 1.5) mm in one series" in made(prep, folder, code=1)[1]


def test_a_file_cut_short_is_named_and_its_volume_fails_whole(tmp_path, prep):
    folder = series(tmp_path / "in" / "bad")
    path = folder / "2.dcm"
    path.write_bytes(path.read_bytes()[:-100])
    series(tmp_path / "in" / "good", SeriesInstanceUID="1.2.9")
    found, output = made(prep, tmp_path / "in", code=1)
    assert "the pixels of an image cannot be decoded" in output
    assert_is_the_volume(found)
