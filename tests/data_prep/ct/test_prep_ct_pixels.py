import numpy as np
import pytest
from ct_archives import IMPLICIT, ct, disc, with_pixels, write, write_bare
from pydicom import Dataset, dcmread
from pydicom.pixels import apply_modality_lut
from pydicom.uid import ExplicitVRBigEndian, JPEG2000Lossless, JPEGLosslessSV1, JPEGLSLossless, RLELossless

from data_prep.ct.header import read_ct
from data_prep.ct.pixels import read_hounsfield
from data_prep.run.manifest import PrepError, SkipError
from es_medical.data.dicom.elements import quiet_pydicom
from es_medical.data.dicom.files import content_of


def read(path, intercept=None):
    with quiet_pydicom():
        (file,) = read_ct(path, path.name, content_of(path))
        return read_hounsfield(path, file, intercept)


@pytest.fixture
def hounsfield(tmp_path):
    """Writes an image and reads it back."""
    return lambda data, intercept=None: read(write(data, tmp_path / "a.dcm"), intercept)


def test_rescale_gives_hounsfield_units(hounsfield):
    assert np.all(hounsfield(with_pixels(ct(), np.full((32, 32), 1064, "<u2"))).values == 40)


@pytest.mark.parametrize("syntax", [IMPLICIT, ExplicitVRBigEndian])
@pytest.mark.parametrize("signed", [False, True])
def test_hounsfield_units_do_not_depend_on_byte_order_or_sign(hounsfield, syntax, signed):
    hu = disc(inside=-312)
    values = hounsfield(ct(hu, syntax=syntax, signed=signed)).values
    np.testing.assert_array_equal(values, hu)
    assert values.dtype.isnative


def test_large_unsigned_values_do_not_wrap(hounsfield):
    hu = hounsfield(with_pixels(ct(), np.full((32, 32), 40000, "<u2")))
    assert np.all(hu.values == 40000 - 1024)
    assert any("8000" in note for note in hu.notes)


@pytest.mark.parametrize("outside", [0, -2000])  # -2000: padding that nothing declares is no evidence
def test_implausible_values_without_rescale_are_refused_unless_told(hounsfield, outside):
    data = ct(disc(inside=1064, outside=outside), intercept=None, signed=True)
    with pytest.raises(PrepError, match="--intercept"):
        hounsfield(data)
    assert hounsfield(data, intercept=-1024).values[16, 16] == 40


def test_missing_slope_counts_as_one_and_missing_intercept_as_missing(hounsfield):
    data = ct()
    del data.RescaleSlope
    assert hounsfield(data).values[16, 16] == 40
    data = ct()
    del data.RescaleIntercept
    with pytest.raises(PrepError, match="--intercept"):
        hounsfield(data)


@pytest.mark.parametrize(("slope", "message"), [(b"0000", "slope 0"), (b"1,25", "not a number")])
def test_useless_slope_is_refused(tmp_path, slope, message):
    path = write(ct(slope=1.25), tmp_path / "a.dcm")
    path.write_bytes(path.read_bytes().replace(b"1.25", slope))
    with pytest.raises(PrepError, match=message):
        read(path)


TISSUE = disc() > -1000
OVERLAY = {"BitsStored": 12, "HighBit": 11, "0x60000102": 15}  # of one bit, above those of the pixels
SAME = {  # stored values (None: of HU + 1024), how they are encoded, elements that change
    "display alone": (None, {}, {"PhotometricInterpretation": "MONOCHROME1"}),
    "long header": (None, {}, {"0x00091010": b"\0" * 100_000}),
    "range of padding": (np.where(TISSUE, 1064, 4024), {}, {"PixelPaddingValue": 4024, "PixelPaddingRangeLimit": 6024}),
    "sign not extended": (disc().astype("<i2") & 0xFFF, {"signed": True, "intercept": 0}, {"BitsStored": 12, "HighBit": 11}),
    "overlay": (disc().astype(int) + 1024 | 0x8000, {}, OVERLAY),
    "overlay over bright padding": (  # which the window does not turn into air anyway
        np.where(TISSUE, 1064, 4095) | np.where(np.arange(32) < 5, 0x8000, 0),
        {},
        OVERLAY | {"PixelPaddingValue": 4095},
    ),
    "no rescale": (None, {"signed": True, "intercept": None}, {}),
    "fractional slope": (None, {"slope": 0.5}, {}),
}
VR = {"0x60000102": "US", "0x00091010": "OB"}


@pytest.mark.parametrize("name", SAME)
def test_values_are_those_of_the_disc(hounsfield, name):
    stored, how, changes = SAME[name]
    data = ct(**how)
    if stored is not None:
        with_pixels(data, stored.astype("<i2" if how.get("signed") else "<u2"))
    for key, value in changes.items():
        data.add_new(int(key, 16), VR[key], value) if key in VR else setattr(data, key, value)
    found = hounsfield(data)
    np.testing.assert_array_equal(found.values, disc())
    assert any("no rescale" in note for note in found.notes) == (name == "no rescale")


