"""Derived MR and CT series and parametric maps: values, identity, geometry, what a validator and an archive say of them."""

import warnings

import numpy as np
import pydicom
import pytest
from dicom_parts import MARKER, OBLIQUE, assert_valid, random_volume, source_plane, values_of, write_source, written
from tiny import names

from es_medical import __version__
from es_medical.data.atomic import whole_folder_or_not
from es_medical.data.geometry import Geometry
from es_medical.output.dicom.header import CT, MR
from es_medical.output.dicom.pixels import decimal_string, magnitude_scaling, to_stored
from es_medical.output.dicom.series import Derivation
from es_medical.output.dicom.source import read_source
from es_medical.output.dicom.writer import DicomWriter

pytest.importorskip("highdicom", reason="the extra `dicom` is not installed")
MAKINGS = {"MR": Derivation("es", 8.0), "CT": Derivation("es", 8.0, 50, CT)}
NAN = float("nan")


@pytest.fixture(params=MAKINGS)
def making(request):
    return MAKINGS[request.param]


def frames(spread):
    """SOP instance UID of the slice that a frame refers to -> (frame, its functional groups)."""
    pixels = np.reshape(spread.pixel_array, (-1, spread.Rows, spread.Columns))
    groups = spread.PerFrameFunctionalGroupsSequence
    sources = [one.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID for one in groups]
    assert len(set(sources)) == len(groups) == len(pixels)
    return dict(zip(sources, zip(pixels, groups, strict=True), strict=True))


def unknown(n):
    return (Geometry(),) * n


@pytest.fixture
def source(tmp_path, making):
    return write_source(tmp_path / "source", kind=making.kind)


@pytest.mark.parametrize("size", [(5, 5), (7, 4), (1, 3), (16, 16)])
@pytest.mark.parametrize("scale", [3e-5, 1.0, 4e6])
def test_read_back_error_is_half_a_slope_at_most(making, tmp_path, size, scale):
    volume = random_volume(2, size, scale=scale)
    images, spread = written(making, tmp_path, volume)
    for image, expected in zip(images, volume.images["reconstruction"], strict=True):
        assert np.abs(values_of(image) - expected).max() <= 0.5 * float(image.RescaleSlope) * (1 + 1e-9)
        assert len(image.PixelData) % 2 == 0
    assert len({(one.RescaleSlope, one.RescaleIntercept) for one in images}) == 1
    for image, expected in zip(images, volume.images["spread"], strict=True):
        np.testing.assert_array_equal(frames(spread)[image.SOPInstanceUID][0], expected)


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [5.0, 5.0], [-3.0, -1.0], [-1e-7, 2e-5], [1e-30, 1e-32], [0.0, 1e30], [1 / 3, 2 / 3]]
)
def test_scaling_as_it_is_written_covers_every_value(values):
    values = np.array(values, np.float32)
    used = magnitude_scaling(values)
    back = to_stored(values, used) * float(used.slope) + float(used.intercept)
    assert np.abs(back - values).max() <= 0.5 * float(used.slope) * (1 + 1e-9)
    assert float(used.windows[0].width) > 0
    assert all(len(text) <= 16 for text in (used.slope, used.intercept, *used.windows[0]))


@pytest.mark.parametrize("value", [0.0, -1 / 3, 1.23456789012345e-12, -9.87654321e200, 65535.0, 1e22, -0.1])
def test_decimal_string_keeps_the_digits_that_fit(value):
    text = decimal_string(value)
    assert len(text) <= 16
    assert float(text) == pytest.approx(value, rel=1e-8)


def test_no_number_has_no_decimal_string():
    with pytest.raises(ValueError, match="nan.*finite"):
        decimal_string(float("nan"))


