"""Small MR and CT series as sent by scanners, volumes to write, and checks of the written files: a validator, positions."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pydicom
import pytest
import torch
from ignite.engine import Engine
from pydicom import Dataset, dcmwrite
from pydicom.uid import ImplicitVRLittleEndian, generate_uid

from es_medical.data import SliceDataset
from es_medical.data.geometry import Geometry
from es_medical.output.dicom.header import MR
from es_medical.output.dicom.series import file_meta
from es_medical.output.dicom.source import read_source
from es_medical.output.dicom.writer import DicomWriter
from es_medical.output.saving import SaveReconstructions
from es_medical.output.volume import Volume

MARKER = "MARKERWORD"
ANGLE = 0.3
OBLIQUE = (np.cos(ANGLE), np.sin(ANGLE), 0.0, 0.0, 0.0, -1.0)


def source_plane(index, size=(12, 10), spacing=(1.5, 0.75), orientation=OBLIQUE, between=4.0):
    normal = np.cross(orientation[:3], orientation[3:])
    return Geometry(tuple(np.array([-20.0, 30.0, 12.5]) + index * between * normal), orientation, spacing, between)


SCANS = {
    "MR": {
        "ImageType": ["ORIGINAL", "PRIMARY", "OTHER"],
        "ScanningSequence": "SE",
        "SequenceVariant": "SK",
        "ScanOptions": "",
        "MRAcquisitionType": "2D",
        "RepetitionTime": "2500",
        "EchoTime": "30",
        "EchoTrainLength": "4",
        "MagneticFieldStrength": "3",
        "PixelRepresentation": 0,
    },
    "CT": {
        "ImageType": ["ORIGINAL", "PRIMARY", "AXIAL"],
        "ScanOptions": "HELICAL MODE",
        "KVP": "120",
        "AcquisitionNumber": "3",
        "GantryDetectorTilt": "0",
        "ConvolutionKernel": "LUNG",
        "Exposure": "15",
        "RescaleSlope": "1",
        "RescaleIntercept": "-1024",
        "RescaleType": "HU",
        "PixelRepresentation": 0,
    },
}


def scanned(plane, number, size=(12, 10), study="1.2.3.4", series="1.2.3.4.5", kind=MR, **changes):
    """One slice as a scanner sends it, with private elements and an operator that must not be copied."""
    one = Dataset()
    one.SOPClassUID, one.SOPInstanceUID = kind.sop_class, generate_uid()
    one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = study, series, "1.2.3.4.6"
    one.PatientName, one.PatientID, one.PatientBirthDate, one.PatientSex = "Doe^Jane", "id17", "19700102", "F"
    one.StudyDate, one.StudyTime, one.StudyID, one.AccessionNumber = "20200304", "101112", "st1", "acc1"
    one.ReferringPhysicianName, one.StudyDescription = "Ref^Doc", "KNEE"
    one.OperatorsName = one.StationName = MARKER
    one.private_block(0x0011, "MAKER", create=True).add_new(1, "LO", MARKER)
    one.Modality, one.Manufacturer, one.SeriesNumber, one.InstanceNumber = kind.modality, "Scanner", 7, number
    one.BodyPartExamined, one.Laterality, one.PatientPosition = "KNEE", "L", "FFS"
    one.SliceThickness, one.PositionReferenceIndicator = "3.5", ""
    one.ImagePositionPatient = [f"{value:.6f}" for value in plane.position]
    one.ImageOrientationPatient = [f"{value:.8f}" for value in plane.orientation]
    one.PixelSpacing = list(plane.spacing)
    one.Rows, one.Columns = size
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
    one.BitsAllocated, one.BitsStored, one.HighBit = 16, 12, 11
    one.PixelData = np.full(size, number, "<u2").tobytes()
    for name, value in (SCANS[kind.modality] | changes).items():
        if value is not None:
            setattr(one, name, value)
        elif name in one:
            delattr(one, name)
    return one


def write_source(folder, n=3, size=(12, 10), spacing=(1.5, 0.75), orientation=OBLIQUE, **changes):
    """A series of n slices whose file names and instance numbers run against the slice normal."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(n):
        write_slice(folder / f"IM{n - i}", scanned(source_plane(i, size, spacing, orientation), n - i, size, **changes))
    return folder


def write_slice(file, one):
    one.file_meta = file_meta(one.SOPClassUID, one.SOPInstanceUID)
    one.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    dcmwrite(file, one, enforce_file_format=True)


