import logging
import warnings

import numpy as np
import pytest
import torch
from columns import stored
from ct_archives import ct, disc, uid, write, write_bare, write_patients, write_series
from pydicom import Dataset, dcmread
from pydicom.uid import DigitalXRayImageStorageForPresentation, JPEGLosslessSV1, RLELossless, SecondaryCaptureImageStorage

from es_medical.data import SliceDataset, read_header

SMALL = ("--size", 16, "--views", 5)


@pytest.fixture
def lidc(tmp_path, prep):
    """Runs the command on `tmp_path / "in"`; returns what it printed and the path of the file."""

    def run(*options, out="out.h5", source=None, code=0):
        path = tmp_path / out
        return prep("lidc", source or tmp_path / "in", path, *SMALL, *options, code=code), path

    return run


def test_one_slice_of_each_patient_and_its_sinogram(tmp_path, lidc):
    write_patients(tmp_path / "in", 4, 3)
    _, path = lidc("--sigma", 0)
    header = read_header(path)
    assert (header.modality, header.n, header.size, header.has_image) == ("CT", 4, (16, 16), True)
    assert header.operator["geometry"] == "parallel"
    assert header.splits == {"train": 2, "val": 1, "test": 1}
    from es_medical.physics.ct import CT
    from es_medical.physics.ct_matrix import geometry_from_dict

    item = SliceDataset(path)[0]
    y = CT(geometry_from_dict(header.operator)).A(item["image"][None])[0]
    torch.testing.assert_close(item["measurement"], y, rtol=1e-4, atol=1e-5)
    hu = item["image"] * item["scale"] + item["offset"]
    assert float(hu[0, 8, 8]) == pytest.approx(40, abs=1e-3)
    assert float(hu[0, 0, 0]) == -1000
    np.testing.assert_allclose(stored(path, "spacing"), 2)
    np.testing.assert_allclose(stored(path, "position"), [[0.5, 0.5, 2.5]] * 4)
    np.testing.assert_allclose(stored(path, "slice_spacing"), 2.5)


def test_noise_is_sigma_and_each_slice_has_its_own(tmp_path, lidc):
    write_patients(tmp_path / "in", 4, 3)
    _, clean = lidc("--sigma", 0, "--slices", "all", out="clean.h5")
    _, noisy = lidc("--sigma", 0.01, "--slices", "all", out="noisy.h5")
    noise = stored(noisy, "measurement") - stored(clean, "measurement")
    assert noise.std() == pytest.approx(0.01, rel=0.05)
    assert abs(np.corrcoef(noise.reshape(len(noise), -1)) - np.eye(len(noise))).max() < 0.4


def test_split_keeps_patients_together(tmp_path, lidc):
    write_patients(tmp_path / "in", 5, 3)
    write_series(tmp_path / "in" / "again", 3, patient="p0", series="second")
    _, path = lidc("--slices", "all")
    subjects, splits = stored(path, "subject"), stored(path, "split")
    assert len(set(subjects)) == 5
    assert all(len(set(splits[subjects == one])) == 1 for one in subjects)
    assert sorted((subjects == one).sum() for one in set(subjects)) == [3, 3, 3, 3, 6]


def test_two_series_in_one_folder_are_two(tmp_path, lidc):
    write_series(tmp_path / "in", 3, series="a")
    for k, one in enumerate(write_series(tmp_path / "other", 5, series="b")):
        one.rename(tmp_path / "in" / f"b{k}")
    result, path = lidc("--slices", "middle", "--series", "all", "--test", 0)
    assert sorted(stored(path, "slice")) == [1, 2]
    assert "done 2" in result.output
    result, path = lidc("--test", 0)
    assert list(stored(path, "slice")) == [2]  # of the longer series
    assert "another series of the patient" in result.output


def of_kind(data, sop, modality):
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = sop
    data.Modality = modality
    return data


def test_only_ct_slices_are_taken_and_the_rest_is_listed(tmp_path, lidc):
    write_patients(tmp_path / "in", 2, 3)
    scout = ct(disc((80, 64)), z=9)
    scout.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    write(scout, tmp_path / "in" / "patient0" / "scout")
    write(of_kind(ct(series="x"), DigitalXRayImageStorageForPresentation, "DX"), tmp_path / "in" / "xray.dcm")
    write(of_kind(ct(series="y"), SecondaryCaptureImageStorage, "CT"), tmp_path / "in" / "capture.dcm")
    wrong = ct(series="w")
    wrong.Modality = "DX"
    write(wrong, tmp_path / "in" / "modality.dcm")
    (tmp_path / "in" / "notes.xml").write_text("<x/>")
    result, path = lidc("--slices", "all")
    assert read_header(path).n == 6
    for words in ("localizer", "Digital X-Ray", "Secondary Capture", "modality DX", "not a DICOM file"):
        assert words in result.output


