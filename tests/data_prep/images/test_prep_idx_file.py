import gzip
import hashlib
import struct

import numpy as np
import pytest
from idx_bytes import idx, images, put

from data_prep.images.idx_file import read_idx_images
from data_prep.run.manifest import PrepError, SkipError

X = images(7)
RAW = idx(X)
PACKED = gzip.compress(RAW)


def refused(path, content, kind=PrepError):
    """What is said of a file that is refused, or skipped (of `kind` SkipError)."""
    with pytest.raises(PrepError) as caught:
        read_idx_images(put(path, content))
    assert caught.type is kind
    return str(caught.value)


@pytest.mark.parametrize(("name", "content"), [("a", RAW), ("a.gz", PACKED), ("a.png", PACKED), ("a.gz", RAW)])
def test_packed_or_not_is_told_by_content_and_gives_the_same(tmp_path, name, content):
    read = read_idx_images(put(tmp_path / name, content))
    np.testing.assert_array_equal(read.pixels, X)
    assert read.digest == hashlib.sha256(RAW).hexdigest()
    assert read.md5 == hashlib.md5(RAW).hexdigest()


def test_several_gzip_members_are_one_file(tmp_path):
    content = gzip.compress(RAW[:50]) + gzip.compress(RAW[50:])
    np.testing.assert_array_equal(read_idx_images(put(tmp_path / "a", content)).pixels, X)


@pytest.mark.parametrize("kept", [5, 15, 16, 17, len(RAW) - 1])
def test_raw_file_cut_anywhere_is_refused(tmp_path, kept):
    error = refused(tmp_path / "a", RAW[:kept])
    if kept >= 16:
        assert "7 images of 6 x 5, 210 bytes" in error
        assert str(kept - 16) in error


@pytest.mark.parametrize("kept", [2, 9, 12, len(PACKED) // 2, len(PACKED) - 8, len(PACKED) - 1])
def test_gzip_cut_anywhere_is_refused(tmp_path, kept):
    error = refused(tmp_path / "a", PACKED[:kept])
    assert "cut off before its end" in error


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(("claimed", "said"), [(8, "240 bytes"), (6, "180 bytes"), (2**32 - 1, "4294967295 images")])
def test_header_that_counts_more_or_fewer_images_is_refused(tmp_path, pack, claimed, said):
    error = refused(tmp_path / "a", pack(idx(X, shape=(claimed, 6, 5))))
    assert said in error


@pytest.mark.parametrize(
    "content", [RAW + b"\0", gzip.compress(RAW + b"\0"), PACKED + b"more"], ids=["raw", "packed", "packed more"]
)
def test_trailing_bytes_are_refused(tmp_path, content):
    refused(tmp_path / "a", content)


def test_flipped_bit_in_a_gzip_is_refused(tmp_path):
    content = bytearray(PACKED)
    content[len(content) // 2] ^= 4
    assert "broken gzip" in refused(tmp_path / "a", bytes(content))
    checksum = bytearray(PACKED)
    checksum[-5] ^= 1
    assert refused(tmp_path / "b", bytes(checksum)) == "broken gzip (checksum differs): a damaged download?"


@pytest.mark.parametrize(("kind", "name"), [(9, "sbyte"), (11, "short"), (12, "int"), (13, "float"), (14, "double")])
def test_other_types_of_numbers_are_refused_by_name(tmp_path, kind, name):
    assert f"type {name}: expected ubyte" in refused(tmp_path / "a", idx(X.astype(">f4"), kind))


@pytest.mark.parametrize("axes", [2, 4])
def test_other_numbers_of_axes_are_refused(tmp_path, axes):
    error = refused(tmp_path / "a", idx(X[(None,) * (axes - 3)] if axes > 3 else X[0]))
    assert f"{axes} axes" in error


@pytest.mark.parametrize("shape", [(0, 28, 28), (3, 0, 28)])
def test_no_pixels_is_an_error(tmp_path, shape):
    assert "no pixels" in refused(tmp_path / "a", idx(np.zeros(shape, np.uint8)))


def test_labels_are_skipped(tmp_path):
    error = refused(tmp_path / "a", gzip.compress(idx(np.arange(5, dtype=np.uint8))), SkipError)
    assert "labels" in error


@pytest.mark.parametrize(
    "content", [b"<!DOCTYPE html><html>503", b"\n <html>", b"", b"hello", struct.pack("<I", 0x803) + RAW[4:]]
)
def test_file_that_claims_to_be_idx_and_is_not_is_an_error(tmp_path, content):
    error = refused(tmp_path / "train-images-idx3-ubyte", content)
    assert "00 00 08 03" in error


def test_page_named_gz_is_an_error_and_named_as_such(tmp_path):
    error = refused(tmp_path / "digits.gz", b"<html>404</html>")
    assert "a web page" in error


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", b"hello"), ("a.csv.gz", gzip.compress(b"1,2,3")), ("a.html", b"<html>")],
    ids=["text", "packed table", "page"],
)
def test_other_files_are_skipped(tmp_path, name, content):
    refused(tmp_path / name, content, SkipError)


def test_zip_says_to_unpack_it(tmp_path):
    assert "unpack it" in refused(tmp_path / "mnist.npz", b"PK\x03\x04more", SkipError)
