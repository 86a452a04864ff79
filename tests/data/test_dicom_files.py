"""What a file is by its content, whatever it is called."""

import pytest

from es_medical.data.dicom.files import content_of

CONTENTS = {
    "dicom": b"\0" * 128 + b"DICM",
    "archive": b"PK\x03\x04" + b"\0" * 200,
    "bare": b"\x08\x00\x05\x00CS\x0a\x00ISO_IR 100",
}
OTHER = {
    "empty": b"",
    "group alone": b"\x08\x00",
    "length beyond the end": b"\x08\x00\x05\x00\xff\xff\xff\x7f" + b"\0" * 200,
    "text": b"CT of the chest",
}


@pytest.mark.parametrize(("content", "data"), [*CONTENTS.items(), *(("other", data) for data in OTHER.values())])
def test_content_decides(tmp_path, content, data):
    path = tmp_path / "a.dcm"
    path.write_bytes(data)
    assert content_of(path) == content


@pytest.mark.parametrize("head", [b"\x08\x00\x05\x00\x0a\0\0\0", b"\x00\x08\x00\x05\0\0\0\x0a"])  # little and big endian
def test_length_of_the_first_element_fits_the_file(tmp_path, head):
    path = tmp_path / "export"
    path.write_bytes(head + b"\0" * 20)
    assert content_of(path) == "bare"