def test_images_without_modality_or_suffix_or_preamble_are_found_by_content(tmp_path, lidc):
    folder = tmp_path / "in" / "01-01-2000-30178"
    data = ct(patient="a")
    del data.Modality
    write(data, folder / "no modality")
    write_bare(ct(patient="b"), folder / "123")
    result, path = lidc()
    assert read_header(path).n == 2
    assert "without DICOM preamble" in result.output


@pytest.mark.parametrize("n", [300, 1700])  # bytes left: in the header, and in the elements of the image
def test_truncated_or_random_files_are_named(tmp_path, lidc, n):
    write_patients(tmp_path / "in", 2, 3)
    one = tmp_path / "in" / "patient0" / "000.dcm"
    one.write_bytes(one.read_bytes()[: 128 + n])
    (tmp_path / "in" / "random.dcm").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "in" / "empty.dcm").touch()
    (tmp_path / "in" / "link.dcm").symlink_to(tmp_path / "nowhere")
    result, path = lidc("--slices", "all", code=1)
    for name in ("patient0/000.dcm", "random.dcm", "empty.dcm", "link.dcm"):
        assert name in result.output
    assert read_header(path).n == 5


def test_series_of_broken_files_is_one_failure(tmp_path, lidc):
    write_patients(tmp_path / "in", 3, 3)
    for one in (tmp_path / "in" / "patient1").iterdir():
        one.write_bytes(one.read_bytes()[:-300])
    result, _ = lidc(code=1)
    assert "done 2 · skipped 0 · failed 1" in result.output
    assert "all 3 files" in result.output


def write_compressed(folder, change):
    """Three patients of one slice, the second one compressed and then changed."""
    write_patients(folder, 3, 1)
    data = ct(patient="p1", signed=True)
    data.compress(RLELossless)
    change(data)
    write(data, folder / "patient1" / "000.dcm")


def test_stream_that_fails_late_fails_its_series_only(tmp_path, lidc):
    write_compressed(tmp_path / "in", lambda data: setattr(data, "PixelData", data.PixelData[:-100] + b"\0" * 4))
    result, path = lidc(code=1)
    assert "done 2 · skipped 0 · failed 1" in result.output
    assert "cannot be decoded" in result.output
    assert read_header(path).n == 2


def test_missing_decoder_stops_no_other(tmp_path, lidc, monkeypatch):
    from pydicom.pixels.decoders.base import Decoder

    write_compressed(tmp_path / "in", lambda data: setattr(data.file_meta, "TransferSyntaxUID", JPEGLosslessSV1))
    monkeypatch.setattr(Decoder, "is_available", property(lambda self: False))
    result, path = lidc(code=1)
    assert "patient1/000.dcm" in result.output
    assert "JPEG Lossless" in result.output
    assert "es_medical[dicom]" in result.output
    assert read_header(path).n == 2


def test_blank_slices_are_left_out(tmp_path, lidc):
    write_patients(tmp_path / "in", 2, 3)
    write(ct(np.full((32, 32), -1000), z=20, patient="p0", key="air"), tmp_path / "in" / "patient0" / "air")
    result, path = lidc("--slices", "all")
    assert read_header(path).n == 6
    assert "blank slices left out (1 of 4)" in result.output


def test_series_of_blank_slices_fails_and_patients_beyond_the_counts_are_left_out(tmp_path, lidc):
    write_patients(tmp_path / "in", 4, 1)
    write(ct(np.full((32, 32), -1000), patient="air"), tmp_path / "in" / "air")
    result, path = lidc(code=1)
    assert "every chosen slice is blank, or a copy" in result.output
    assert read_header(path).n == 4
    (tmp_path / "in" / "air").unlink()
    result, path = lidc("--train", 2, "--test", 1)
    assert result.output.count("beyond the --train and --test counts") == 1
    assert read_header(path).n == 3


@pytest.mark.parametrize("old", [True, False])
def test_metadata_table_is_compared_with_the_files(tmp_path, lidc, old):
    write_patients(tmp_path / "in", 3, 3)
    for one in (tmp_path / "in" / "patient0").iterdir():
        data = dcmread(one)
        data.PatientID = ""
        data.save_as(one)
    columns = ("Series UID", "Subject ID", "Number of Images", "Modality")
    columns = columns if old else ("SeriesInstanceUID", "PatientID", "ImageCount", "Modality")
    lines = [(uid("series", "s", f"p{k}"), "p1" if k == 0 else f"p{k}", 3 + (k == 2), "CT") for k in range(3)]
    lines.append(("1.2.3", "gone", 7, "CT"))
    text = "\n".join(",".join(map(str, line)) for line in (columns, *lines))
    (tmp_path / "in" / "metadata.csv").write_text(text, encoding="utf-8-sig")
    result, path = lidc("--series", "all")
    assert "lists 4 images, 3 are here" in result.output
    assert "1 of its CT series are not here" in result.output
    assert len(set(stored(path, "subject"))) == 2  # the table knows the patient of the first series


