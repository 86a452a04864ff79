"""CT on the disk: Hounsfield units in NIfTI and DICOM, at one place, with and without a source; what is refused, and when."""

from dataclasses import replace

import h5py
import nibabel as nib
import numpy as np
import pydicom
import pytest
import torch
from dicom_parts import OBLIQUE, assert_valid, points, save, scanned, source_plane, values_of, write_slice, write_source
from enhanced_dicom import enhanced
from tiny import names

from es_medical.data import Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter
from es_medical.data.geometry import Geometry
from es_medical.output.dicom.header import CT
from es_medical.output.saving import SaveReconstructions

SIZE, N, VIEWS, DETECTORS = (12, 10), 4, 7, 15
SCALE, OFFSET = 2000.0, -1000.0  # HU = stored * scale + offset
NAME = "0123abcd"


def slice_file(folder, planes=None, size=SIZE, by_ray=False, modality="CT", clipped=(), **configuration):
    """Sinograms of one volume; every second view is measured, or three rays of each of them (`by_ray`)."""
    mask = torch.arange(VIEWS) % 2 == 0
    if by_ray:
        mask = mask[:, None] & (torch.arange(DETECTORS) % 5 == 3)
    header = SliceHeader(0.001, mask, 2.0, modality=modality, operator={"kind": "parallel"}, configuration=configuration)
    path = folder / "slices.h5"
    with SliceWriter(path, header, size, with_image=False, shapes=Shapes.sinogram(size, (VIEWS, DETECTORS))) as writer:
        for i in range(len(planes) if planes else N):
            plane = planes[i] if planes else Geometry()
            place = {name: getattr(plane, name) for name in ("spacing", "position", "orientation", "slice_spacing")}
            y = torch.zeros(1, VIEWS, DETECTORS)
            writer.append(
                SliceRecord(y, None, f"item{i}", NAME, "test", SCALE, OFFSET, slice=i, clipped=sum(clipped[i : i + 1]), **place)
            )
    return path


def marked(index, row, column, size=SIZE, n=N):
    """Air with one voxel of bone, in [0, 1] but for a slight overshoot below air, (n, H, W)."""
    images = np.full((n, *size), -0.01, np.float32)
    images[index, row, column] = 0.9
    return images


def images_of(folder):
    images = [pydicom.dcmread(file) for file in sorted(folder.iterdir())]
    return images, [values_of(one) for one in images]


