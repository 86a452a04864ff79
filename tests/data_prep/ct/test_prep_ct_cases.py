"""Conditions that gave a wrong number without a word: what the command `lidc` makes of each."""

import numpy as np
import pytest
from columns import stored
from ct_archives import ct, disc, uid, with_pixels, write, write_series
from enhanced_dicom import enhanced
from pydicom import Dataset
from pydicom.uid import RLELossless

from data_prep.ct.options import options_of_training
from es_medical.data import read_header

SMALL = ("--size", 16, "--views", 5, "--slices", "all", "--test", 0, "--val", 0)


@pytest.fixture
def lidc(tmp_path, prep):
    """Runs the command on `tmp_path / "in"`; returns what it printed and the volumes of the file, in HU at the centre."""

    def run(*options, code=0, out="out.h5"):
        result = prep("lidc", tmp_path / "in", tmp_path / out, *SMALL, *options, code=code)
        return result.output, volumes(tmp_path / out) if (tmp_path / out).exists() else {}

    return run


def volumes(path):
    """Volume -> values at the centre of its slices, in their order."""
    names, numbers, images = (stored(path, name) for name in ("volume", "slice", "image"))
    scale = stored(path, "scale")
    centre = images[:, 0, 8, 8] * scale[:, 0] + scale[:, 1]
    found = {}
    for k in np.lexsort((numbers, names)):
        found.setdefault(names[k], []).append(round(float(centre[k]), 2))
    return found


def scan(folder, hu, n=3, start=0.0, series="s", **changes):
    """Slices of one patient and one SeriesInstanceUID whose tissue has the value `hu`."""

    def change(data, i):
        data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = uid(folder.name, series, i, hu)
        data.ImagePositionPatient, data.InstanceNumber = [0, 0, start + 2.5 * i], i + 1
        for name, value in changes.items():
            setattr(data, name, value(i) if callable(value) else value)

    return write_series(folder, n, series=series, hu=disc(inside=hu), change=change)


@pytest.mark.parametrize("tag", ["StudyInstanceUID", "FrameOfReferenceUID"])
@pytest.mark.parametrize("series", ["1.2.3", ""])
@pytest.mark.parametrize("folders", [("a", "b"), ("a", "a/b")])
def test_two_studies_with_one_series_uid_are_two_volumes(tmp_path, lidc, tag, series, folders):
    """S1"""
    for k, name in enumerate(folders):
        scan(tmp_path / "in" / name, 300 * k, start=1.25 * k, SeriesInstanceUID=series, **{tag: f"1.2.3.{k}"})
    output, found = lidc()
    assert sorted(found.values()) == [[0, 0, 0], [300, 300, 300]]
    assert (f"told apart by {tag}" in output) == bool(series)


@pytest.mark.parametrize(
    ("tag", "times"),
    [
        ("AcquisitionNumber", (1, 2)),
        ("AcquisitionTime", ("101112", "101212")),
        ("ContentTime", (lambda i: f"10111{i}", lambda i: f"10121{i}")),
    ],
)
def test_phases_of_one_series_are_two_volumes(tmp_path, lidc, tag, times):
    """S2"""
    for k, time in enumerate(times):
        scan(tmp_path / "in" / "ab"[k], 200 * k, SeriesInstanceUID="1.2.3", **{tag: time})
    output, found = lidc()
    assert sorted(found.values()) == [[0, 0, 0], [200, 200, 200]]
    assert f"told apart by {tag}" in output


def test_phases_that_nothing_tells_apart_are_refused(tmp_path, lidc):
    """S2"""
    scan(tmp_path / "in" / "a", 0, SeriesInstanceUID="1.2.3")
    scan(tmp_path / "in" / "b", 200, SeriesInstanceUID="1.2.3")
    scan(tmp_path / "in" / "c", 50, series="other", SeriesInstanceUID="1.2.4")
    output, found = lidc(code=1)
    assert list(found.values()) == [[50, 50, 50]]
    assert "several images at 3 positions, and no AcquisitionNumber or time tells them apart (all 6 files fail)" in output


@pytest.mark.parametrize("tag", ["StudyInstanceUID", "FrameOfReferenceUID"])
def test_a_uid_for_each_slice_is_named(tmp_path, lidc, tag):
    """R4"""
    scan(tmp_path / "in" / "a", 0, **{tag: lambda i: f"1.2.3.{i}"})
    scan(tmp_path / "in" / "b", 50, series="other")
    output, found = lidc(code=1)
    assert list(found.values()) == [[50, 50, 50]]
    assert f"each of its 3 images has a {tag} of its own" in output


