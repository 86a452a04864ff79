import gzip
import struct

import numpy as np
from byte_mutants import changed_bytes
from fuzzing import fuzz
from hypothesis import strategies as st
from idx_bytes import idx, images

from data_prep.images.idx_file import read_idx_images
from data_prep.run.manifest import PrepError

RAW = idx(images(4))
LENGTHS = st.sampled_from([0, 1, 4, 5, 6, 2**16, 2**31, 2**32 - 1])
HEADERS = st.builds(
    lambda kind, axes, shape, rest: struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, axes, *shape) + rest,
    st.sampled_from([8, 8, 8, 9, 13, 0]), st.sampled_from([3, 3, 3, 1, 4, 255]), st.lists(LENGTHS, max_size=4),
    st.sampled_from([RAW[16:], b"", RAW[16:] * 2]),
)  # fmt: skip
WHOLE = st.one_of(changed_bytes(RAW, head=16), HEADERS)
MUTANTS = st.one_of(WHOLE, WHOLE.map(gzip.compress), changed_bytes(gzip.compress(RAW)))


def test_idx_file_gives_the_bytes_after_its_header_or_a_stated_error(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"

    def idx_file(content):
        path.write_bytes(content)
        pixels = read_idx_images(path).pixels
        plain = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        shape = struct.unpack(">3I", plain[4:16])
        np.testing.assert_array_equal(pixels, np.frombuffer(plain[16:], np.uint8).reshape(shape))

    fuzz(MUTANTS, idx_file, PrepError, 300)
