"""Files like those of archives, for the benchmark of preparation."""

from pathlib import Path

import h5py
import nibabel
import numpy as np
from PIL import Image
from pydicom.datadict import dictionary_VR, tag_for_keyword

from data_prep.demo.chest import series
from data_prep.demo.kspace import kspace_of
from data_prep.mri.normalisation import crop_or_pad
from data_prep.mri.simulation import magnitude

HEADER = """<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>{rows}</x><y>{columns}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>{rows}</x><y>{columns}</y><z>3</z></fieldOfView_mm></encodedSpace>
<reconSpace><matrixSize><x>{side}</x><y>{side}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>{side}</x><y>{side}</y><z>3</z></fieldOfView_mm></reconSpace>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>{last}</maximum><center>{center}</center>
</kspace_encoding_step_1></encodingLimits></encoding></ismrmrdHeader>"""

FURTHER = """
InstanceCreationDate InstanceCreationTime StudyDate SeriesDate AcquisitionDate ContentDate StudyTime AcquisitionTime
ContentTime AccessionNumber Manufacturer ReferringPhysicianName StudyDescription SeriesDescription ManufacturerModelName
PatientBirthDate PatientWeight MedicalAlerts Allergies EthnicGroup AdditionalPatientHistory PatientComments
DeidentificationMethod ScanOptions KVP DataCollectionDiameter SoftwareVersions ProtocolName ReconstructionDiameter
TableHeight XRayTubeCurrent Exposure FilterType ConvolutionKernel PatientPosition StudyID SeriesNumber AcquisitionNumber
PositionReferenceIndicator SliceLocation ImageComments WindowCenter WindowWidth RequestedProcedureDescription SpecialNeeds
PatientState PreMedication ContrastBolusAgent BodyPartExamined ExposureTime GeneratorPower FocalSpots"""


def make_volume(path: Path, slices: int, size: tuple[int, int], seed: int) -> Path:
    """Write a file like fastMRI's single-coil ones: noisy k-space of an ellipse with smooth phase, magnitude, header."""
    rows, columns = np.ogrid[: size[0], : size[1]]
    side = size[0] // 2
    u, v = (rows - size[0] // 2) / side, (columns - size[1] // 2) / side
    object_ = (np.hypot(u / 0.4, v / 0.3) < 1) * np.exp(1j * (u + 2 * v))
    clean = kspace_of(object_)
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        kspace = file.create_dataset("kspace", (slices, *size), np.complex64)
        target = file.create_dataset("reconstruction_esc", (slices, side, side), np.float32)
        for i in range(slices):
            kspace[i] = k = 1e-5 * (clean + 0.01 * (rng.standard_normal(size) + 1j * rng.standard_normal(size)))
            target[i] = crop_or_pad(magnitude(k), (side, side))
        file["ismrmrd_header"] = HEADER.format(rows=size[0], columns=size[1], side=side, last=size[1] - 1, center=size[1] // 2)
        file.attrs.update({"acquisition": "CORPD_FBK", "patient_id": f"patient {seed}", "max": 1e-5, "norm": 1e-3})
    return path


def make_series(folder: Path, slices: int, side: int, seed: int) -> list[Path]:
    """Write a CT series: a chest, 16 bits, uncompressed, with as many elements in its headers as LIDC-IDRI's files have."""
    folder.mkdir(parents=True)
    paths = [folder / f"{k:04d}.dcm" for k in range(slices)]
    for path, data in zip(paths, series(seed, slices, side, seed), strict=True):
        for keyword in FURTHER.split():
            kind = dictionary_VR(tag_for_keyword(keyword) or 0)
            setattr(data, keyword, {"DA": "20000101", "TM": "120000", "DS": "1.5", "IS": "3"}.get(kind, "EXAMPLE"))
        data.save_as(path, enforce_file_format=True)
    return paths


def make_nifti(path: Path, slices: int, side: int, seed: int) -> Path:
    """Write an MR volume (side, side, slices): an ellipsoid with texture, 1 mm voxels, compressed."""
    u, v = np.ogrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    inside = (np.hypot(u / 0.8, v / 0.6) < 1)[..., None]
    voxels = inside * np.random.default_rng(seed).integers(500, 1000, (side, side, slices))
    nibabel.save(nibabel.Nifti1Image(voxels.astype(np.int16), np.eye(4)), path)
    return path


def make_photo(path: Path, side: int, seed: int) -> Path:
    """Write a colour photograph of noise as PNG."""
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)).save(path)
    return path


def make_scan(path: Path, rows: int, side: int, seed: int) -> Path:
    """Write a CT scan of a cylinder, (side views, rows, side bins) counts with white and dark fields, as Data Exchange HDF5."""
    chord = 4 * np.sqrt(np.clip(0.6**2 - np.linspace(-1, 1, side) ** 2, 0, None))
    counts = np.random.default_rng(seed).poisson(1e4 * np.exp(-chord), (side, rows, side))
    with h5py.File(path, "w") as file:
        exchange = file.create_group("exchange")
        exchange["data"], exchange["theta"] = counts.astype(np.uint16), np.arange(side) * 180 / side
        exchange["data_white"], exchange["data_dark"] = (np.full((1, rows, side), value, np.uint16) for value in (10_000, 0))
    return path
