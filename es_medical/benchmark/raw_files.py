"""Files like those of archives, for the benchmark of preparation."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pydicom

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
    """Write a CT series: a noisy disc of water in air, 16 bits, uncompressed, as most of LIDC-IDRI is."""
    folder.mkdir(parents=True)
    rng, paths = np.random.default_rng(seed), []
    u, v = np.ogrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    clean = np.where(np.hypot(u / 0.8, v / 0.6) < 1, 0.0, -1000.0)
    for k in range(slices):
        hu = clean + rng.normal(0, 20, clean.shape)
        data: Any = pydicom.Dataset()
        data.file_meta = pydicom.dataset.FileMetaDataset()
        data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.CTImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = f"1.2.{seed}.{k}"
        data.Modality, data.ImageType, data.PatientID = "CT", ["ORIGINAL", "PRIMARY", "AXIAL"], f"p{seed}"
        data.StudyInstanceUID, data.SeriesInstanceUID = f"1.3.{seed}", f"1.4.{seed}"
        data.ImagePositionPatient, data.ImageOrientationPatient = [0, 0, 2.5 * k], [1, 0, 0, 0, 1, 0]
        data.PixelSpacing, data.SliceThickness, data.InstanceNumber = [0.7, 0.7], 2.5, k
        data.Rows, data.Columns, data.SamplesPerPixel, data.PhotometricInterpretation = side, side, 1, "MONOCHROME2"
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
        data.RescaleSlope, data.RescaleIntercept = 1, -1024
        data.PixelData = np.round(hu + 1024).astype("<i2").tobytes()
        paths.append(folder / f"{k:04d}.dcm")
        data.save_as(paths[-1], enforce_file_format=True)
    return paths
