from io import BytesIO

import numpy as np
import pytest
from dicom_mutants import dicom_mutants
from dicom_parts import random_volume, scanned, source_plane, write_slice
from fuzzing import fuzz
from pydicom import dcmread
from pydicom.uid import ExplicitVRLittleEndian

from es_medical.data.dicom.elements import quiet_pydicom
from es_medical.output.dicom.header import CT, MR
from es_medical.output.dicom.series import Derivation
from es_medical.output.dicom.source import read_source
from es_medical.output.dicom.writer import DicomWriter

SIZE = (12, 10)


@pytest.mark.parametrize("kind", [MR, CT])
def test_source_series_gives_its_planes_and_a_series_that_can_be_written_or_a_stated_error(tmp_path, kind):
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(2):
        write_slice(folder / f"{number}.dcm", scanned(source_plane(number), number + 1, SIZE, kind=kind))
    buffer, one = BytesIO(), dcmread(folder / "1.dcm")
    one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one.save_as(buffer, enforce_file_format=True)
    whole = buffer.getvalue()

    def source_series(mutant):
        (folder / "1.dcm").write_bytes(mutant)
        with quiet_pydicom():
            series = read_source(folder, kind)
        assert all(plane.known for plane in series.planes)
        volume = random_volume(len(series.slices), series.size, series.planes)
        writer = DicomWriter(tmp_path / "out", Derivation(kind=kind), series)
        writer.write(volume)
        for file in (tmp_path / "out" / "volume" / "reconstruction").iterdir():
            image = dcmread(file)
            assert np.isfinite(image.pixel_array).all()
            str(image)  # every element has a value of its type

    fuzz(dicom_mutants(whole), source_series, (ValueError, FileNotFoundError), 40)