def test_hounsfield_units_keep_their_sign_and_the_spread_has_no_offset(tmp_path):
    stored = np.random.default_rng(0).random((N, *SIZE)).astype(np.float32) * 1.2 - 0.1
    save(tmp_path / "out", slice_file(tmp_path, [source_plane(i) for i in range(N)]), stored, channels=1, dicom=True)
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        assert file["reconstruction"].shape == file["spread"].shape == (N, 1, *SIZE)
    for name, expected in (("reconstruction", stored * SCALE + OFFSET), ("spread", np.abs(stored) / 10 * SCALE)):
        nifti = nib.load(tmp_path / "out" / f"{NAME}_{name}.nii.gz")
        assert f"{name} in HU".encode() in nifti.header["descrip"].item()
        np.testing.assert_allclose(nifti.get_fdata().transpose(2, 1, 0), expected, rtol=1e-5, atol=1e-3)
    images, back = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    assert np.abs(np.stack(back) - (stored * SCALE + OFFSET)).max() <= 0.5 * images[0].RescaleSlope + 1e-3
    assert np.min(back) < -1000
    spread = pydicom.dcmread(tmp_path / "out" / "dicom" / NAME / "spread" / "0001.dcm")
    places = [one.PlanePositionSequence[0].ImagePositionPatient for one in spread.PerFrameFunctionalGroupsSequence]
    order = np.argsort(np.array(places, float) @ source_plane(0).normal)
    np.testing.assert_allclose(spread.pixel_array[order], np.abs(stored) / 10 * SCALE, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("by_ray", [False, True])
def test_headers_tell_the_method_and_the_measured_views(tmp_path, by_ray):
    save(tmp_path / "out", slice_file(tmp_path, by_ray=by_ray), marked(0, 1, 1), channels=1, dicom=True, method="ES-R2R")
    for file in (tmp_path / "out" / "dicom" / NAME / "reconstruction").iterdir():
        text = pydicom.dcmread(file).DerivationDescription
        assert text.startswith(
            "Hounsfield units reconstructed by a network (method: ES-R2R) from a sinogram of 4 views, es_med"
        )


@pytest.mark.parametrize("stated", [True, False], ids=["positions", "spacing only"])
@pytest.mark.parametrize("orientation", [OBLIQUE, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)], ids=["oblique", "axial"])
def test_the_source_gives_patient_and_place_after_the_resize(tmp_path, stated, orientation):
    source = write_source(tmp_path / "source", N, orientation=orientation, kind=CT)
    full = [source_plane(i, orientation=orientation) for i in range(N)]
    half = [plane.rescaled(SIZE, (6, 5)) if stated else Geometry(spacing=(3.0, 1.5)) for plane in full]
    options = {"channels": 1, "dicom": True, "source_dicom": source}
    save(tmp_path / "out", slice_file(tmp_path, half, (6, 5)), marked(1, 3, 2, (6, 5)), **options)
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, full[1].world(6.5, 4.5), atol=1e-4)
    for file in (tmp_path / "out" / "dicom").rglob("*.dcm"):
        one = pydicom.dcmread(file)
        assert (one.PatientID, one.StudyInstanceUID, one.FrameOfReferenceUID) == ("id17", "1.2.3.4", "1.2.3.4.6")
    assert_valid(tmp_path / "out" / "dicom")
    images, _ = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    for image, plane in zip(images, full, strict=True):
        assert list(image.PixelSpacing) == [3.0, 1.5]
        np.testing.assert_allclose(image.ImagePositionPatient, plane.world(0.5, 0.5), atol=1e-5)


def test_the_middle_slice_alone_finds_its_slice_of_the_source(tmp_path):
    source = write_source(tmp_path / "source", N, kind=CT)
    path = slice_file(tmp_path, [source_plane(2).rescaled(SIZE, (6, 5))], (6, 5))
    save(tmp_path / "out", path, marked(0, 3, 2, (6, 5), 1), channels=1, dicom=True, source_dicom=source)
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, source_plane(2).world(6.5, 4.5), atol=1e-4)
    assert names(tmp_path / "out" / "dicom" / NAME / "reconstruction") == {"0001.dcm"}


def test_a_source_or_modality_that_does_not_fit_is_refused_before_any_reconstruction(tmp_path):
    mr = write_source(tmp_path / "mr", N)
    dataset = SliceDataset(slice_file(tmp_path), with_image=False)
    with pytest.raises(ValueError, match=r"not CT Image Storage: IM1, IM2, IM3 and 1 more \(MR Image Storage\)"):
        SaveReconstructions(tmp_path / "out", dataset, True, mr)
    other = SliceDataset(slice_file(tmp_path, modality="PT"), with_image=False)
    with pytest.raises(ValueError, match="'PT' has no DICOM output: expected one of MR, CT"):
        SaveReconstructions(tmp_path / "out", other, True)
    assert not (tmp_path / "out").exists()


def test_values_that_were_cut_are_told_in_the_log_and_in_the_files(tmp_path, caplog):
    """S12"""
    path = slice_file(tmp_path, [source_plane(i) for i in range(N)], clipped=(0, 17, 3))
    save(tmp_path / "out", path, marked(1, 3, 2), channels=1, dicom=True)
    assert f"volume {NAME}: values stop at 1000 HU, in 20 pixels of 2 slices" in caplog.text
    said = "Values stop at 1000 HU: 17 pixels of this slice held more before its measurements were simulated."
    images, _ = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    assert [one.get("ImageComments", "") for one in images] == ["", said, said.replace("17", "3"), ""]
    (extension,) = nib.load(tmp_path / "out" / f"{NAME}_reconstruction.nii.gz").header.extensions
    assert f"slice 1: {said}".encode() in extension.get_content()