def compressed(syntax):
    data = ct(signed=True)
    data.compress(syntax)
    return data


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless, JPEGLSLossless])
def test_compressed_values_are_the_same(hounsfield, syntax):
    pytest.importorskip({JPEG2000Lossless: "openjpeg", JPEGLSLossless: "jpeg_ls"}.get(syntax, "pydicom"))
    np.testing.assert_array_equal(hounsfield(compressed(syntax)).values, disc())


@pytest.mark.parametrize(
    ("stored", "declared", "signed"),
    [(-2000, -2000, True), (-2000, 63536, True), (63536, 63536, False), (-32768, -32768, True), (0, 0, False)],
)
def test_padding_becomes_air(hounsfield, stored, declared, signed):
    kind = "<i2" if signed else "<u2"
    pixels = np.where(disc() > -1000, 1064, np.array(stored).astype(kind))
    data = with_pixels(ct(signed=signed), pixels.astype(kind))
    data.add_new("PixelPaddingValue", "SS" if declared < 0 else "US", declared)
    np.testing.assert_array_equal(hounsfield(data).values, disc())


def test_image_of_padding_alone_is_refused(hounsfield):
    data = ct(np.full((32, 32), 40))
    data.PixelPaddingValue = 1064
    with pytest.raises(PrepError, match="padding"):
        hounsfield(data)


def test_modality_lut(hounsfield):
    data = ct(intercept=None)
    table = Dataset()
    table.LUTDescriptor, table.ModalityLUTType = [4, 0, 16], "HU"
    table.LUTData = np.array([24, 1064, 2000, 3000], "<u2").tobytes()
    table["LUTData"].VR = "OW"
    data.ModalityLUTSequence = [table]
    values = hounsfield(with_pixels(data, np.tile(np.array([0, 1], "<u2"), 512))).values
    assert values[0, 0] == 24
    assert values[0, 1] == 1064


def test_whatever_stands_above_the_stored_bits_is_left_out_and_told(hounsfield):
    data = with_pixels(ct(), (disc() + 1024).astype("<u2") | 0x4000)
    data.BitsStored, data.HighBit = 12, 11
    values, notes = hounsfield(data)
    np.testing.assert_array_equal(values, disc())
    np.testing.assert_array_equal(values, apply_modality_lut(data.pixel_array, data))
    assert any("above the bits stored" in note for note in notes)


def test_padding_above_the_stored_bits_is_padding(hounsfield):
    data = with_pixels(ct(), np.where(disc() > -1000, 1064, 63536).astype("<u2"))
    data.BitsStored, data.HighBit, data.PixelPaddingValue = 12, 11, 63536
    values, notes = hounsfield(data)
    np.testing.assert_array_equal(values, disc())
    assert not any("above the bits stored" in note for note in notes)


@pytest.mark.parametrize("extended", [True, False])
def test_sign_may_end_with_the_stored_bits(hounsfield, extended):
    stored = np.where(disc() > -1000, 40, -1000)
    data = with_pixels(ct(intercept=0, signed=True), (stored if extended else stored & 0xFFF).astype("<i2"))
    data.BitsStored, data.HighBit = 12, 11
    values, notes = hounsfield(data)
    np.testing.assert_array_equal(values, disc())
    assert not notes


def test_short_pixel_data_names_byte_counts(tmp_path):
    path = write(ct(), tmp_path / "a.dcm")
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(PrepError, match=r"1748 bytes, expected 2048 for 32 x 32"):
        read(path)


def test_invalid_values_in_other_elements_do_not_matter(tmp_path):
    data = ct()
    data.Exposure, data.InstanceNumber, data.StudyDate = "1405", "1406", "20200101"
    path = write(data, tmp_path / "a.dcm")
    path.write_bytes(path.read_bytes().replace(b"1405", b"14.5").replace(b"1406", b"14.6").replace(b"20200101", b"2020-1-1"))
    assert read(path).values[16, 16] == 40


def test_data_set_without_preamble_is_read(tmp_path):
    np.testing.assert_array_equal(read(write_bare(ct(), tmp_path / "export")).values, disc())


@pytest.mark.parametrize("size", [0, 1000])
def test_random_bytes_are_no_dicom(tmp_path, size):
    path = tmp_path / "a.dcm"
    path.write_bytes(np.random.default_rng(0).bytes(size))
    assert content_of(path) == "other"


