import math

import pytest

from data_prep.mri.ismrmrd_header import Encoding, Scan, parse_header, parse_scan

XML = """<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>640</x><y>372</y><z>1</z></matrixSize></encodedSpace>
<reconSpace><matrixSize><x>320</x><y>320</y><z>1</z></matrixSize>
<fieldOfView_mm><x>140</x><y>160</y><z>3</z></fieldOfView_mm></reconSpace>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>331</maximum><center>166</center>
</kspace_encoding_step_1></encodingLimits></encoding></ismrmrdHeader>"""
ENCODED_FIELD = "<fieldOfView_mm><x>280</x><y>186</y><z>4</z></fieldOfView_mm></encodedSpace>"


def test_encoding_limits_size_and_spacing():
    assert parse_header(XML.encode())[:3] == Encoding((0.4375, 0.5), (320, 320), (20, 352))[:3]


def test_recorded_grid_pixel_size_and_thickness():
    encoding = parse_header(XML.replace("</encodedSpace>", ENCODED_FIELD))
    assert encoding.recorded == (640, 372)
    assert encoding.pixel == (0.4375, 0.5)
    assert encoding.slice_thickness == 4
    assert encoding.center == 166
    assert encoding.partitions == 1


def test_first_measured_column_follows_the_smallest_step():
    assert parse_header(XML.replace("<minimum>0<", "<minimum>30<")).measured == (50, 352)


def test_trajectory_calibration_and_slices():
    more = """<slice><minimum>0</minimum><maximum>8</maximum><center>4</center></slice></encodingLimits>
<trajectory>Cartesian</trajectory><parallelImaging><calibrationMode> separate </calibrationMode></parallelImaging>"""
    encoding = parse_header(XML.replace("</encodingLimits>", more))
    assert (encoding.trajectory, encoding.calibration, encoding.slices) == ("cartesian", "separate", 9)


def test_each_encoding_space_is_read_on_its_own():
    second = "<encoding><encodedSpace><matrixSize><x>64</x><y>32</y><z>1</z></matrixSize></encodedSpace></encoding>"
    xml = XML.replace("</ismrmrdHeader>", second + "</ismrmrdHeader>")
    assert parse_header(xml, 0) == parse_header(XML)
    assert parse_header(xml, 1).recorded == (64, 32)
    assert parse_header(xml, 1).size is None
    assert parse_header(xml, 2).recorded is None


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "<a>",
        "<a/>",
        XML.replace("140", "wide").replace("320", "0").replace("372", "?"),
        '<!DOCTYPE a [<!ENTITY b "c">]>' + XML,
    ],
)
def test_missing_malformed_or_unsafe_header_is_unknown(xml):
    encoding = parse_header(xml)
    assert all(math.isnan(value) for value in (*encoding.spacing, *encoding.pixel, encoding.slice_thickness))
    assert encoding.size is None
    assert encoding.measured is None
    assert encoding.recorded is None
    assert parse_scan(xml) == Scan()


@pytest.mark.parametrize(
    ("subject", "patient"),
    [
        ("<patientName>A</patientName><patientID>B1</patientID>", "B1"),
        ("<patientName>A</patientName><patientID> </patientID>", "A"),
        ("", ""),
    ],
)
def test_patient_is_the_identifier_or_else_the_name(subject, patient):
    xml = f"""<h><subjectInformation>{subject}</subjectInformation><acquisitionSystemInformation>
<systemVendor>SIEMENS</systemVendor><relativeReceiverNoiseBandwidth>0.8</relativeReceiverNoiseBandwidth>
</acquisitionSystemInformation></h>"""
    assert parse_scan(xml) == Scan("siemens", 0.8, patient)