@pytest.mark.filterwarnings("ignore:The value length")
def test_invalid_dates_of_the_source_are_left_out_with_a_warning(tmp_path, caplog):
    """R4"""
    with pydicom.config.disable_value_validation():
        source = write_source(tmp_path / "source", N, kind=CT, AccessionNumber="1" * 20)
    for file in source.iterdir():
        content = file.read_bytes()
        file.write_bytes(
            content.replace(b"20200304", b"2020AB04").replace(b"101112", b"10:1_2").replace(b"19700102", b"19709999")
        )
    save(tmp_path / "out", slice_file(tmp_path), marked(1, 3, 2), channels=1, dicom=True, source_dicom=source)
    images, _ = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    assert {(one.StudyDate, one.StudyTime, one.PatientID) for one in images} == {("", "", "id17")}
    assert {one.AccessionNumber for one in images} == {""}
    for name in ("StudyDate is no valid date", "StudyTime is no valid time", "AccessionNumber is no valid text"):
        assert name in caplog.text
    assert "2020AB04" not in caplog.text


def test_what_a_writer_refuses_shows_before_any_reconstruction(tmp_path, monkeypatch):
    """R4: whatever it is."""

    def refuse(values, images, derivation):
        assert len(images) == N
        raise TypeError("no such code")

    monkeypatch.setattr("es_medical.output.dicom.writer.spread_map", refuse)
    source = write_source(tmp_path / "source", N, kind=CT)
    dataset = SliceDataset(slice_file(tmp_path), with_image=False)
    with pytest.raises(ValueError, match="no DICOM can be made of the headers of the source: no such code"):
        SaveReconstructions(tmp_path / "out", dataset, True, source)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_shows_before_any_reconstruction(tmp_path):
    (tmp_path / "taken").touch()
    dataset = SliceDataset(slice_file(tmp_path), with_image=False)
    with pytest.raises(NotADirectoryError, match="taken"):
        SaveReconstructions(tmp_path / "taken" / "out", dataset)


def test_an_unknown_pixel_spacing_is_not_invented_and_the_place_is_kept(tmp_path, caplog):
    """S11"""
    planes = [replace(source_plane(i), spacing=(np.nan, np.nan)) for i in range(N)]
    save(tmp_path / "out", slice_file(tmp_path, planes), marked(1, 3, 2), channels=1, dicom=True)
    assert "the pixel spacing is unknown" in caplog.text
    nifti = nib.load(tmp_path / "out" / f"{NAME}_reconstruction.nii.gz")
    assert nifti.header.get_xyzt_units()[0] == "unknown"
    assert b"pixel spacing unknown" in nifti.header["descrip"].item()
    np.testing.assert_allclose(nifti.affine @ (0, 0, 0, 1), [*np.multiply(planes[0].position, (-1, -1, 1)), 1], atol=1e-4)
    images, _ = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    for image, plane in zip(images, planes, strict=True):
        np.testing.assert_allclose(image.ImagePositionPatient, plane.position, atol=1e-5)
        np.testing.assert_allclose(image.ImageOrientationPatient, OBLIQUE, atol=1e-6)
        assert "do not measure lengths" in image.ImageComments


def test_a_tilted_gantry_shears_the_nifti_volume_to_where_the_slices_are(tmp_path, caplog):
    """S15"""
    tilt = np.deg2rad(15)
    leaning = (1.0, 0.0, 0.0, 0.0, np.cos(tilt), np.sin(tilt))
    planes = [Geometry((-20.0, 30.0, 5.0 * i), leaning, (1.5, 0.75), 5.0 * np.cos(tilt)) for i in range(N)]
    save(tmp_path / "out", slice_file(tmp_path, planes), marked(2, 3, 4), channels=1, dicom=True)
    assert "gantry tilt of 15 degrees" in caplog.text
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, planes[2].world(3, 4), atol=1e-4)
    nifti = nib.load(tmp_path / "out" / f"{NAME}_reconstruction.nii.gz")
    assert (nifti.header["sform_code"], nifti.header["qform_code"]) == (1, 0)  # a qform cannot say a shear
    np.testing.assert_allclose(nifti.affine[:3, 2], [0, 0, 5], atol=1e-6)