def test_broken_metadata_table_does_not_matter(tmp_path, lidc):
    write_patients(tmp_path / "in", 2, 2)
    (tmp_path / "in" / "metadata.csv").write_bytes(b'Series UID,\xff\x00\n"unclosed')
    _, path = lidc()
    assert read_header(path).n == 2


MARKERS = [f"MARK{chr(65 + k)}ER" for k in range(18)]


def marked(path, k=0):
    """A CT image with a marker word in 18 places, in both its bytes and its names."""
    data = ct(patient=MARKERS[0], z=k)
    data.PatientName, data.ReferringPhysicianName = f"{MARKERS[1]}^A", MARKERS[2]
    data.InstitutionName, data.StudyDescription, data.SeriesDescription = MARKERS[3], MARKERS[4], MARKERS[5]
    data.RescaleType, data.PatientComments, data.Manufacturer = "HU", MARKERS[6], MARKERS[7]
    inner, outer = Dataset(), Dataset()
    inner.PatientID, outer.OtherPatientIDsSequence = MARKERS[8], [inner]
    data.ReferencedStudySequence = [outer]
    data.OtherPatientIDsSequence = [inner]
    block = data.private_block(0x0009, MARKERS[9], create=True)
    block.add_new(1, "LO", MARKERS[10])
    data.add_new(0x60004000, "LT", MARKERS[11])  # overlay comment
    data.DataSetTrailingPadding = MARKERS[12].encode() * 2
    data.file_meta.SourceApplicationEntityTitle = MARKERS[13]
    data.AccessionNumber, data.StudyID = MARKERS[14], MARKERS[15]
    data.preamble = MARKERS[16].encode().ljust(128, b"\0")
    return write(data, path / MARKERS[17] / f"{MARKERS[17]}{k}")


def test_no_identifier_leaves_the_archive(tmp_path, lidc, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    marked(tmp_path / "in")
    broken = marked(tmp_path / "in", 1)
    broken.write_bytes(broken.read_bytes()[:-3000])
    write_patients(tmp_path / "in", 3, 2)
    assert all(
        any(word.encode() in one.read_bytes() for one in (tmp_path / "in").rglob("*") if one.is_file()) for word in MARKERS[:17]
    )
    result, path = lidc("--slices", "all", code=1)
    assert read_header(path).n == 7
    files = [one for one in tmp_path.iterdir() if one.is_file()]
    assert {one.suffix for one in files} == {".h5", ".json"}
    stored = b"".join(one.read_bytes() for one in files)
    identifiers = [word.encode() for word in MARKERS] + [b"Nobody", str(uid("series", "s", "p0")).encode()]
    assert [word for word in identifiers if word in stored] == []
    shown = result.output + caplog.text + "".join(capfd.readouterr())
    assert [word for word in MARKERS[:17] if word in shown] == []  # file names are shown


def test_invalid_elements_are_not_shown(tmp_path, lidc, capfd):
    data = ct(patient="p9")
    data.PatientBirthDate, data.Exposure = "19991231", "1405"
    path = write(data, tmp_path / "in" / "a")
    path.write_bytes(path.read_bytes().replace(b"19991231", b"SECRETXX").replace(b"1405", b"SECR"))
    write_patients(tmp_path / "in", 2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result, path = lidc()
    assert read_header(path).n == 3
    assert "SECR" not in result.output + "".join(capfd.readouterr())


@pytest.mark.parametrize("wrong", ["--slices first", "--slices every:0", "--views 0", "--size 3", "--sigma -1", "--series two"])
def test_wrong_option_of_lidc(tmp_path, lidc, wrong):
    write_patients(tmp_path / "in", 2, 1)
    _, path = lidc(*wrong.split(), code=1 if "slices" in wrong else 2)
    assert not path.exists()


def test_real_archive(shared_data, lidc):
    _, path = lidc("--slices", "all", source=shared_data / "ct_dicom")
    header = read_header(path)
    assert header.n == 36
    assert len(set(stored(path, "subject"))) == 9
    assert 0 <= stored(path, "image").min() < 0.01


def test_real_odd_files(shared_data, lidc):
    for plugin in ("libjpeg", "openjpeg"):
        pytest.importorskip(plugin)
    result, path = lidc("--slices", "all", source=shared_data / "ct_dicom_odd")
    assert read_header(path).n == 11  # of the nine encodings of one slice, the two that lose something are their own volumes
    for name in ("cs_no-pixel-data", "deid_ct_ybr_colour", "dp_CT0012", "dwv_CR_monochrome1", "fod_localizer"):
        assert name in result.output
    assert "a map (PERFUSION): not Hounsfield units" in result.output
