from io import BytesIO

import numpy as np
import pytest
from ct_archives import ct, write, write_bare
from dicom_mutants import dicom_mutants
from enhanced_dicom import enhanced
from fuzzing import fuzz, prepared
from hypothesis import strategies as st
from pydicom import dcmread
from pydicom.uid import DeflatedExplicitVRLittleEndian, RLELossless

from data_prep.ct.header import read_ct
from data_prep.ct.lidc import prepare
from data_prep.ct.options import LIDCOptions
from data_prep.ct.pixels import read_hounsfield
from data_prep.run.manifest import PrepError
from es_medical.data import SliceDataset
from es_medical.data.dicom.elements import quiet_pydicom
from es_medical.data.dicom.files import content_of


def made(change=lambda data: None, **how):
    data = ct(patient="other", series="other", **how)
    change(data)
    buffer = BytesIO()
    data.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def compressed(data):
    data.compress(RLELossless, generate_instance_uid=False)


def deflated(data):
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian


def full(data):
    data.PixelPaddingValue, data.RescaleType, data.BurnedInAnnotation, data.AcquisitionNumber = 3, "HU", "NO", 1
    data.FrameOfReferenceUID, data.StudyDate, data.GantryDetectorTilt, data.InstanceNumber = "1.2.3", "20200101", 0, 1


def frames(data):
    enhanced([data, ct(z=5, patient="other", series="other")])


FILES = [made(full), made(full, signed=True), made(frames), made(compressed), made(deflated)]


def test_ct_image_gives_the_hounsfield_units_of_pydicom_or_a_stated_error(tmp_path):
    path = tmp_path / "other.dcm"

    def ct_pixels(mutant):
        path.write_bytes(mutant)
        with quiet_pydicom():
            content = content_of(path)
            if content not in {"dicom", "bare"}:
                raise PrepError("not DICOM")
            (file, *others) = read_ct(path, "other.dcm", content)
            hu = read_hounsfield(path, file).values
            assert np.isfinite(hu).all()
            assert all(np.isfinite(read_hounsfield(path, other).values).all() for other in others)
            encoding = file.encoding
            if encoding.padding or encoding.lut or encoding.overlay or encoding.bits_stored < encoding.bits or file.frame:
                return
            other = dcmread(path, force=content == "bare")
            try:
                stored = other.pixel_array.astype(float)
            except AttributeError:  # pydicom wants elements that have a usual value
                return
            wanted = stored * float(other.get("RescaleSlope") or 1) + float(other.get("RescaleIntercept") or 0)
        np.testing.assert_allclose(hu, wanted, rtol=1e-5, atol=1e-2)

    fuzz(dicom_mutants(*FILES), ct_pixels, PrepError, 300)


@pytest.mark.parametrize("preamble", [True, False])
def test_ct_archive_keeps_its_good_series_beside_any_file(tmp_path, preamble):
    source = tmp_path / "in"
    write(ct(patient="good", series="good"), source / "good" / "0.dcm")
    options = LIDCOptions(slices="all", size=16, views=5, train=1, test=0)
    bare = write_bare(ct(patient="other", series="other"), tmp_path / "bare").read_bytes()
    files = st.lists(dicom_mutants(*FILES) if preamble else dicom_mutants(FILES[0]).map(lambda one: one[132:]), max_size=3)
    good = []

    def ct_archive(mutants):
        for old in source.glob("*.dcm"):
            old.unlink()
        for number, mutant in enumerate(mutants or [bare]):
            (source / f"{number}.dcm").write_bytes(mutant)
        with prepared("lidc", options, tmp_path / "out.h5") as prep:
            done = prepare(prep, source, overwrite=True)
        slices = {item["id"]: item["image"].numpy() for item in SliceDataset(prep.out)}
        good[:] = good or [key for key in slices if len(slices) == 1]
        assert all(np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1 for image in slices.values())
        assert not good or good[0] in slices
        if not done:
            raise PrepError("a file failed, and is listed")

    fuzz(files, ct_archive, PrepError, 40)