def test_every_identifier_is_new_and_stands_in_the_file_meta_as_well(making, tmp_path, source):
    images, spread = written(making, tmp_path, random_volume(3, (12, 10), unknown(3)), source)
    again, _ = written(making, tmp_path / "again", random_volume(3, (12, 10), unknown(3)), source)
    old = {str(one.SOPInstanceUID) for one in read_source(source, making.kind).slices}
    new = [str(one.SOPInstanceUID) for one in (*images, *again, spread)]
    assert len(set(new)) == 7
    assert not old & set(new)
    assert all(len(uid) <= 64 for uid in new)
    for one in (*images, spread):
        assert one.file_meta.MediaStorageSOPInstanceUID == one.SOPInstanceUID
        assert one.file_meta.MediaStorageSOPClassUID == one.SOPClassUID
        assert one.file_meta.TransferSyntaxUID == pydicom.uid.ExplicitVRLittleEndian
    assert len({one.SeriesInstanceUID for one in images}) == 1
    assert len({images[0].SeriesInstanceUID, again[0].SeriesInstanceUID, spread.SeriesInstanceUID, "1.2.3.4.5"}) == 4


def test_patient_study_and_frame_of_reference_are_those_of_the_source(making, tmp_path, source):
    images, spread = written(making, tmp_path, random_volume(3, (12, 10), unknown(3)), source)
    first = read_source(source, making.kind).slices[0]
    shared = "PatientName PatientID PatientBirthDate PatientSex StudyInstanceUID StudyDate StudyTime StudyID AccessionNumber"
    for one in (*images, spread):
        for name in (*shared.split(), "ReferringPhysicianName", "FrameOfReferenceUID", "Laterality"):
            assert one[name].value == first[name].value, name
        assert "PatientIdentityRemoved" not in one
        assert "DeidentificationMethod" not in one
    for image in images:
        assert image.ImageType[:2] == ["DERIVED", "SECONDARY"]
        assert image.SeriesNumber != first.SeriesNumber
        assert image.SliceThickness == 3.5
        for name in ("RepetitionTime", "EchoTime") if making.kind is MR else ("KVP", "GantryDetectorTilt"):
            assert image[name].value == first[name].value
        for name in ("ConvolutionKernel", "Exposure"):  # of the source's pixels, not of ours
            assert name not in image


def test_each_slice_refers_to_its_source_and_each_frame_to_its_slice(making, tmp_path, source):
    images, spread = written(making, tmp_path, random_volume(3, (12, 10), unknown(3)), source)
    for image, one in zip(images, read_source(source, making.kind).slices, strict=True):
        assert image.SourceImageSequence[0].ReferencedSOPInstanceUID == one.SOPInstanceUID
        np.testing.assert_allclose(image.ImagePositionPatient, one.ImagePositionPatient, atol=1e-6)
    for image in images:
        _, groups = frames(spread)[image.SOPInstanceUID]
        assert groups.PlanePositionSequence[0].ImagePositionPatient == image.ImagePositionPatient


def test_known_positions_decide_which_source_slice_is_referred_to(making, tmp_path, source):
    volume = random_volume(3, (12, 10), tuple(source_plane(i) for i in (1, 2, 0)), 1000)
    images, _ = written(making, tmp_path, volume, source)
    positions = {one.SOPInstanceUID: one.ImagePositionPatient for one in read_source(source, making.kind).slices}
    for image, row in zip(images, (2, 0, 1), strict=True):
        reference = image.SourceImageSequence[0].ReferencedSOPInstanceUID
        np.testing.assert_allclose(positions[reference], image.ImagePositionPatient, atol=1e-6)
        np.testing.assert_allclose(values_of(image), volume.images["reconstruction"][row], atol=float(image.RescaleSlope))


def test_private_elements_and_staff_of_the_source_stay_behind(making, tmp_path, source):
    assert any(MARKER.encode() in file.read_bytes() for file in source.iterdir())
    written(making, tmp_path / "out", random_volume(3, (12, 10), unknown(3)), source)
    for file in (tmp_path / "out").rglob("*.dcm"):
        assert MARKER.encode() not in file.read_bytes()


