"""Mutations of DICOM files: values, representations, lengths and order of elements, also inside sequences, and bytes."""

import struct
from io import BytesIO

from byte_mutants import Changed, changed_bytes
from hypothesis import strategies as st
from pydicom import dcmread
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_data_element
from pydicom.tag import Tag
from pydicom.uid import ExplicitVRLittleEndian

LONG = {b"OB", b"OD", b"OF", b"OL", b"OW", b"OV", b"SQ", b"UC", b"UN", b"UR", b"UT", b"SV", b"UV"}
NUMBERS = [struct.pack("<H", n) for n in (0, 1, 2, 7, 8, 15, 16, 31, 32, 64, 255, 32767, 32768, 65535)]
TEXTS = [
    *(b"", b"\0", b" ", b"0", b"-1", b"1", b"1,5", b"1e5", b"1e400", b"-1e-400", b"nan", b"inf", b"9" * 40, b"abc", b"\\"),
    *(b"1\\2", b"1\\2\\3", b"0\\0\\0\\0\\0\\0", b"1\\0\\0\\0\\1\\0", b"1\\1\\1\\1\\1\\1", b"nan\\nan\\nan", b"0\\0"),
    *(b"-1\\1", b"1e-9\\1e9", b"1.2.3", b"1." * 40, b"..", b"CT", b"MR", b"LOCALIZER", b"HU", b"US", b"YES", b"20261345"),
    *(b"999999", b"\xff\xfe", b"\\" * 300, b"ISO 2022 IR 87", b"ISO_IR 192\\x", b"\x1b$B", b"A" * 5000),
]  # fmt: skip
REPRESENTATIONS = [
    b"US",
    b"SS",
    b"UL",
    b"DS",
    b"IS",
    b"FD",
    b"LO",
    b"UI",
    b"DA",
    b"SQ",
    b"UN",
    b"OW",
    b"AT",
    b"PN",
    b"XX",
    b"\0\0",
]
LENGTHS = [-2, -1, 1, 2, 2**16, 2**31, -(2**31)]


def elements_of(content):
    """The elements of a file in order: (tag, VR, value), where the value of a sequence is a list of lists of elements."""
    data = dcmread(BytesIO(content), force=True)
    return [*_elements(data.file_meta), *_elements(data)]


def _elements(data):
    found = []
    for tag in sorted(data.keys()):
        if Tag(tag) == 0x00020000:  # the length of the file meta information, which is optional for readers
            continue
        if data[tag].VR == "SQ":
            found.append((int(tag), b"SQ", [_elements(item) for item in data[tag].value]))
            continue
        found.append((int(tag), data[tag].VR[:2].encode(), _value(data, tag)))
    return found


def _value(data, tag):
    buffer = DicomBytesIO()
    buffer.is_little_endian, buffer.is_implicit_VR = True, True
    write_data_element(buffer, data[tag])
    return buffer.getvalue()[8:]


def written(elements, preamble=b"\0" * 128 + b"DICM"):
    """A file in explicit little endian with these elements, sequences and items of undefined length."""
    return preamble + b"".join(_written(*element) for element in elements)


def _written(tag, vr, value, lie=0):
    start = struct.pack("<HH", tag >> 16, tag & 0xFFFF) + vr
    if isinstance(value, list):
        item = struct.pack("<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF)
        ends = struct.pack("<HHI", 0xFFFE, 0xE00D, 0), struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)
        body = b"".join(item + b"".join(_written(*one) for one in elements) + ends[0] for elements in value)
        return start + b"\0\0" + b"\xff" * 4 + body + ends[1]
    length = (len(value) + lie) % 2**32
    return start + (b"\0\0" + struct.pack("<I", length) if vr in LONG else struct.pack("<H", length % 2**16)) + value


def _places(elements, path=()):
    """Paths to all elements, those in sequences too."""
    for i, (_, _, value) in enumerate(elements):
        yield (*path, i)
        if isinstance(value, list):
            for k, item in enumerate(value):
                yield from _places(item, (*path, i, k))


def changed_elements(content, most=3):
    """Strategy of files in which up to `most` elements are changed."""
    base = elements_of(content)
    place = st.sampled_from(list(_places(base)))
    value = st.sampled_from([*NUMBERS, *TEXTS]) | st.binary(max_size=12)
    change = st.one_of(
        st.tuples(st.just("value"), place, value),
        st.tuples(st.just("value"), place, value),
        st.tuples(st.just("representation"), place, st.sampled_from(REPRESENTATIONS)),
        st.tuples(st.just("length"), place, st.sampled_from(LENGTHS)),
        st.tuples(st.just("remove"), place, st.none()),
        st.tuples(st.just("repeat"), place, st.none()),
        st.tuples(st.just("to the end"), place, st.none()),
    )
    return st.lists(change, min_size=1, max_size=most).map(lambda changes: _changed(base, changes))


def _changed(base, changes):
    elements = _copy(base)
    for kind, path, what in changes:
        _change(elements, kind, path, what)
    done = Changed(written(elements))
    done.changes = [(kind, _name(base, path), what) for kind, path, what in changes]
    return done


def _copy(elements):
    return [(tag, vr, [_copy(item) for item in value] if isinstance(value, list) else value) for tag, vr, value in elements]


def _change(elements, kind, path, what):
    try:
        for i, k in zip(path[:-1:2], path[1::2], strict=True):
            elements = elements[i][2][k]
        tag, vr, value, *_ = elements[path[-1]]
    except (IndexError, TypeError):  # an earlier change took it away
        return
    at = path[-1]
    match kind:
        case "value":
            elements[at] = (tag, vr if isinstance(value, bytes) else b"UN", what + b" " * (len(what) % 2))
        case "representation":
            elements[at] = (tag, what, value) if isinstance(value, bytes) else (tag, vr, value)
        case "length":
            elements[at] = (tag, vr, value, what)
        case "remove":
            del elements[at]
        case "repeat":
            elements.insert(at, elements[at])
        case "to the end":
            elements.append(elements.pop(at))


def _name(elements, path):
    tags = []
    for place, i in enumerate(path):
        if place % 2:
            elements = elements[i]
        else:
            tags.append(f"{elements[i][0]:08X}")
            elements = elements[i][2]
    return "/".join(tags)


def dicom_mutants(*contents):
    """Strategy of changed files: elements of the uncompressed ones, and bytes of all."""
    plain = [one for one in contents if dcmread(BytesIO(one), force=True).file_meta.TransferSyntaxUID == ExplicitVRLittleEndian]
    return st.one_of(*map(changed_elements, plain), *map(changed_elements, plain), *(changed_bytes(one) for one in contents))
