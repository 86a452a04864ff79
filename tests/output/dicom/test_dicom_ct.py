"""What is CT's own: Hounsfield units in 16 bits, sources of the right kind, localizers, parts of a series, a real scan."""

import shutil

import numpy as np
import pydicom
import pytest
from dicom_parts import assert_valid, random_volume, scanned, source_plane, values_of, write_slice, write_source, written

from es_medical.data.geometry import Geometry
from es_medical.output.dicom.header import CT, MR
from es_medical.output.dicom.pixels import HU_WINDOWS, hounsfield_scaling, to_stored
from es_medical.output.dicom.series import Derivation
from es_medical.output.dicom.source import read_source
from es_medical.output.volume import Volume

NAN = float("nan")
MAKING = Derivation("es", views=16, kind=CT)


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "source", kind=CT)


@pytest.mark.parametrize(
    ("values", "slope"),
    [
        ([-1000.0, 0.4, 3071.0], 1),
        ([0.0, 0.0], 1),
        ([-32767.0, 32767.0], 1),
        ([-32768.0, 0.0], 2),
        ([32767.5, 1 / 3], 2),
        ([65534.0, -1e-9], 2),
        ([1e6, -7.0], 32),
        ([-1e30, 1e30], None),
    ],
)
def test_hounsfield_units_are_stored_whole_while_16_bits_hold_them(values, slope):
    values = np.array(values, np.float32)
    used = hounsfield_scaling(values)
    stored = to_stored(values, used)
    assert stored.dtype == np.int16
    assert float(used.slope) == slope or slope is None
    assert len(used.slope) <= 16
    back = stored * float(used.slope) + float(used.intercept)
    assert np.abs(back - values).max() <= 0.5 * float(used.slope) * (1 + 1e-9)


def test_windows_are_those_that_are_stated():
    edges = {
        one.name: (float(one.center) - float(one.width) / 2, float(one.center) + float(one.width) / 2) for one in HU_WINDOWS
    }
    assert edges == {"WHOLE RANGE": (-1000, 1000), "LUNG": (-1350, 150), "SOFT TISSUE": (-160, 240)}


def test_attributes_of_a_ct_series(tmp_path, source):
    volume = random_volume(3, (12, 10), (Geometry(),) * 3, 2000.0)
    volume.images["reconstruction"][...] -= 1000
    images, spread = written(MAKING, tmp_path / "out", volume, source)
    for image, expected in zip(images, volume.images["reconstruction"], strict=True):
        assert image.SOPClassUID == image.file_meta.MediaStorageSOPClassUID == pydicom.uid.CTImageStorage
        assert (image.Modality, image.RescaleType, image.PixelRepresentation) == ("CT", "HU", 1)
        assert list(image.ImageType) == ["DERIVED", "SECONDARY", "AXIAL"]
        assert (image.RescaleSlope, image.RescaleIntercept, image.KVP) == (1, 0, 120)
        assert list(image.WindowCenter) == [0, -600, 40]
        assert list(image.WindowCenterWidthExplanation) == ["WHOLE RANGE", "LUNG", "SOFT TISSUE"]
        np.testing.assert_array_equal(image.pixel_array, np.rint(expected))
        assert image.pixel_array.min() < -500
        assert list(image.WindowWidth) == [2000, 1500, 400]
        for name in ("ScanningSequence", "RepetitionTime", "MRAcquisitionType"):
            assert name not in image
    units = spread.SharedFunctionalGroupsSequence[0].RealWorldValueMappingSequence[0].MeasurementUnitsCodeSequence[0]
    assert units.CodeValue == "[hnsf'U]"


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"ContrastBolusRoute": "IV"}, {"ContrastBolusAgent": "", "ContrastBolusRoute": "IV"}),
        ({"ContrastBolusAgent": "", "ContrastBolusRoute": "IV"}, {"ContrastBolusAgent": "", "ContrastBolusRoute": "IV"}),
        ({"LossyImageCompression": "01"}, {"LossyImageCompression": "01"}),
    ],
)
def test_contrast_of_an_unnamed_agent_and_what_was_lossy_are_not_lost(tmp_path, changes, kept):
    source = write_source(tmp_path / "source", kind=CT, **changes)
    images, _ = written(MAKING, tmp_path / "out", random_volume(3, (12, 10), (Geometry(),) * 3), source)
    assert all(image[name].value == value for image in images for name, value in kept.items())


@pytest.mark.parametrize(("wanted", "other"), [(CT, MR), (MR, CT)], ids=["MR for CT", "CT for MR"])
def test_a_series_of_the_other_modality_is_refused_by_name(tmp_path, wanted, other):
    folder = write_source(tmp_path / "other", kind=other)
    message = rf"not {wanted.sop_class.name}: IM1, IM2, IM3 \({other.sop_class.name}\): expected one {wanted.modality}"
    with pytest.raises(ValueError, match=message):
        read_source(folder, wanted)
    write_source(folder / "right", kind=wanted)
    with pytest.raises(ValueError, match=message):  # nor is it passed over beside a right one
        read_source(folder, wanted)


@pytest.mark.parametrize("changes", [{}, {"SeriesInstanceUID": "9.9"}, {"ImagePositionPatient": None, "PixelSpacing": None}])
@pytest.mark.parametrize("word", ["LOCALIZER", "SCOUT"])
def test_localizers_are_left_out_with_a_note(source, caplog, changes, word):
    upright = source_plane(0, orientation=(1.0, 0.0, 0.0, 0.0, 0.0, -1.0))
    image_type = ["ORIGINAL", "PRIMARY", word, "CT_SOM5 TOP"]
    write_slice(source / "TOPO", scanned(upright, 1, (8, 6), kind=CT, ImageType=image_type, **changes))
    series = read_source(source, CT)
    assert len(series.slices) == 3
    assert "1 localizers of the source DICOM are left out: TOPO" in caplog.text


