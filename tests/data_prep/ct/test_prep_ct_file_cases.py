"""Inference on CT series that once gave a wrong number, or failed late: volumes of their own, or refused at once."""

import numpy as np
import pydicom
import pytest
from columns import nifti
from ct_archives import ct, disc, uid, write, write_patients
from enhanced_dicom import enhanced
from test_prep_ct_file import SIGMA, SIZE, VIEWS, reconstruct, reconstructions, series, weights_of
from tiny import causes, names


@pytest.fixture
def trained(tmp_path, prep):
    """Weights of a tiny untrained network, for what `data_prep lidc` made."""
    write_patients(tmp_path / "raw", 3, 1)
    prep("lidc", tmp_path / "raw", tmp_path / "train.h5", "--size", SIZE, "--views", VIEWS, "--sigma", SIGMA)
    weights_of(tmp_path, tmp_path / "train.h5")
    return lambda source, **knobs: reconstruct(tmp_path, source, **knobs)


def two_studies(folder):
    """Baseline and follow-up under one SeriesInstanceUID, shifted by half a slice; in one folder."""
    for k in range(2):
        for i in range(3):
            data = ct(disc(inside=300.0 * k), z=2.5 * i + 1.25 * k, key=(k, i))
            data.StudyInstanceUID, data.FrameOfReferenceUID = f"1.2.3.{k}", f"1.2.4.{k}"
            write(data, folder / f"{k}{i}.dcm")
    return folder


def test_two_studies_are_two_volumes_and_no_source(tmp_path, trained):
    """S1"""
    source = two_studies(tmp_path / "in")
    with pytest.raises(RuntimeError) as caught:
        trained(source, source_dicom=str(source))
    assert "holds 2 volumes, which differ in StudyInstanceUID" in causes(caught.value)
    assert not (tmp_path / "eval" / "reconstructions.h5").exists()
    out = trained(source, dicom=False)
    found = reconstructions(out)
    for name in set(found["volume"]):
        heights = sorted(found["position"][np.array(found["volume"]) == name, 2])
        assert np.diff(heights).tolist() == [2.5, 2.5]
        assert nifti(out / f"{name}_reconstruction.nii.gz").shape[0] == 3


def test_an_enhanced_image_is_reconstructed_into_its_study(tmp_path, trained):
    """R1, S12"""
    bone = disc(inside=40.0)
    bone[12:16, 12:16] = 3000
    images = [ct(bone if k == 1 else disc(), z=2.5 * k, patient="p9") for k in (2, 0, 1)]
    for image in images:
        image.FrameOfReferenceUID = uid("frame")
    (tmp_path / "in").mkdir()
    source = write(enhanced(images), tmp_path / "in" / "enhanced.dcm")
    out = trained(source, source_dicom=str(source))
    (name,) = names(out / "dicom")
    written = [pydicom.dcmread(path) for path in sorted((out / "dicom" / name / "reconstruction").iterdir())]
    assert [float(one.ImagePositionPatient[2]) for one in written] == [0, 2.5, 5]
    assert [one.SourceImageSequence[0].ReferencedFrameNumber for one in written] == [2, 3, 1]
    assert {one.PatientID for one in written} == {"p9"}
    said = [one.get("ImageComments", "") for one in written]
    assert said[0] == said[2] == ""
    assert said[1].startswith("Values stop at 1000 HU: 4 pixels")


def test_invalid_dates_stop_nothing(tmp_path, trained):
    """R4"""
    source = series(tmp_path / "in", change=lambda data, i: setattr(data, "StudyDate", "20200304"))
    for path in source.iterdir():
        path.write_bytes(path.read_bytes().replace(b"20200304", b"2020-3-4"))
    out = trained(source, source_dicom=str(source))
    (name,) = names(out / "dicom")
    assert {pydicom.dcmread(path).StudyDate for path in (out / "dicom" / name / "reconstruction").iterdir()} == {""}