@pytest.mark.parametrize("source", [True, False])
def test_burned_in_annotations_are_stated(tmp_path, source):
    """S14"""
    folder = write_source(tmp_path / "source", N, kind=CT, BurnedInAnnotation="YES") if source else None
    made = {} if source else {"burned_in": True}
    save(tmp_path / "out", slice_file(tmp_path, **made), marked(1, 3, 2), channels=1, dicom=True, source_dicom=folder)
    images, _ = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    assert {one.BurnedInAnnotation for one in images} == {"YES"}


def test_frames_of_an_enhanced_source_are_referred_to(tmp_path):
    """R1"""
    images = [scanned(source_plane(i), i, kind=CT) for i in (2, 0, 3, 1)]
    (tmp_path / "source").mkdir()
    write_slice(tmp_path / "source" / "enhanced", enhanced(images))
    save(tmp_path / "out", slice_file(tmp_path), marked(1, 3, 2), channels=1, dicom=True, source_dicom=tmp_path / "source")
    found, _ = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    for i, (image, frame) in enumerate(zip(found, (2, 4, 1, 3), strict=True)):
        assert image.SOPClassUID == CT.sop_class
        assert image.SourceImageSequence[0].ReferencedFrameNumber == frame
        assert (image.PatientID, image.StudyInstanceUID) == ("id17", "1.2.3.4")
        np.testing.assert_allclose(image.ImagePositionPatient, source_plane(i).position, atol=1e-5)


def test_a_real_slice_is_written_in_hounsfield_units_where_it_was(tmp_path, shared_data):
    """G1, G2, G10 through the handler: the file prepared as `data_prep` does it, 512 -> 128, its pixels as reconstruction."""
    file = shared_data / "ct_dicom" / "covid_A027284_coronal_19000925-058.dcm"
    if not file.is_file():
        pytest.skip("the real CT slices are not here")
    original = pydicom.dcmread(file)
    hu = original.pixel_array * float(original.RescaleSlope) + float(original.RescaleIntercept)
    stored = (np.clip(hu, -1000, 1000).reshape(128, 4, 128, 4).mean((1, 3)) - OFFSET) / SCALE
    full = Geometry(original.ImagePositionPatient, original.ImageOrientationPatient, original.PixelSpacing, 3.0)
    path = slice_file(tmp_path, [full.rescaled((512, 512), (128, 128))], (128, 128))
    options = {"channels": 1, "dicom": True, "source_dicom": file}
    save(tmp_path / "out", path, stored[None].astype(np.float32), **options)
    (image,), (back,) = images_of(tmp_path / "out" / "dicom" / NAME / "reconstruction")
    assert np.abs(back - (stored * SCALE + OFFSET)).max() <= 0.5 * image.RescaleSlope + 1e-3
    assert list(image.PixelSpacing) == [4 * value for value in original.PixelSpacing]
    np.testing.assert_allclose(image.ImagePositionPatient, full.world(1.5, 1.5), atol=1e-4)
    assert image.SourceImageSequence[0].ReferencedSOPInstanceUID == original.SOPInstanceUID
    assert (image.StudyInstanceUID, image.PatientID) == (original.StudyInstanceUID, original.PatientID)
    assert image.SOPInstanceUID not in (original.SOPInstanceUID, original.file_meta.MediaStorageSOPInstanceUID)
    nifti = nib.load(tmp_path / "out" / f"{NAME}_reconstruction.nii.gz")
    np.testing.assert_allclose(nifti.affine @ (0, 0, 0, 1), [*full.world(1.5, 1.5) * (-1, -1, 1), 1], atol=1e-4)
    assert_valid(tmp_path / "out" / "dicom")
