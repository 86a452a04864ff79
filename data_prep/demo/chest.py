"""Demo CT without a download: lung CT from an installed pycerr, or a chest phantom; both are read like a DICOM archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from pydicom import Dataset
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid
from scipy.ndimage import gaussian_filter

from data_prep.ct import lidc
from data_prep.ct.options import LIDCOptions
from data_prep.demo.options import ChestOptions
from data_prep.demo.packages import package_folders
from data_prep.run.manifest import PrepError
from data_prep.run.runner import PrepRun

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

FOLDER = ("datasets", "radiomics_phantom_dicom")
INSTALL = "pip install --no-deps pycerr==2.5.1"
PATIENTS, SLICES = 10, 20  # of the phantom


def pycerr_folder() -> Path | None:
    """The folder of CT slices in an installed pycerr, found without importing it; None if there is none."""
    folders = [folder.joinpath(*FOLDER) for folder in package_folders("cerr")]
    return next((folder for folder in folders if folder.is_dir()), None)


@contextmanager
def archive(options: ChestOptions, console: Console) -> Iterator[tuple[Path, bool]]:
    """The folder to read, and whether it holds real CT; a phantom is written to a temporary folder.

    Raises:
        PrepError: pycerr was requested but is not installed.
    """
    folder = None if options.source == "phantom" else pycerr_folder()
    if folder is not None:
        console.print("real lung CT of pycerr (CC BY-NC: not for commercial use)")
        yield folder, True
        return
    if options.source == "pycerr":
        raise PrepError(f"no pycerr with CT slices is installed: {INSTALL} (images CC BY-NC)")
    hint = f"; for real CT (4 patients, CC BY-NC): {INSTALL}" if options.source == "auto" else ""
    console.print(f"parametric chest phantom, {PATIENTS} patients{hint}", soft_wrap=True, markup=False)
    with TemporaryDirectory() as temporary:
        write_archive(Path(temporary), PATIENTS, SLICES, 2 * options.size, options.seed)
        yield Path(temporary), False


def prepare(prep: PrepRun[ChestOptions], overwrite: bool = False) -> bool:
    """Write the demo data set, unless it is up to date; see `data_prep.ct.lidc.prepare`."""
    with archive(prep.options, prep.console) as (folder, real):
        command, options = f"{prep.command} ({'pycerr' if real else 'phantom'})", lidc_options(prep.options, real)
        read = PrepRun(command, options, prep.out, prep.salt, prep.workers, prep.pool, prep.console)
        return lidc.prepare(read, folder, overwrite=overwrite)


def lidc_options(options: ChestOptions, real: bool) -> LIDCOptions:
    """Options of `lidc`: every slice, one patient for validation and one (phantom: two) for test."""
    train, test = (3, 1) if real else (PATIENTS - 2, 2)
    kept = {name: getattr(options, name) for name in ("size", "views", "sigma", "photons", "seed", "with_image")}
    licence = "slices of pycerr: CC BY-NC, not for commercial use" if real else "a phantom drawn by es_medical: Apache-2.0"
    return LIDCOptions(slices="all", series="all", train=train, test=test, val=1, licence=licence, **kept)


FIELD = 370.0  # mm, width of the square field of view
STEP = 5.0  # mm between slices
FAT, MUSCLE, LUNG, BLOOD, BONE, MARROW, AIR = -90.0, 50.0, -840.0, 45.0, 700.0, 180.0, -1000.0  # HU
INTERCEPT = -1024


class Chest:
    """Parametric chest of one patient.

    Args:
        rng: draws the anatomy.
        pixels: rows and columns of a slice.
    """

    def __init__(self, rng: np.random.Generator, pixels: int) -> None:
        self.rng = rng
        self.pixels = pixels
        self.spacing = FIELD / pixels
        axis = (np.arange(pixels) - (pixels - 1) / 2) * self.spacing
        self.y, self.x = np.meshgrid(axis, axis, indexing="ij")  # mm towards posterior, mm towards the patient's left
        self.body = rng.uniform((140, 95), (175, 125))  # half axes in mm
        self.fat = rng.uniform(6, 20)
        self.lung = rng.uniform((0.38, 0.66), (0.44, 0.76))  # of the body's half axes
        self.heart = rng.uniform((38, 32), (52, 42))
        self.shift = rng.uniform(-8, 8, 2)
        self.ribs = rng.uniform(0, np.pi, 2)
        n = int(rng.integers(40, 70))
        self.vessels = rng.uniform((-1, -1, -0.9, 1.0), (1, 1, 0.9, 5.0), (n, 4))  # x, y in the lung, slant, radius in mm

    def ellipse(self, x: float, y: float, a: float, b: float, angle: float = 0.0) -> NDArray[np.bool_]:
        """Pixels inside an ellipse about (x, y) with half axes a and b in mm, rotated by `angle` radians."""
        c, s = np.cos(angle), np.sin(angle)
        u, v = self.x - x, self.y - y
        inside = ((c * u + s * v) / a) ** 2 + ((c * v - s * u) / b) ** 2 < 1
        return np.asarray(inside)

    def slice(self, z: float) -> NDArray[np.float32]:
        """Hounsfield units (pixels, pixels) at height z from -1 (diaphragm) to 1 (apex)."""
        a, b = self.body * (1 - 0.06 * z)
        x0, y0 = self.shift
        hu = np.full((self.pixels, self.pixels), AIR)
        hu[self.ellipse(x0, y0, a, b)] = FAT
        hu[self.ellipse(x0, y0, a - self.fat, b - self.fat)] = MUSCLE
        lungs = self._lungs(z, a, b)
        for lung in lungs:
            hu[lung] = LUNG
        self._ribs(hu, a, b, z)
        self._vessels(hu, lungs, z, a, b)
        if z < 0.4:
            growth = np.sqrt(0.4 - z) + 0.3
            wide, deep = self.heart * growth
            hu[self.ellipse(x0 + 15, y0 - 18, wide, deep, 0.5)] = BLOOD
        hu[self.ellipse(x0 + 14, y0 + 28, 12, 12)] = BLOOD + 20  # aorta
        hu[self.ellipse(x0, y0 + 5 - 20 * max(z, 0), 9, 9)] = AIR + 20  # trachea
        self._spine(hu, x0, y0 + b - self.fat - 32)
        hu[self.ellipse(x0, y0 + b + 28, 190, 6)] = -300  # the table
        soft = gaussian_filter(hu, 0.6) + gaussian_filter(self.rng.standard_normal(hu.shape), 1.5) * 40
        return np.where(self.ellipse(x0, y0, a + 2, b + 2), soft, hu).astype(np.float32)

    def _lungs(self, z: float, a: float, b: float) -> list[NDArray[np.bool_]]:
        height = np.sqrt(max(1 - 0.55 * z * z, 0.1))
        x0, y0 = self.shift
        wide, deep = self.lung[0] * a * height, self.lung[1] * b * height
        return [self.ellipse(x0 + side * 0.45 * a, y0 - 2, wide, deep, -side * 0.12) for side in (-1, 1)]

    def _ribs(self, hu: NDArray, a: float, b: float, z: float) -> None:
        for k, angle in enumerate(np.linspace(0, 2 * np.pi, 14, endpoint=False)):
            phi = angle + self.ribs[k % 2] * 0.3 + 0.4 * z
            x, y = (a - self.fat - 9) * np.cos(phi), (b - self.fat - 9) * np.sin(phi)
            turn = np.arctan2(b * np.cos(phi), -a * np.sin(phi))
            x0, y0 = self.shift
            hu[self.ellipse(x0 + x, y0 + y, 13, 5, turn)] = BONE
            hu[self.ellipse(x0 + x, y0 + y, 9, 2.5, turn)] = MARROW

    def _vessels(self, hu: NDArray, lungs: list[NDArray[np.bool_]], z: float, a: float, b: float) -> None:
        inside = lungs[0] | lungs[1]
        for x, y, slant, radius in self.vessels:
            across, down = (x + 0.4 * slant * z) * 0.85 * a, (y + 0.4 * slant * z) * 0.7 * b
            hu[self.ellipse(across, down, radius * 1.5, radius, slant) & inside] = BLOOD - 20

    def _spine(self, hu: NDArray, x: float, y: float) -> None:
        hu[self.ellipse(x, y, 21, 17)] = BONE
        hu[self.ellipse(x, y, 17, 13)] = MARROW
        hu[self.ellipse(x, y + 25, 26, 7)] = BONE
        hu[self.ellipse(x, y + 19, 8, 7)] = 30.0  # spinal canal


def write_archive(folder: Path, patients: int, slices: int, pixels: int, seed: int) -> None:
    """Write one CT series per patient; the same arguments give the same bytes.

    Args:
        folder: where to write, in one folder per patient.
        patients: number of patients.
        slices: number of slices of each.
        pixels: rows and columns.
        seed: of the shapes.
    """
    for patient in range(patients):
        (folder / f"patient_{patient:02d}").mkdir(parents=True)
        for k, data in enumerate(series(patient, slices, pixels, seed)):
            data.save_as(folder / f"patient_{patient:02d}" / f"{k:03d}.dcm", enforce_file_format=True)


def series(patient: int, slices: int, pixels: int, seed: int) -> Iterator[FileDataset]:
    """The slices of one patient, see `write_archive`."""
    chest = Chest(np.random.default_rng([seed, patient]), pixels)
    for k, z in enumerate(np.linspace(-0.9, 0.9, slices)):
        data = _data_set([f"es_medical phantom {seed} {patient} {pixels} {slices}", str(k)])
        data.PatientID = f"phantom {seed}/{patient}"
        data.InstanceNumber = k + 1
        edge = -(FIELD - chest.spacing) / 2
        data.ImagePositionPatient = [edge, edge, k * STEP]
        data.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        data.PixelSpacing = [chest.spacing, chest.spacing]
        data.Rows = data.Columns = pixels
        stored = np.clip(np.round(chest.slice(float(z))) - INTERCEPT, 0, 4095).astype("<u2")
        data.PixelData = stored.tobytes()
        yield data


def _data_set(entropy: list[str]) -> FileDataset:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=entropy)
    data = FileDataset("", Dataset(), file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    data.StudyInstanceUID = generate_uid(entropy_srcs=[*entropy[:1], "study"])
    data.SeriesInstanceUID = generate_uid(entropy_srcs=[*entropy[:1], "series"])
    data.FrameOfReferenceUID = generate_uid(entropy_srcs=[*entropy[:1], "frame"])
    data.Modality, data.ImageType, data.PatientName = "CT", ["ORIGINAL", "PRIMARY", "AXIAL"], ""
    data.SliceThickness, data.RescaleSlope, data.RescaleIntercept, data.RescaleType = STEP, 1, INTERCEPT, "HU"
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 0
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 12, 11
    return data
