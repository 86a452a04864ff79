"""Read image files of any kind as RGB in [0, 1], or only their size; errors say why a file cannot be used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from torch import Tensor

from data_prep.run.manifest import PrepError

SUFFIXES = frozenset(
    f".{name}"
    for names in ("png apng jpg jpeg jpe jfif mpo bmp dib gif", "tif tiff webp avif ppm pgm pbm pnm jp2 j2k qoi")
    for name in names.split()
)
# formats that start another program (EPS, PDF) or have no signature (TGA) are left out
FORMATS = ("PNG", "JPEG", "MPO", "BMP", "DIB", "GIF", "TIFF", "WEBP", "AVIF", "PPM", "JPEG2000", "QOI")
GRAY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
DEEP = {"I", "I;16", "I;16B", "I;16L", "I;16N"}  # grayscale of 16 bits
FREE_PIXELS, PACKED = 2**22, 1100  # deflate packs at most 1032 bytes into one
R = TypeVar("R")


class Picture(NamedTuple):
    """A decoded image.

    Attributes:
        pixels: upright, in mode RGB, or F for 16-bit grayscale scaled to [0, 1].
        notes: conversions that a user should know of.
    """

    pixels: Image.Image
    notes: tuple[str, ...]

    def resized(self, size: tuple[int, int]) -> Tensor:
        """Resize by Pillow's antialiased bicubic resampling; 8-bit images are rounded to 8 bits, as by torchvision's Resize.

        Args:
            size: new (H, W).

        Returns:
            (3, H, W) float32 in [0, 1].
        """
        old = self.pixels.height, self.pixels.width
        pixels = self.pixels if size == old else self.pixels.resize(size[::-1], Image.Resampling.BICUBIC)
        if pixels.mode == "F":
            return torch.from_numpy(np.array(pixels)).clamp(0, 1).expand(3, *size).contiguous()
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).contiguous().to(torch.float32) / 255

    def content(self) -> str:
        """SHA-256 of the pixels: the same for two files that decode to the same image."""
        kind = f"{self.pixels.mode} {self.pixels.size}".encode()
        return sha256(kind + self.pixels.tobytes()).hexdigest()


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Hide Pillow's warnings; those that matter become a note or an error. To be used in the main thread."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def image_size(path: Path) -> tuple[int, int]:
    """(H, W) in the header of an image file, before its orientation is applied; nothing is decoded.

    Raises:
        PrepError: not an image, or one larger than Pillow's limit.
    """
    with _open(path) as image:
        return image.height, image.width


def read_image(path: Path) -> Picture:
    """Decode an image file: orientation applied, transparency composed onto white, first frame only.

    Raises:
        PrepError: not an image, truncated, damaged, or of numbers whose range is unknown.
    """
    with _open(path) as image:
        if image.format == "PNG":  # only `verify` compares the checksums of the pixels
            _decoded(image.verify)
    with _open(path) as image:
        return _decoded(lambda: _picture(image))


def _open(path: Path) -> ImageFile.ImageFile:
    try:
        content = path.read_bytes()
        if not content:
            raise PrepError("empty file")
        image = Image.open(BytesIO(content), formats=_formats())  # a file would give room for as many bytes as a header asks
        bits = 1 if image.mode == "1" else 8 * len(image.getbands())
        if image.width * image.height > FREE_PIXELS + 8 * PACKED * len(content) // bits:
            raise PrepError(f"its header says {image.width} x {image.height} pixels, the file has {len(content)} bytes")
        return image
    except PrepError:
        raise
    except UnidentifiedImageError as error:
        raise PrepError(f"not an image: {_unknown_content(content[:512])}") from error
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise PrepError(f"more than {limit} pixels, Pillow's limit: a decompression bomb?") from error
    except Exception as error:
        raise PrepError(_cause(error)) from error


def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _unknown_content(head: bytes) -> str:
    """Describe a file that is not an image, from its first bytes."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return "it holds a web page (a download that failed?)"
    if head.startswith(b"version https://git-lfs"):
        return "it holds a Git LFS pointer (run git lfs pull)"
    return "it starts with zeros (an unfinished download?)" if not any(head) else "its format is not supported"


def _decoded(decode: Callable[[], R]) -> R:
    try:
        return decode()
    except PrepError:
        raise
    except Exception as error:
        raise PrepError(_cause(error)) from error


def _cause(error: Exception) -> str:
    """Why a file cannot be read, without the text of the exception, which may hold a path or content of the file."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    if isinstance(error, OSError) and "truncated" in str(error).lower():
        return "cut short: the file ends before its image"
    return f"damaged, cut short or of a kind that Pillow cannot decode ({type(error).__name__})"


def _picture(image: ImageFile.ImageFile) -> Picture:
    notes = ["first frame of several"] * (getattr(image, "n_frames", 1) > 1)
    notes += ["grayscale: three equal channels"] * (image.mode in GRAY)
    notes += ["CMYK: converted without its colour profile"] * (image.mode == "CMYK")
    raw_mode = _raw_mode(image)
    notes += ["16 bits for each colour: the upper 8 are read"] * (image.mode not in DEEP and ";16" in raw_mode)
    image.load()  # this discards the raw mode
    upright = ImageOps.exif_transpose(image)
    if upright.mode in DEEP:
        return Picture(_deep(upright, image.format, 12 if ";12" in raw_mode else 16), tuple(notes))
    if upright.mode == "F":
        raise PrepError("floating-point numbers, whose range is unknown: expected 8 or 16 bits")
    if upright.has_transparency_data:
        rgba = upright.convert("RGBA")
        if np.asarray(rgba.getchannel("A")).min() < 255:
            notes.append("transparent: laid on white")
        return Picture(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"), tuple(notes))
    return Picture(upright.convert("RGB"), tuple(notes))


def _raw_mode(image: ImageFile.ImageFile) -> str:
    """How the file stores a pixel, for example `RGB;16B`, if Pillow gives it; else an empty string."""
    args = image.tile[0].args if image.tile else ""
    return str(args[0] if isinstance(args, tuple) and args else args)


def _deep(image: Image.Image, kind: str | None, bits: int) -> Image.Image:
    """Grayscale of 16 (or 12) bits as floats in [0, 1].

    Raises:
        PrepError: integers of 32 bits.
    """
    if image.mode == "I" and kind not in {"PNG", "PPM"}:  # these two hold 16 bits, even in Pillow's mode I
        raise PrepError("integers of 32 bits, whose range is unknown: expected 8 or 16 bits")
    return Image.fromarray(np.asarray(image).astype(np.float32) / np.float32(2**bits - 1))
