"""Small ISMRMRD files, written with the format's own package from images that are known."""

import numpy as np
import pytest

ismrmrd = pytest.importorskip("ismrmrd", reason="the package ismrmrd (extra `ismrmrd`) is not installed")

HEADER = """<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">{subject}
<acquisitionSystemInformation><systemVendor>{vendor}</systemVendor>{system}</acquisitionSystemInformation>
<experimentalConditions><H1resonanceFrequency_Hz>63500000</H1resonanceFrequency_Hz></experimentalConditions>
<encoding><encodedSpace><matrixSize><x>{rows}</x><y>{columns}</y><z>{partitions}</z></matrixSize>
<fieldOfView_mm><x>{field[0]}</x><y>{field[1]}</y><z>5</z></fieldOfView_mm></encodedSpace>
<reconSpace><matrixSize><x>{recon[0]}</x><y>{recon[1]}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>100</x><y>90</y><z>5</z></fieldOfView_mm></reconSpace>{limits}
<trajectory>{trajectory}</trajectory>{parallel}</encoding></ismrmrdHeader>"""
LIMITS = """<encodingLimits><kspace_encoding_step_1><minimum>{0}</minimum><maximum>{1}</maximum><center>{2}</center>
</kspace_encoding_step_1>{3}</encodingLimits>"""


def header(
    size,
    limits=None,
    slices=None,
    field=(200, 90),
    trajectory="cartesian",
    partitions=1,
    vendor="",
    system="",
    subject="",
    calibration="",
    recon=(4, 4),
):
    """An XML header for a recorded grid of `size`; `limits` (minimum, maximum, centre), False for none."""
    if limits is None:
        limits = (0, size[1] - 1, size[1] // 2)
    third = f"<slice><minimum>0</minimum><maximum>{slices - 1}</maximum><center>0</center></slice>" if slices else ""
    parallel = f"<parallelImaging><calibrationMode>{calibration}</calibrationMode></parallelImaging>" if calibration else ""
    return HEADER.format(
        rows=size[0],
        columns=size[1],
        field=field,
        recon=recon,
        limits=LIMITS.format(*limits, third) if limits else "",
        trajectory=trajectory,
        partitions=partitions,
        vendor=vendor,
        system=system,
        subject=subject,
        parallel=parallel,
    )


def readout(samples, column=0, slice_number=0, flag=None, **head):
    """One acquisition from samples (coils, rows)."""
    head = {"center_sample": samples.shape[1] // 2, "sample_time_us": 5.0} | head
    acquisition = ismrmrd.Acquisition.from_array(np.ascontiguousarray(samples, np.complex64), **head)
    acquisition.idx.kspace_encode_step_1 = column
    acquisition.idx.slice = slice_number
    if flag is not None:
        acquisition.set_flag(getattr(ismrmrd, f"ACQ_IS_{flag}"))
    return acquisition


def readouts(k, **head):
    """All lines of k-space (slices, coils, rows, columns), slice after slice, k = 0 of the columns at their index n//2."""
    return [readout(k[s, :, :, w], w, s, **head) for s in range(k.shape[0]) for w in range(k.shape[-1])]


def write(path, acquisitions, xml):
    """Writes a file; no acquisitions or no header: that dataset is left out."""
    with ismrmrd.Dataset(path, mode="w") as dataset:
        if xml is not None:
            dataset.write_xml_header(xml.encode())
        for acquisition in acquisitions:
            dataset.append_acquisition(acquisition)
    return path