def padded(hu, value, signed=True):
    data = ct(np.asarray(hu), signed=signed, intercept=0 if signed else -1024)
    data.add_new("PixelPaddingValue", "SS" if signed else "US", value)
    return data


def test_padding_that_is_a_value_of_tissue_never_makes_air_inside_the_body(tmp_path, lidc):
    """S7"""
    body = disc(inside=40.0)
    body[12:20, 12:20] = 0
    write(padded(body, 0), tmp_path / "in" / "a.dcm")
    output, found = lidc()
    assert list(found.values()) == [[0]]
    assert "the value of padding (0 HU) is tissue inside the image (1 of 1)" in output


def test_padding_of_a_value_of_tissue_around_the_field_is_air(tmp_path, lidc):
    """S7"""
    body = disc(inside=40.0, outside=0.0)
    body[15:18, 15:18] = 0
    write(padded(body, 0), tmp_path / "in" / "a.dcm")
    lidc()
    image = stored(tmp_path / "out.h5", "image")[0, 0] * 2000 - 1000
    assert image[0, 0] == -1000
    assert image[8, 8] == 0
    assert image.max() == 40


def test_padding_that_nothing_tells_from_tissue_is_refused(tmp_path, lidc):
    """S7"""
    body = disc(inside=0.0, outside=0.0)
    body[4:8] = -1000
    write(padded(body, 0), tmp_path / "in" / "a.dcm")
    output, found = lidc(code=1)
    assert not found
    assert "padding has a value of tissue (0 HU) and reaches the centre of the image" in output


def units(code):
    item, unit = Dataset(), Dataset()
    unit.CodeValue, unit.CodingSchemeDesignator, unit.CodeMeaning = code, "UCUM", code
    item.MeasurementUnitsCodeSequence = [unit]
    return [item]


DERIVED = ["DERIVED", "PRIMARY", "AXIAL"]
MAPS = {
    "atomic number": {"RescaleType": "US", "ImageType": [*DERIVED, "EFF_ATOMIC_NUM"]},
    "atomic number without unit": {"ImageType": [*DERIVED, "EFF_ATOMIC_NUM"]},
    "iodine of unspecified unit": {"RescaleType": "US", "ImageType": DERIVED},
    "of a multi-energy scan without unit": {"MultienergyCTAcquisition": "YES", "ImageType": DERIVED},
    "iodine in mg/ml": {"RealWorldValueMappingSequence": units("mg/cm3")},
    "modified": {"RescaleType": "HU_MOD", "ImageType": [*DERIVED, "MAT_MODIFIED"]},
}


@pytest.mark.parametrize("name", MAPS)
def test_spectral_maps_are_left_out_and_listed(tmp_path, lidc, name):
    """S8"""
    scan(tmp_path / "in" / "a", 7, **MAPS[name])
    scan(tmp_path / "in" / "b", 50, series="other")
    output, found = lidc()
    assert list(found.values()) == [[50, 50, 50]]
    assert "not Hounsfield units" in output


@pytest.mark.parametrize(
    "changes",
    [
        {"RescaleType": "HU", "ImageType": [*DERIVED, "VMI"]},
        {"RescaleType": "HU", "ImageType": [*DERIVED, "MAT_REMOVED"]},
        {"RealWorldValueMappingSequence": units("[hnsf'U]")},
        {"RescaleType": "US"},  # of a scanner that does not state the unit: its air is evidence enough
    ],
)
def test_monoenergetic_images_in_hounsfield_units_stay_in(tmp_path, lidc, changes):
    """S8"""
    scan(tmp_path / "in" / "a", 60, **changes)
    _, found = lidc()
    assert list(found.values()) == [[60, 60, 60]]


def test_an_unspecified_unit_without_air_is_no_hounsfield_unit(tmp_path, lidc):
    """S8"""
    write(with_pixels(ct(intercept=0), np.where(disc() > -1000, 7, 0).astype("<u2")), tmp_path / "in" / "a")
    data = with_pixels(ct(intercept=0, series="us"), np.where(disc() > -1000, 7, 0).astype("<u2"))
    data.RescaleType = "US"
    write(data, tmp_path / "in" / "b")
    output, _ = lidc(code=1)
    assert "values of unspecified unit (rescale type US), none below -200" in output


