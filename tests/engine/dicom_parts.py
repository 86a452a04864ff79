"""A small MR series as a scanner sends it, volumes to write, and the tools that read DICOM."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from pydicom import Dataset, dcmwrite
from pydicom.uid import ImplicitVRLittleEndian, MRImageStorage, generate_uid

from es_medical.data.geometry import Geometry
from es_medical.engine.dicom_series import file_meta
from es_medical.engine.volume import Volume

MARKER = "MARKERWORD"
ANGLE = 0.3
OBLIQUE = (np.cos(ANGLE), np.sin(ANGLE), 0.0, 0.0, 0.0, -1.0)


def source_plane(index, size=(12, 10), spacing=(1.5, 0.75), orientation=OBLIQUE, between=4.0):
    normal = np.cross(orientation[:3], orientation[3:])
    return Geometry(tuple(np.array([-20.0, 30.0, 12.5]) + index * between * normal), orientation, spacing, between)


def scanned(plane, number, size=(12, 10), study="1.2.3.4", series="1.2.3.4.5", **changes):
    """One slice as a scanner sends it, with private elements and an operator that must not be copied."""
    one = Dataset()
    one.SOPClassUID, one.SOPInstanceUID = MRImageStorage, generate_uid()
    one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = study, series, "1.2.3.4.6"
    one.PatientName, one.PatientID, one.PatientBirthDate, one.PatientSex = "Doe^Jane", "id17", "19700102", "F"
    one.StudyDate, one.StudyTime, one.StudyID, one.AccessionNumber = "20200304", "101112", "st1", "acc1"
    one.ReferringPhysicianName, one.StudyDescription = "Ref^Doc", "KNEE"
    one.OperatorsName = one.StationName = MARKER
    one.private_block(0x0011, "MAKER", create=True).add_new(1, "LO", MARKER)
    one.Modality, one.Manufacturer, one.SeriesNumber, one.InstanceNumber = "MR", "Scanner", 7, number
    one.ImageType = ["ORIGINAL", "PRIMARY", "OTHER"]
    one.ScanningSequence, one.SequenceVariant, one.ScanOptions, one.MRAcquisitionType = "SE", "SK", "", "2D"
    one.RepetitionTime, one.EchoTime, one.EchoTrainLength, one.MagneticFieldStrength = "2500", "30", "4", "3"
    one.BodyPartExamined, one.Laterality, one.PatientPosition = "KNEE", "L", "FFS"
    one.SliceThickness, one.PositionReferenceIndicator = "3.5", ""
    one.ImagePositionPatient = [f"{value:.6f}" for value in plane.position]
    one.ImageOrientationPatient = [f"{value:.8f}" for value in plane.orientation]
    one.PixelSpacing = list(plane.spacing)
    one.Rows, one.Columns = size
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
    one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 12, 11, 0
    one.PixelData = np.full(size, number, "<u2").tobytes()
    for name, value in changes.items():
        if value is None:
            delattr(one, name)
        else:
            setattr(one, name, value)
    return one


def write_source(folder, n=3, size=(12, 10), spacing=(1.5, 0.75), orientation=OBLIQUE, **changes):
    """A series of n slices whose file names and instance numbers run against the slice normal."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        one = scanned(source_plane(i, size, spacing, orientation), n - i, size, **changes)
        one.file_meta = file_meta(one.SOPClassUID, one.SOPInstanceUID)
        one.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
        dcmwrite(folder / f"IM{n - i}", one, enforce_file_format=True)
    return folder


def random_volume(n=3, size=(5, 5), planes=None, scale=3e-5, seed=0, name="volume", subject="0123abcd"):
    rng = np.random.default_rng(seed)
    images = {key: (rng.random((n, *size)) * scale).astype(np.float32) for key in ("reconstruction", "spread")}
    return Volume(name, subject, images, np.arange(n), planes or tuple(Geometry.nominal(size, index=i) for i in range(n)))


def validator_errors(path):
    """Lines of dciodvfy that say Error; skips the test where the tool is absent."""
    if shutil.which("dciodvfy") is None:
        pytest.skip("dciodvfy is not installed (Debian: dicom3tools)")
    done = subprocess.run(["dciodvfy", str(path)], capture_output=True, text=True, timeout=60, check=False)
    text = done.stdout + done.stderr
    assert "MRImage" in text or "ParametricMap" in text  # it knew what it read
    return [line for line in text.splitlines() if "Error" in line]