@pytest.mark.parametrize("method", [None, "CTP"])
def test_a_deidentified_source_stays_marked_with_a_method(making, tmp_path, method):
    changes = {"PatientIdentityRemoved": "YES"} | ({"DeidentificationMethod": method} if method else {})
    source = write_source(tmp_path / "source", kind=making.kind, **changes)
    images, spread = written(making, tmp_path, random_volume(3, (12, 10), unknown(3)), source)
    for one in (*images, spread):
        assert one.PatientIdentityRemoved == "YES"
        assert one.DeidentificationMethod == (method or "Not stated by the source")


def test_without_a_source_the_subject_is_a_pseudonym_and_no_date_is_invented(making, tmp_path):
    images, spread = written(making, tmp_path, random_volume())
    for one in (*images, spread):
        assert (one.PatientID, str(one.PatientName)) == ("0123abcd", "0123abcd^")
        assert one.PatientIdentityRemoved == "YES"
        assert one.DeidentificationMethod
        assert (one.StudyDate, one.StudyTime, one.PatientBirthDate, one.AccessionNumber) == ("", "", "", "")
    dates = [element.keyword for image in images for element in image if element.VR in ("DA", "TM", "DT") and element.value]
    assert dates == []


def test_series_of_one_subject_in_one_run_share_the_study(making, tmp_path):
    writer = DicomWriter(tmp_path, making)
    for name, subject in (("a", "one"), ("a_2", "one"), ("b", "two")):
        writer.write(random_volume(name=name, subject=subject))
    studies = {
        name: pydicom.dcmread(tmp_path / name / "reconstruction" / "0001.dcm").StudyInstanceUID for name in names(tmp_path)
    }
    assert studies["a"] == studies["a_2"] != studies["b"]
    frames = {pydicom.dcmread(file).FrameOfReferenceUID for file in (tmp_path / "a").rglob("*.dcm")}
    assert len(frames) == 1


def test_headers_say_how_the_images_were_made(making, tmp_path):
    images, spread = written(making, tmp_path, random_volume())
    for image in images:
        sampling = "k-space accelerated by 8," if making.kind is MR else "a sinogram of 50 views,"
        for text in ("(method: es)", sampling, f"es_medical {__version__}", "research only"):
            assert text in image.DerivationDescription
        assert ("es x8" if making.kind is MR else "es 50 views") in image.SeriesDescription
        assert image.BurnedInAnnotation == "NO"
        assert image.SoftwareVersions
    assert "spread" in spread.SeriesDescription


@pytest.mark.parametrize(("spacing", "between"), [((NAN, NAN), 5.0), ((2.0, 2.0), NAN), ((2.0, 2.0), 5.0)])
def test_spacings_of_a_millimetre_that_nobody_stated_are_called_so(making, tmp_path, spacing, between):
    """A length measured on such images would be wrong without a word."""
    planes = tuple(Geometry.nominal((7, 9), spacing, between, i) for i in range(3))
    series, spread = written(making, tmp_path, random_volume(3, (7, 9), planes))
    for one in (*series, spread):
        assert ("do not measure lengths" in one.ImageComments) == bool(np.isnan([*spacing, between]).any())


@pytest.mark.parametrize("planes", [None, tuple(source_plane(i) for i in range(3))])
def test_only_a_nominal_orientation_is_called_nominal(making, tmp_path, planes):
    images, spread = written(making, tmp_path, random_volume(3, (12, 10), planes))
    for one in (*images, spread):
        assert ("nominal" in one.get("ImageComments", "")) == (planes is None)


def test_instance_numbers_follow_the_slice_normal(making, tmp_path):
    planes = tuple(source_plane(i) for i in (2, 0, 1))
    volume = random_volume(3, (12, 10), planes, 1000)
    images, spread = written(making, tmp_path, volume)
    normal = planes[0].normal
    along = [normal @ np.array(one.ImagePositionPatient, float) for one in images]
    assert along == sorted(along)
    assert [one.InstanceNumber for one in images] == [1, 2, 3]
    assert images[0].SpacingBetweenSlices == 4
    for image, row in zip(images, (1, 2, 0), strict=True):
        np.testing.assert_allclose(values_of(image), volume.images["reconstruction"][row], atol=float(image.RescaleSlope))
        np.testing.assert_array_equal(frames(spread)[image.SOPInstanceUID][0], volume.images["spread"][row])