def test_burned_in_annotations_are_left_out_unless_asked_for(tmp_path, lidc):
    """S14"""
    scan(tmp_path / "in" / "a", 60, BurnedInAnnotation="YES")
    scan(tmp_path / "in" / "b", 50, series="other", BurnedInAnnotation="NO")
    output, found = lidc()
    assert list(found.values()) == [[50, 50, 50]]
    assert "burned-in annotation" in output
    assert "--burned-in" in output
    assert len(lidc("--burned-in", out="both.h5")[1]) == 2
    assert "burned_in" not in read_header(tmp_path / "out.h5").configuration


@pytest.mark.parametrize("compress", [False, True])
def test_frames_of_an_enhanced_image_are_slices(tmp_path, lidc, compress):
    """R1: each with its own rescale and place."""
    images = [ct(disc(inside=100 * k), z=2.5 * k, slope=1 + k, intercept=-1000 - 24 * k, signed=True) for k in range(3)]
    whole = enhanced([images[k] for k in (1, 0, 2)])
    if compress:
        whole.compress(RLELossless)
    write(whole, tmp_path / "in" / "enhanced.dcm")
    _, found = lidc("--sigma", 0)
    assert list(found.values()) == [[0, 100, 200]]
    path = tmp_path / "out.h5"
    order = np.argsort(stored(path, "slice"))
    np.testing.assert_allclose(stored(path, "position")[order], [[0.5, 0.5, 2.5 * k] for k in range(3)])
    np.testing.assert_allclose(stored(path, "spacing"), 2)
    assert len(set(stored(path, "id"))) == 3


def test_enhanced_image_of_two_phases_is_two_volumes(tmp_path, lidc):
    """R1, S2"""
    images = [ct(disc(inside=100 * (k // 3)), z=2.5 * (k % 3)) for k in range(6)]
    write(enhanced(images, [{"TemporalPositionIndex": 1 + k // 3} for k in range(6)]), tmp_path / "in" / "enhanced.dcm")
    output, found = lidc()
    assert sorted(found.values()) == [[0, 0, 0], [100, 100, 100]]
    assert "told apart by TemporalPositionIdentifier" in output


def test_enhanced_image_cut_short_is_named(tmp_path, lidc):
    path = write(enhanced([ct(z=k) for k in range(3)]), tmp_path / "in" / "enhanced.dcm")
    path.write_bytes(path.read_bytes()[:-100])
    output, _ = lidc(code=1)
    assert "pixel data is cut short: 6044 bytes, expected 6144 for 3 frames of 32 x 32 pixels of 16 bits" in output


def test_pixel_spacing_that_is_none_is_told_and_not_invented(tmp_path, lidc):
    """S11"""
    path = scan(tmp_path / "in", 50, n=1, start=100.0, PixelSpacing=[0.25, 0.25])[0]
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0,25"))
    output, _ = lidc()
    assert "pixel spacing unknown" in output
    assert np.isnan(stored(tmp_path / "out.h5", "spacing")).all()
    np.testing.assert_allclose(stored(tmp_path / "out.h5", "position"), [[0, 0, 100]])
    np.testing.assert_allclose(stored(tmp_path / "out.h5", "orientation"), [[1, 0, 0, 0, 1, 0]])


def test_one_patient_id_for_all_scans_is_told_with_the_way_out(tmp_path, lidc):
    """R9"""
    for k in range(6):
        scan(tmp_path / "in" / str(k), 10 * k, series=str(k), PatientID="ANON", StudyInstanceUID=f"1.2.{k}")
    output, _ = lidc("--slices", "middle", "--test", 1)
    assert "all 6 scans have one PatientID" in output
    assert "--split-by study" in output
    output, _ = lidc("--slices", "middle", "--test", 1, "--split-by", "study", out="study.h5")
    assert "one PatientID" not in output
    assert read_header(tmp_path / "study.h5").splits == {"train": 5, "test": 1}
    assert len(set(stored(tmp_path / "study.h5", "subject"))) == 6


@pytest.mark.parametrize(
    ("trained", "asked", "taken"), [(None, None, None), (None, True, True), (True, None, True), (True, False, None)]
)
def test_inference_takes_burned_in_annotations_where_asked_or_as_in_training(trained, asked, taken):
    """S14"""
    made = {"size": 32, "views": 8, "sigma": 0.001, "seed": 0, "intercept": None, "burned_in": trained}
    assert options_of_training({"configuration": made}, asked).burned_in is taken