def random_volume(n=3, size=(5, 5), planes=None, scale=3e-5, seed=0, name="volume", subject="0123abcd"):
    rng = np.random.default_rng(seed)
    images = {key: (rng.random((n, *size)) * scale).astype(np.float32) for key in ("reconstruction", "spread")}
    return Volume(name, subject, images, np.arange(n), planes or tuple(Geometry.nominal(size, index=i) for i in range(n)))


def written(derivation, folder, volume, source=None):
    """The data sets of the series by file name, and the parametric map; `source` is a folder or a series."""
    pytest.importorskip("highdicom", reason="the extra `dicom` is not installed")
    series = read_source(source, derivation.kind) if isinstance(source, Path) else source
    DicomWriter(folder, derivation, series).write(volume)
    files = sorted((folder / volume.name / "reconstruction").iterdir())
    return [pydicom.dcmread(file) for file in files], pydicom.dcmread(folder / volume.name / "spread" / "0001.dcm")


def values_of(image):
    return image.pixel_array * float(image.RescaleSlope) + float(image.RescaleIntercept)


def assert_valid(folder):
    """A validator finds no error in any DICOM file below a folder."""
    files = [folder] if folder.is_file() else [one for one in sorted(folder.rglob("*")) if one.is_file()]
    errors = {file.name: validator_errors(file) for file in files if pydicom.misc.is_dicom(file)}
    assert errors
    assert not any(errors.values()), errors


def validator_errors(path):
    """Error lines of dciodvfy; skips the test if the tool is absent."""
    if shutil.which("dciodvfy") is None:
        pytest.skip("dciodvfy is not installed (Debian: dicom3tools)")
    done = subprocess.run(["dciodvfy", str(path)], capture_output=True, text=True, timeout=60, check=False)
    text = done.stdout + done.stderr
    assert any(word in text for word in ("MRImage", "CTImage", "ParametricMap"))  # it recognised the object
    return [line for line in text.splitlines() if "Error" in line]


def save(folder, path, images, channels=2, **options):
    """Runs the handler over all slices at once: what it is given is `images` (N, H, W), the spread a tenth of them."""
    both = torch.zeros(len(images), channels, *images.shape[1:])
    both[:, -1] = torch.from_numpy(images)
    save_all(folder, path, both, both.abs() / 10, **options)


def save_all(folder, path, images, spread, **options):
    """The same for images and their spread (N, C, H, W)."""
    handler = SaveReconstructions(folder, SliceDataset(path), **options)
    result = SimpleNamespace(image=images, spread=spread, heldout=torch.zeros(len(images)))
    engine = Engine(lambda engine, batch: result)
    handler.attach(engine)
    engine.run([{"index": torch.arange(len(images))}])


def nifti_point(path):
    """RAS point of the brightest voxel."""
    image = nib.load(path)
    voxel = np.unravel_index(np.nanargmax(image.get_fdata()), image.shape)
    return nib.affines.apply_affine(image.affine, voxel)


def dicom_point(folder):
    """LPS point of the brightest voxel, from the attributes alone."""
    images = list(map(pydicom.dcmread, folder.iterdir()))
    bright = max(images, key=lambda one: one.pixel_array.max())
    row, column = np.unravel_index(bright.pixel_array.argmax(), bright.pixel_array.shape)
    d_column, d_row = np.reshape(bright.ImageOrientationPatient, (2, 3)).astype(float)
    position = np.array(bright.ImagePositionPatient, float)
    return position + row * bright.PixelSpacing[0] * d_row + column * bright.PixelSpacing[1] * d_column


def spread_point(path):
    """LPS point of the brightest voxel of a parametric map."""
    one = pydicom.dcmread(path)
    pixels = np.reshape(one.pixel_array, (-1, one.Rows, one.Columns))
    frame, row, column = np.unravel_index(pixels.argmax(), pixels.shape)
    shared = one.SharedFunctionalGroupsSequence[0]
    d_column, d_row = np.reshape(shared.PlaneOrientationSequence[0].ImageOrientationPatient, (2, 3)).astype(float)
    spacing = shared.PixelMeasuresSequence[0].PixelSpacing
    position = one.PerFrameFunctionalGroupsSequence[frame].PlanePositionSequence[0].ImagePositionPatient
    return np.array(position, float) + row * spacing[0] * d_row + column * spacing[1] * d_column


def points(out, name="0123abcd"):
    ras = [nifti_point(out / f"{name}_{kind}.nii.gz") for kind in ("reconstruction", "spread")]
    lps = [dicom_point(out / "dicom" / name / "reconstruction"), spread_point(out / "dicom" / name / "spread" / "0001.dcm")]
    return [*(point * (-1, -1, 1) for point in ras), *lps]