def test_nothing_but_localizers_is_refused_by_name(tmp_path):
    folder = write_source(tmp_path / "topograms", 2, kind=CT, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    with pytest.raises(ValueError, match="localizers only: IM1, IM2: expected one CT series"):
        read_source(folder, CT)


def test_mr_series_keep_all_their_images(tmp_path):
    folder = write_source(tmp_path / "source", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    assert len(read_source(folder, MR).slices) == 3


@pytest.mark.parametrize("indices", [(1,), (2, 0), (2, 0, 1)])
@pytest.mark.parametrize("size", [(12, 10), (6, 5)])
def test_some_slices_at_known_positions_find_their_own(source, indices, size):
    series = read_source(source, CT)
    slices, planes = series.matched([source_plane(i).rescaled((12, 10), size) for i in indices], size)
    assert [series.slices.index(one) for one in slices] == list(indices)
    for plane, i in zip(planes, indices, strict=True):
        np.testing.assert_allclose(plane.position, source_plane(i).rescaled((12, 10), size).position, atol=1e-5)
        assert plane.slice_spacing == pytest.approx(4)


def test_some_slices_between_those_of_the_source_are_refused(tmp_path):
    series = read_source(write_source(tmp_path / "source", spacing=(9.0, 9.0), kind=CT), CT)  # a pixel spans two slices
    assert len(series.matched([source_plane(1.2, spacing=(9.0, 9.0))], (12, 10))[0]) == 1
    with pytest.raises(ValueError, match="lies 1.6 mm from the nearest slice .* 4 mm apart: expected 1 mm at most"):
        series.matched([source_plane(1.4, spacing=(9.0, 9.0))], (12, 10))


@pytest.mark.parametrize("known", [True, False])
def test_a_field_of_view_padded_to_a_square_is_the_source_s(source, known):
    """12 x 10 pixels of 1.5 x 0.75 mm: padded to 12 x 24, then 6 x 6 pixels of 3 mm; the volume's own position is checked."""
    expected = [source_plane(i).resized((12, 10), (12, 24)).rescaled((12, 24), (6, 6)) for i in range(3)]
    wanted = expected if known else [Geometry(spacing=(3, 3))] * 3
    _, planes = read_source(source, CT).matched(wanted, (6, 6))
    for plane, one in zip(planes, expected, strict=True):
        np.testing.assert_allclose(plane.position, one.position, atol=1e-5)
        np.testing.assert_allclose(plane.spacing, (3, 3))
    np.testing.assert_allclose(planes[0].world(2.5, -0.5), source_plane(0).world(5.5, 5 - 12 - 0.5), atol=1e-5)  # left edge


@pytest.fixture
def lung(tmp_path, shared_data):
    """Three slices of a real CT series, and a real localizer in the same folder."""
    data = shared_data / "ct_dicom"
    files = [data / f"lungdx_A0001_{number}.dcm" for number in (22, 26, 30)]
    scout = shared_data / "ct_dicom_odd" / "fod_localizer_512.dcm"
    if not all(file.is_file() for file in (*files, scout)):
        pytest.skip("the real CT slices are not here")
    (tmp_path / "lung").mkdir()
    for file in (*files, scout):
        shutil.copy(file, tmp_path / "lung")
    return tmp_path / "lung"


def test_a_real_scan_comes_back_at_its_place_in_hounsfield_units(tmp_path, lung, caplog):
    """G1, G2, G7, G10, G12 on files of a scanner: 512 -> 256, the middle slice left out."""
    series = read_source(lung, CT)
    assert "fod_localizer_512.dcm" in caplog.text
    full = {one.SOPInstanceUID: one for one in map(pydicom.dcmread, lung.iterdir())}
    chosen = (0, 2)
    planes = tuple(series.planes[i].rescaled((512, 512), (256, 256)) for i in chosen)
    hu = np.stack([full[series.slices[i].SOPInstanceUID].pixel_array - 1024.0 for i in chosen]).astype(np.float32)
    half = hu.reshape(2, 256, 2, 256, 2).mean((2, 4))
    volume = Volume("lung", "0", {"reconstruction": half, "spread": np.abs(half) / 9}, np.array(chosen), planes)
    images, spread = written(MAKING, tmp_path, volume, series)
    for image, expected, i in zip(images, half, chosen, strict=True):
        original = full[image.SourceImageSequence[0].ReferencedSOPInstanceUID]
        assert original.SOPInstanceUID == series.slices[i].SOPInstanceUID
        for name in ("StudyInstanceUID", "FrameOfReferenceUID", "PatientID", "PatientIdentityRemoved", "KVP"):
            assert image[name].value == original[name].value, name
        assert image.DeidentificationMethod
        assert image.SOPInstanceUID not in full
        assert image.SeriesInstanceUID != original.SeriesInstanceUID
        assert image.file_meta.MediaStorageSOPInstanceUID == image.SOPInstanceUID
        assert max(len(uid) for uid in (image.SOPInstanceUID, image.SeriesInstanceUID, spread.SOPInstanceUID)) <= 64
        assert list(image.PixelSpacing) == [2 * value for value in original.PixelSpacing]
        moved = np.subtract(image.ImagePositionPatient, original.ImagePositionPatient)
        np.testing.assert_allclose(moved, np.array([0.5, 0.5, 0]) * original.PixelSpacing[0], atol=1e-6)
        assert np.abs(values_of(image) - expected).max() <= 0.5 * image.RescaleSlope
    assert_valid(tmp_path / "lung" / "reconstruction")
    assert_valid(tmp_path / "lung" / "spread")
