import struct
import zlib
from io import BytesIO

import numpy as np
from byte_mutants import changed_bytes
from fuzzing import fuzz, prepared
from hypothesis import strategies as st
from PIL import Image

from data_prep.images.div2k import prepare
from data_prep.images.image_file import image_size, quiet_pillow, read_image
from data_prep.images.options import DIV2KOptions
from data_prep.run.manifest import PrepError
from es_medical.data import SliceDataset

SIDES = (0, 1, 19, 20, 21, 4096, 20_000, 2**16, 2**31 - 1, 2**32 - 1)
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)


def packed(kind, mode="RGB", **how):
    image = Image.fromarray(PIXELS).convert("L").convert("I").point(lambda x: x * 257) if mode == "I;16" else None
    buffer = BytesIO()
    (image.convert("I;16") if image else Image.fromarray(PIXELS).convert(mode)).save(buffer, kind, **how)
    return buffer.getvalue()


def oriented():
    exif = Image.Exif()
    exif[0x0112] = 6
    return {"exif": exif}


FILES = [
    packed("PNG"), packed("PNG", "I;16"), packed("PNG", "P", transparency=3), packed("PNG", save_all=True), packed("BMP"),
    packed("JPEG", **oriented()), packed("GIF", "P"), packed("TIFF"), packed("TIFF", "I;16"), packed("WEBP"),
    packed("TIFF", compression="tiff_lzw"), packed("PPM"), packed("JPEG2000"),
]  # fmt: skip


def png_header(side, other, bits, colour, interlace):
    """A PNG file whose header has a right checksum and says something else."""
    body = b"IHDR" + struct.pack(">IIBBBBB", side, other, bits, colour, 0, 0, interlace)
    whole = FILES[0]
    return whole[:12] + body + struct.pack(">I", zlib.crc32(body)) + whole[12 + len(body) + 4 :]


HEADERS = st.builds(
    png_header, st.sampled_from(SIDES), st.sampled_from(SIDES), st.sampled_from([1, 8, 8, 16, 3]),
    st.sampled_from([0, 2, 3, 6, 5]), st.sampled_from([0, 1, 7]),
)  # fmt: skip
MUTANTS = st.one_of(*(changed_bytes(one, head=64) for one in FILES), HEADERS, HEADERS)


def test_photograph_gives_pixels_between_0_and_1_or_a_stated_error(tmp_path):
    path = tmp_path / "a.png"

    def photograph(content):
        path.write_bytes(content)
        with quiet_pillow():
            size = image_size(path)
            picture = read_image(path)
            pixels = picture.resized((picture.pixels.height, picture.pixels.width)).numpy()
        assert sorted(pixels.shape[1:]) == sorted(size)
        assert np.isfinite(pixels).all()
        assert pixels.min() >= 0
        assert pixels.max() <= 1

    fuzz(MUTANTS, photograph, PrepError, 300)


def test_folder_of_photographs_keeps_its_good_one_beside_any_file(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    Image.fromarray(PIXELS[::-1].copy()).save(source / "good.png")
    options = DIV2KOptions(size=20, crop=16, train=1, test=0)

    def photographs(content):
        (source / "a.png").write_bytes(content)
        with quiet_pillow(), prepared("div2k", options, tmp_path / "out.h5") as prep:
            done = prepare(prep, source, overwrite=True)
        images = [item["image"].numpy() for item in SliceDataset(prep.out)]
        assert images
        assert all(np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1 for image in images)
        if not done:
            raise PrepError("a file failed, and is listed")

    photographs(FILES[0])  # what is imported at the first one does not count for a mutant
    fuzz(MUTANTS, photographs, PrepError, 40)
