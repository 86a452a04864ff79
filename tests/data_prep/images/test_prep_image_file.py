import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from data_prep.images.image_file import Picture, image_size, quiet_pillow, read_image
from data_prep.run.manifest import PrepError


def noise(height=20, width=30, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def save(path, pixels, **knobs):
    Image.fromarray(pixels).save(path, **knobs)
    return path


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png16(path, pixels, kind):
    """PNG of 16 bits, which Pillow does not write: kind 0 is grayscale, 2 RGB."""
    height, width = pixels.shape[:2]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))
    return path


def values(path):
    """Pixels (3, H, W) as they are, and the notes."""
    picture = read_image(path)
    return picture.resized((picture.pixels.height, picture.pixels.width)), " ".join(picture.notes)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm", "webp"])
def test_rgb_of_8_bits_is_divided_by_255(tmp_path, suffix):
    pixels = noise()
    x, notes = values(save(tmp_path / f"a.{suffix}", pixels, **({"lossless": True} if suffix == "webp" else {})))
    np.testing.assert_array_equal(x.numpy(), pixels.transpose(2, 0, 1) / np.float32(255))
    assert (x.dtype, notes) == (torch.float32, "")


def test_grayscale_of_16_bits_keeps_its_bits_and_becomes_three_channels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (20, 30), np.uint16)
    for path in (png16(tmp_path / "a.png", pixels, 0), save(tmp_path / "a.tif", pixels)):
        x, notes = values(path)
        np.testing.assert_array_equal(x.numpy(), np.broadcast_to(pixels / np.float32(65535), (3, 20, 30)))
        assert notes == "grayscale: three equal channels"


def test_grayscale_of_12_bits_reaches_white(tmp_path):
    """TIFF of two rows of two pixels, each of 12 bits, which Pillow does not write."""
    tags = [(256, 2), (257, 2), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 2), (279, 6)]
    pixels = bytes([0xFF, 0xF0, 0x00, 0x80, 0x0F, 0xFF])  # 4095, 0; 2048, 4095
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    head = b"II*\0" + struct.pack("<I", 14) + pixels + struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "a.tif").write_bytes(head)
    x, _ = values(tmp_path / "a.tif")
    np.testing.assert_allclose(x[0].numpy(), [[1, 0], [2048 / 4095, 1]], rtol=1e-6)


def test_colour_of_16_bits_is_read_to_8_and_this_is_said(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (20, 30, 3), np.uint16)
    x, notes = values(png16(tmp_path / "a.png", pixels, 2))
    assert np.abs(x.numpy() - pixels.transpose(2, 0, 1) / 65535).max() < 1 / 255
    assert "16 bits for each colour" in notes


@pytest.mark.parametrize("mode", ["L", "1", "LA"])
def test_grayscale_becomes_three_equal_channels(tmp_path, mode):
    path = tmp_path / "a.png"
    Image.fromarray(noise()).convert(mode).save(path)
    x, notes = values(path)
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[0], x[2])
    assert x.std() > 0.1
    assert notes == "grayscale: three equal channels"


def test_palette_gives_its_colours(tmp_path):
    pixels = np.zeros((20, 30, 3), np.uint8)
    pixels[:10], pixels[10:] = (255, 0, 51), (0, 102, 255)
    image = Image.fromarray(pixels).quantize(2)
    image.save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as stored:
        assert stored.mode == "P"
    np.testing.assert_array_equal(values(tmp_path / "a.png")[0].numpy(), pixels.transpose(2, 0, 1) / np.float32(255))


def test_cmyk_is_converted(tmp_path):
    Image.new("CMYK", (30, 20), (255, 0, 0, 0)).save(tmp_path / "a.tif")
    x, notes = values(tmp_path / "a.tif")
    assert x[:, 0, 0].tolist() == [0, 1, 1]
    assert "CMYK" in notes


def test_transparency_is_laid_on_white_and_said_only_where_there_is_some(tmp_path):
    pixels = noise(channels=4)
    pixels[..., 3], pixels[:10, :, 3] = 255, 0
    x, notes = values(save(tmp_path / "a.png", pixels))
    assert (x[:, :10] == 1).all()
    np.testing.assert_array_equal(x[:, 10:].numpy(), pixels[10:, :, :3].transpose(2, 0, 1) / np.float32(255))
    assert notes == "transparent: laid on white"
    pixels[..., 3] = 255
    assert values(save(tmp_path / "b.png", pixels))[1] == ""


