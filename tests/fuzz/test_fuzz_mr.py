import gzip

import pytest
from byte_mutants import changed_bytes
from ct_archives import AXIAL
from dicom_mutants import dicom_mutants
from dicom_parts import scanned, source_plane, write_slice
from fuzzing import fuzz, prepared
from hypothesis import strategies as st
from mr_volumes import head, write_nifti
from pydicom import dcmread
from pydicom.uid import ExplicitVRLittleEndian

from data_prep.mr_images.archive import prepare
from data_prep.mr_images.options import MROptions
from data_prep.run.manifest import PrepError
from es_medical.data import SliceDataset


def checked(source, out):
    with prepared("mr", MROptions(size=16, acceleration=2, center_fraction=0.2, train=1, test=0), out) as prep:
        done = prepare(prep, source, overwrite=True)
    for item in SliceDataset(out):
        assert item["measurement"].isfinite().all()
        assert item["image"].isfinite().all()
    if not done:
        raise PrepError("a file failed, and is listed")


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd"])
def test_mr_volume_gives_finite_slices_or_a_stated_error(tmp_path, suffix):
    path = tmp_path / "in" / f"a{suffix}"
    path.parent.mkdir()
    content = nrrd() if suffix == ".nrrd" else write_nifti(path.with_name("a.nii"), head()).read_bytes()
    path.with_name("a.nii").unlink(missing_ok=True)
    mutants = changed_bytes(content, head=352)
    mutants = st.one_of(mutants.map(gzip.compress), changed_bytes(gzip.compress(content))) if suffix == ".nii.gz" else mutants

    def mr_volume(mutant):
        path.write_bytes(mutant)
        checked(path.parent, tmp_path / "out.h5")

    fuzz(mutants, mr_volume, PrepError, 20)


def nrrd():
    voxels = head().astype("<f4")
    lines = ["NRRD0004", "type: float", "dimension: 3", "space: left-posterior-superior", "endian: little", "encoding: raw"]
    lines += [
        f"sizes: {' '.join(map(str, voxels.shape))}",
        "space directions: (1,0,0) (0,1,0) (0,0,1)",
        "space origin: (0,0,0)",
    ]
    return ("\n".join(lines) + "\n\n").encode() + voxels.tobytes("F")


def test_mr_series_gives_finite_slices_or_a_stated_error(tmp_path):
    folder, content = tmp_path / "in", b""
    folder.mkdir()
    for number in range(3):
        path = folder / f"{number}.dcm"
        write_slice(path, scanned(source_plane(number, orientation=AXIAL), number + 1))
        one = dcmread(path)
        one.PixelData = (one.pixel_array + one.pixel_array.cumsum(1)).tobytes()
        one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        one.save_as(path, enforce_file_format=True)
        content = path.read_bytes()

    def mr_series(mutant):
        (folder / "2.dcm").write_bytes(mutant)
        checked(folder, tmp_path / "out.h5")

    fuzz(dicom_mutants(content), mr_series, PrepError, 20)
