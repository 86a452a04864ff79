"""Writers of small synthetic CT archives."""

from pathlib import Path

import numpy as np
from pydicom import Dataset
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian, generate_uid

AXIAL = (1, 0, 0, 0, 1, 0)


def uid(*parts):
    return generate_uid(entropy_srcs=[str(part) for part in parts])


def disc(size=(32, 32), inside=40.0, outside=-1000.0):
    """Tissue in air, Hounsfield units."""
    rows, columns = np.indices(size)
    half = min(size) / 2
    return np.where(np.hypot(rows - size[0] / 2, columns - size[1] / 2) < 0.7 * half, inside, outside)


def ct(
    hu=None, z=0.0, series="s", patient="p", key=None, intercept=-1024, slope=1, syntax=ExplicitVRLittleEndian, signed=False
):
    """One CT image; every element can be changed before `write`."""
    hu = disc() if hu is None else np.asarray(hu)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = syntax, CTImageStorage
    meta.MediaStorageSOPInstanceUID = uid(series, patient, z if key is None else key)
    encoding = {"is_implicit_VR": syntax == ImplicitVRLittleEndian, "is_little_endian": syntax != ExplicitVRBigEndian}
    data = FileDataset("", Dataset(), file_meta=meta, preamble=b"\0" * 128, **encoding)
    data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    data.Modality, data.ImageType = "CT", ["ORIGINAL", "PRIMARY", "AXIAL"]
    data.PatientID, data.PatientName = patient, "Nobody"
    data.StudyInstanceUID, data.SeriesInstanceUID = uid("study", patient), uid("series", series, patient)
    data.ImagePositionPatient, data.ImageOrientationPatient = [0, 0, z], list(AXIAL)
    data.PixelSpacing, data.SliceThickness = [1, 1], 2.5
    data.Rows, data.Columns = hu.shape
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", int(signed)
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
    if intercept is not None:
        data.RescaleSlope, data.RescaleIntercept = slope, intercept
    stored = np.round((hu - (intercept or 0)) / slope)
    order = ">" if syntax == ExplicitVRBigEndian else "<"
    return with_pixels(data, stored.astype(f"{order}{'i' if signed else 'u'}2"))


def with_pixels(data, stored):
    data.PixelData = stored.tobytes()
    data["PixelData"].VR = "OW"
    return data


def write(data, path):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def write_bare(data, path):
    """A data set without preamble and file meta information, implicit little endian."""
    bare = Dataset()
    bare.update({element.tag: element for element in data})
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    bare.save_as(path, implicit_vr=True, little_endian=True)
    assert path.read_bytes()[128:132] != b"DICM"
    return path


def write_series(folder, n=4, step=2.5, patient="p", series="s", change=None, **how):
    """Slices of one series; `change(data, i)` alters each before it is written."""
    paths = []
    for i in range(n):
        data = ct(z=i * step, patient=patient, series=series, **how)
        if change:
            change(data, i)
        paths.append(write(data, folder / f"{i:03d}.dcm"))
    return paths


def write_patients(folder, n=4, slices=2, **how):
    for k in range(n):
        write_series(folder / f"patient{k}", slices, patient=f"p{k}", **how)
    return folder


IMPLICIT = ImplicitVRLittleEndian