def test_transparent_palette_colour_is_laid_on_white(tmp_path):
    image = Image.fromarray(np.repeat(np.arange(20, dtype=np.uint8)[:, None] // 10, 30, 1), "P")
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.save(tmp_path / "a.png", transparency=0)
    x, notes = values(tmp_path / "a.png")
    assert (x[:, :10] == 1).all()
    assert x[:, 15, 0].tolist() == [1, 0, 0]
    assert "transparent" in notes


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_turns_the_image_upright(tmp_path, orientation):
    upright = noise(16, 24)
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.transpose(1, 0, 2),
        6: np.rot90(upright), 7: upright[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    x, _ = values(save(tmp_path / "a.png", np.ascontiguousarray(stored), exif=exif))
    np.testing.assert_array_equal(x.numpy(), upright.transpose(2, 0, 1) / np.float32(255))


@pytest.mark.parametrize("suffix", ["gif", "png", "tif", "webp"])
def test_first_frame_of_several_is_taken(tmp_path, suffix):
    frames = [Image.new("RGB", (30, 20), colour) for colour in ("red", "blue", "lime")]
    knobs = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:], **knobs)
    x, notes = values(tmp_path / f"a.{suffix}")
    assert x[:, 5, 5].tolist() == [1, 0, 0]
    assert notes == "first frame of several"


def test_resizing_averages_what_it_drops():
    """Antialiased: stripes finer than the new pixels become their mean instead of a pattern."""
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    x = Picture(Image.fromarray(stripes), ()).resized((16, 16))
    assert (x[:, 2:-2, 2:-2] - 0.5).abs().max() < 0.02


def test_resized_values_stay_in_range(tmp_path):
    """Bicubic weights are negative in places: an edge would overshoot."""
    edge = np.zeros((64, 64), np.uint16)
    edge[:, 32:] = 65535
    x = read_image(png16(tmp_path / "a.png", edge, 0)).resized((24, 24))
    assert (x.min(), x.max()) == (0, 1)


def broken(path, kind):
    whole = save(path, noise(64, 64)).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes(
        {
            "empty": b"",
            "truncated": whole[: len(whole) // 2],
            "flipped bit": bytes(flipped),
            "web page": b"\n<!DOCTYPE html><html><body>403 Forbidden</body></html>",
            "LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            "zeros": bytes(1000),
            "text": b"not an image",
        }[kind]
    )
    return path


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("empty", "empty file"),
        ("truncated", "cut short|damaged"),
        ("flipped bit", "damaged"),
        ("web page", "not an image: it holds a web page"),
        ("LFS pointer", "Git LFS"),
        ("zeros", "unfinished download"),
        ("text", "not an image"),
    ],
)
def test_broken_file_is_refused_with_its_cause_and_without_its_name(tmp_path, kind, cause):
    path = broken(tmp_path / "secret.png", kind)
    with pytest.raises(PrepError, match=cause) as caught:
        read_image(path)
    assert "secret" not in str(caught.value)
    assert "0x" not in str(caught.value)


def test_no_flipped_bit_of_a_png_changes_a_pixel_unnoticed(tmp_path):
    """Pillow alone decodes some of these to other pixels."""
    smooth = Image.fromarray(noise(5, 6)).resize((64, 64), Image.Resampling.BICUBIC)
    path = save(tmp_path / "a.png", np.asarray(smooth))
    whole = path.read_bytes()
    for i in range(33, len(whole) - 12, 23):  # from the end of the header to the mark of the file's end
        flipped = bytearray(whole)
        flipped[i] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(PrepError):
            read_image(path)


def test_truncated_jpeg_is_cut_short(tmp_path):
    path = save(tmp_path / "a.jpg", noise(64, 64))
    path.write_bytes(path.read_bytes()[:-500])
    assert image_size(path) == (64, 64)
    with pytest.raises(PrepError, match="cut short"):
        read_image(path)


def test_numbers_of_unknown_range_are_refused(tmp_path):
    for pixels, cause in ((np.ones((20, 20), np.float32), "floating-point"), (np.ones((20, 20), np.int32), "32 bits")):
        with pytest.raises(PrepError, match=cause):
            read_image(save(tmp_path / "a.tif", pixels))


def test_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", np.zeros((300, 300), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    with pytest.raises(PrepError, match="more than 80000 pixels"):
        image_size(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60_000)  # between the limit for a warning and that for an error
    with quiet_pillow():
        assert read_image(path).pixels.size == (300, 300)


def test_formats_that_start_programs_are_not_opened(tmp_path):
    Image.fromarray(noise()).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(PrepError, match="not an image"):
        image_size(tmp_path / "a.png")


def test_content_tells_pixels_and_not_files(tmp_path):
    a, b = save(tmp_path / "a.png", noise()), save(tmp_path / "b.bmp", noise())
    assert a.read_bytes() != b.read_bytes()
    assert read_image(a).content() == read_image(b).content()
    assert read_image(a).content() != read_image(save(tmp_path / "c.png", noise(seed=1))).content()
    assert Picture(Image.new("RGB", (2, 3)), ()).content() != Picture(Image.new("RGB", (3, 2)), ()).content()