def test_missing_decoder_names_syntax_and_package(tmp_path, monkeypatch):
    from pydicom.pixels.decoders.base import Decoder

    data = compressed(RLELossless)
    data.file_meta.TransferSyntaxUID = JPEGLosslessSV1
    path = write(data, tmp_path / "a.dcm")
    monkeypatch.setattr(Decoder, "is_available", property(lambda self: False))
    with pytest.raises(
        PrepError, match=r"JPEG Lossless.*1\.2\.840\.10008\.1\.2\.4\.70.*pip install 'es_medical\[dicom\]'.*pylibjpeg-libjpeg"
    ):
        read(path)


def test_broken_compressed_stream_says_nothing_of_the_content(tmp_path):
    data = compressed(RLELossless)
    data.PixelData = data.PixelData[:-200] + b"SECRET" * 20
    with pytest.raises(PrepError, match="cannot be decoded") as caught:
        read(write(data, tmp_path / "a.dcm"))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("NumberOfFrames", 3, "several frames"),
        ("PhotometricInterpretation", "RGB", "colour"),
        ("HighBit", 11, "high bit"),
        ("BitsAllocated", 1, "1 bits"),
        ("Rows", 0, "0 x 32"),
        ("RescaleType", "mgml", "Hounsfield"),
        ("RescaleType", "Z_EFF", "Hounsfield"),
        ("PixelData", None, "no pixel data"),
    ],
)
def test_unusual_pixels_are_refused(hounsfield, key, value, message):
    data = ct()
    delattr(data, key) if value is None else setattr(data, key, value)
    with pytest.raises(PrepError, match=message) as caught:
        hounsfield(data)
    assert isinstance(caught.value, SkipError) == (message in {"colour", "Hounsfield"})  # what is no CT is no failure


CORNERSTONE = ("BigEndianExplicit", "DeflatedExplicitVRLittleEndian", "JPEG2000LosslessOnly", "JPEGLSLossless")
CORNERSTONE += ("JPEGProcess14SV1", "RLELossless", "JPEGProcess1", "JPEGProcess2_4")
PLUGINS = {"JPEG2000LosslessOnly": "openjpeg", "JPEGLSLossless": "libjpeg"}
LOSSY = {"JPEGProcess1": 40, "JPEGProcess2_4": 6}  # HU, 8 and 12 bits with slopes of 32 and 2


@pytest.mark.parametrize("name", CORNERSTONE)
def test_one_slice_in_nine_encodings_has_equal_hounsfield_units(shared_data, name):
    plugin = PLUGINS.get(name, "libjpeg" if name.startswith("JPEGP") else "pydicom")
    pytest.importorskip(plugin)
    folder = shared_data / "ct_dicom_odd"
    wanted = read(folder / "cs_LittleEndianImplicit.dcm").values
    found = read(folder / f"cs_{name}.dcm").values
    inside = wanted > -1100
    assert np.abs(found - wanted)[inside].mean() <= LOSSY.get(name, 0)


@pytest.mark.parametrize(
    ("name", "lowest", "highest", "plugin"),
    [
        ("pl_TOSHIBA_pixrep0", -2048, 1717, "openjpeg"),  # signed stream, unsigned header
        ("pydicom_J2K_pixelrep_mismatch", -2000, 1896, "openjpeg"),  # the other way round
        ("pl_ELSCINT1_jp2_wrapped", -1000, 3095, "openjpeg"),
        ("fod_padding_63536", -1000, 1376, "pydicom"),  # padding of -2000 written unsigned, else -3024
        ("lungmask_no_modality", -2048, 1502, "pydicom"),
        ("cerr_511x511", -1024, 3385, "pydicom"),
    ],
)
def test_odd_files_have_the_range_of_ct(shared_data, name, lowest, highest, plugin):
    pytest.importorskip(plugin)
    values = read(shared_data / "ct_dicom_odd" / f"{name}.dcm").values
    assert (values.min(), values.max()) == (lowest, highest)


def test_unknown_transfer_syntax_is_refused(tmp_path):
    data = ct()
    data.file_meta.TransferSyntaxUID = "1.2.3.4"
    data.save_as(tmp_path / "a.dcm", enforce_file_format=False, implicit_vr=False, little_endian=True)
    with pytest.raises(PrepError, match="does not define"):
        read(tmp_path / "a.dcm")


def test_explicit_data_under_an_implicit_syntax_is_read(tmp_path):
    data = ct(syntax=IMPLICIT)
    path = write(data, tmp_path / "a.dcm")
    head, explicit = path.read_bytes(), write(ct(), tmp_path / "b.dcm").read_bytes()
    start = head.index(b"\x08\x00\x08\x00")
    path.write_bytes(head[:start] + explicit[explicit.index(b"\x08\x00\x08\x00CS") :])
    with quiet_pydicom():
        assert dcmread(path, stop_before_pixels=True).file_meta.TransferSyntaxUID == IMPLICIT
    np.testing.assert_array_equal(read(path).values, disc())