def test_a_slice_without_numbers_is_left_out(making, tmp_path):
    volume = random_volume()
    for image in volume.images.values():
        image[1] = np.nan
    images, spread = written(making, tmp_path, volume)
    assert len(images) == spread.NumberOfFrames == 2
    assert [one.ImagePositionPatient[2] for one in images] == [0, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_slice_with_some_nan_or_infinite_pixels_is_refused(making, tmp_path, value):
    volume = random_volume()
    volume.images["reconstruction"][1, 2, 2] = value
    with pytest.raises(ValueError, match="slice 1 .*NaN or infinite"):
        DicomWriter(tmp_path, making).write(volume)
    assert names(tmp_path) == set()


def test_a_volume_without_any_number_is_an_error(making, tmp_path):
    volume = random_volume(scale=np.nan)
    with pytest.raises(ValueError, match="no slice of the volume holds numbers"):
        DicomWriter(tmp_path, making).write(volume)


def test_an_interrupted_series_leaves_the_old_one(making, tmp_path):
    images, _ = written(making, tmp_path, random_volume())
    folder = tmp_path / "volume" / "reconstruction"

    def interrupted():
        with whole_folder_or_not(folder) as temporary:
            (temporary / "0001.dcm").write_bytes(b"half")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        interrupted()
    assert pydicom.dcmread(folder / "0001.dcm").SOPInstanceUID == images[0].SOPInstanceUID
    assert names(tmp_path / "volume") == {"reconstruction", "spread"}


def test_a_second_run_replaces_the_whole_series(making, tmp_path):
    written(making, tmp_path, random_volume(3))
    images, _ = written(making, tmp_path, random_volume(2))
    assert len(images) == 2
    assert names(tmp_path / "volume") == {"reconstruction", "spread"}


GERMAN, JAPANESE = "M\u00fcller^J\u00f6rg", "\u5c71\u7530^\u592a\u90ce"


@pytest.mark.parametrize(
    ("characters", "name"),
    [
        ("ISO_IR 192", GERMAN),
        ("ISO_IR 192", JAPANESE),
        ("ISO_IR 100", GERMAN),
        ("ISO 2022 IR 100", GERMAN),
        (["", "ISO 2022 IR 87"], JAPANESE),
        (["ISO 2022 IR 13", "ISO 2022 IR 87"], JAPANESE),
        ("GB18030", JAPANESE),
    ],
)
def test_names_beyond_ascii_survive(making, tmp_path, characters, name):
    code = pydicom.Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "1", "99LOCAL", name
    changes = {"SpecificCharacterSet": characters, "PatientName": name, "ProcedureCodeSequence": [code]}
    source = write_source(tmp_path / "source", kind=making.kind, **changes)
    images, spread = written(making, tmp_path / "out", random_volume(3, (12, 10), unknown(3)), source)
    assert {str(one.PatientName) for one in (*images, spread)} == {name}
    assert {one.ProcedureCodeSequence[0].CodeMeaning for one in images} == {name}
    assert_valid(tmp_path / "out")


def test_broken_values_of_a_source_are_left_out_or_shortened(tmp_path, caplog):
    source = write_source(tmp_path / "source")
    for file in source.iterdir():
        one = pydicom.dcmread(file)
        for tag, vr, value in (
            (0x00180080, "DS", "2500.000000000000001"),
            (0x00180091, "IS", "4.5"),
            (0x00180015, "CS", "Left knee"),
        ):
            one[tag] = pydicom.dataelem.RawDataElement(pydicom.tag.Tag(tag), vr, len(value), value.encode(), 0, True, True)
        one.save_as(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom's, one for each broken element
        images, _ = written(MAKINGS["MR"], tmp_path / "out", random_volume(3, (12, 10), unknown(3)), source)
    assert images[0].RepetitionTime == 2500
    assert images[0].EchoTrainLength is None
    assert "EchoTrainLength 4.5 is no valid number and is left out" in caplog.text
    assert "BodyPartExamined Left knee is no valid code string and is left out" in caplog.text
    assert_valid(tmp_path / "out")


@pytest.mark.parametrize("known", [True, False])
def test_slices_matched_in_order_only_are_called_so(making, tmp_path, source, known):
    planes = tuple(map(source_plane, range(3))) if known else unknown(3)
    images, spread = written(making, tmp_path, random_volume(3, (12, 10), planes), source)
    assert all(("in their order" in one.get("ImageComments", "")) != known for one in (*images, spread))


ANY = {
    "plain": {},
    "contrast": {"ContrastBolusAgent": "GADO"},
    "no birth date": {"PatientBirthDate": "", "PatientSex": "", "AccessionNumber": None},
    "deidentified": {"PatientIdentityRemoved": "YES"},
    "no side of an unpaired part": {"BodyPartExamined": "CHEST", "Laterality": None},
    "empty side of an unpaired part": {"BodyPartExamined": "BRAIN", "Laterality": ""},
    "no side of a paired part": {"Laterality": None},
    "side in the image": {"Laterality": None, "ImageLaterality": "R"},
    "no thickness": {"SliceThickness": ""},
    "no series number": {"SeriesNumber": None},
}
MR_ONLY = {
    "inversion": {"ScanningSequence": ["SE", "IR"], "InversionTime": "900"},
    "inversion time of another kind": {"InversionTime": "0"},
    "echo planar": {"ScanningSequence": "EP", "SequenceVariant": "NONE"},
    "gated": {"ScanOptions": "CG", "TriggerTime": "12"},
    "gated without a time": {"ScanOptions": "CG"},
    "empty where a value is due": {"ScanningSequence": "GR", "SequenceVariant": "", "TriggerTime": "0"},
}
CT_ONLY = {
    "no voltage": {"KVP": "", "AcquisitionNumber": None, "GantryDetectorTilt": None, "ScanOptions": None},
    "route of an unnamed agent": {"ContrastBolusRoute": "IV"},
    "empty agent": {"ContrastBolusAgent": "", "ContrastBolusRoute": "IV"},
    "lossy": {
        "LossyImageCompression": "01",
        "LossyImageCompressionRatio": "9.5",
        "LossyImageCompressionMethod": "ISO_10918_1",
    },
    "axial and more": {"ImageType": ["ORIGINAL", "PRIMARY", "AXIAL", "CT_SOM5 SPI"], "FilterType": "BODY FILTER"},
}
CASES = [("MR", one) for one in (ANY | MR_ONLY).values()] + [("CT", one) for one in (ANY | CT_ONLY).values()]
NAMES = [f"MR {name}" for name in ANY | MR_ONLY] + [f"CT {name}" for name in ANY | CT_ONLY]


@pytest.mark.parametrize(("modality", "changes"), CASES, ids=NAMES)
def test_a_validator_finds_no_error_with_a_source(tmp_path, modality, changes):
    making = MAKINGS[modality]
    source = write_source(tmp_path / "source", kind=making.kind, **changes)
    written(making, tmp_path / "out", random_volume(3, (12, 10), unknown(3)), source)
    assert_valid(tmp_path / "out")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("planes", ["nominal", "recorded", "recorded without a spacing"])
@pytest.mark.parametrize(("scale", "size"), [(0.0, (7, 9)), (3e-5, (6, 5)), (2.0, (7, 9)), (3000.0, (12, 10))])
def test_a_validator_finds_no_error_without_a_source(making, tmp_path, n, planes, scale, size):
    between = float("nan") if planes.endswith("spacing") else 4.0
    recorded = tuple(Geometry(one.position, OBLIQUE, one.spacing, between) for one in map(source_plane, range(n)))
    volume = random_volume(n, size, recorded if planes != "nominal" else None, scale=scale)
    written(making, tmp_path, volume)
    assert_valid(tmp_path)
