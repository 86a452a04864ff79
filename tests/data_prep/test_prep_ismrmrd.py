import math

import pytest

from data_prep.ismrmrd import Encoding, parse_header

XML = """<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>640</x><y>372</y><z>1</z></matrixSize></encodedSpace>
<reconSpace><matrixSize><x>320</x><y>320</y><z>1</z></matrixSize>
<fieldOfView_mm><x>140</x><y>160</y><z>3</z></fieldOfView_mm></reconSpace>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>331</maximum><center>166</center>
</kspace_encoding_step_1></encodingLimits></encoding></ismrmrdHeader>"""


def test_encoding_limits_size_and_spacing():
    assert parse_header(XML.encode()) == Encoding((0.4375, 0.5), (320, 320), (20, 352))


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
    assert all(math.isnan(value) for value in encoding.spacing)
    assert encoding.size is None
    assert encoding.measured is None
