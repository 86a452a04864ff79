"""Image files of any kind to RGB in [0, 1], or the cause why not; and their size without decoding."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
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
# no format that starts another program (EPS, PDF) and none without a signature (TGA)
FORMATS = ("PNG", "JPEG", "MPO", "BMP", "DIB", "GIF", "TIFF", "WEBP", "AVIF", "PPM", "JPEG2000", "QOI")
GRAY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
DEEP = {"I", "I;16", "I;16B", "I;16L", "I;16N"}  # grayscale of 16 bits
R = TypeVar("R")


class Picture(NamedTuple):
    """A decoded image.

    Attributes:
        pixels: upright, of mode RGB, or F for grayscale of 16 bits brought to [0, 1].
        notes: what was done that a user should know.
    """

    pixels: Image.Image
    notes: tuple[str, ...]

    def resized(self, size: tuple[int, int]) -> Tensor:
        """Pillow's bicubic resampling, antialiased; of images with 8 bits rounded to these, as torchvision's Resize does.

        Args:
            size: (H, W) afterwards.

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
    """Pillow's warnings are not shown: what matters of them becomes a note or a cause. For the main thread."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def image_size(path: Path) -> tuple[int, int]:
    """(H, W) that a file announces, before its orientation is applied; nothing is decoded.

    Raises:
        PrepError: no image, or one larger than Pillow's limit.
    """
    with _open(path) as image:
        return image.height, image.width


def read_image(path: Path) -> Picture:
    """Decodes a file whole: orientation applied, alpha laid on white, the first frame of several.

    Raises:
        PrepError: no image, cut short, damaged, or of numbers whose range is unknown.
    """
    with _open(path) as image:
        if image.format == "PNG":  # Pillow compares the checksums of pixels only here
            _decoded(image.verify)
    with _open(path) as image:
        return _decoded(lambda: _picture(image))


def _open(path: Path) -> ImageFile.ImageFile:
    try:
        with path.open("rb") as file:
            head = file.read(512)
        if not head:
            raise PrepError("empty file")
        return Image.open(path, formats=_formats())
    except PrepError:
        raise
    except UnidentifiedImageError as error:
        raise PrepError(f"not an image: {_what(head)}") from error
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise PrepError(f"more than {limit} pixels, Pillow's limit: a decompression bomb?") from error
    except Exception as error:
        raise PrepError(_cause(error)) from error


def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _what(head: bytes) -> str:
    """What a file that no reader knows holds, from its first bytes."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return "it holds a web page (a download that failed?)"
    if head.startswith(b"version https://git-lfs"):
        return "it holds a Git LFS pointer (run git lfs pull)"
    return "it starts with zeros (an unfinished download?)" if not any(head) else "its first bytes are of no type that is read"


def _decoded(decode: Callable[[], R]) -> R:
    try:
        return decode()
    except PrepError:
        raise
    except Exception as error:
        raise PrepError(_cause(error)) from error


def _cause(error: Exception) -> str:
    """Why a file cannot be read, without the text of the error: it may hold a path, or content of the file."""
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
    image.load()  # and forgets the raw mode
    upright = ImageOps.exif_transpose(image)
    if upright.mode in DEEP:
        return Picture(_deep(upright, image.format, 12 if ";12" in raw_mode else 16), tuple(notes))
    if upright.mode == "F":
        raise PrepError("floating-point numbers, whose range nothing tells: expected 8 or 16 bits")
    if upright.has_transparency_data:
        rgba = upright.convert("RGBA")
        if np.asarray(rgba.getchannel("A")).min() < 255:
            notes.append("transparent: laid on white")
        return Picture(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"), tuple(notes))
    return Picture(upright.convert("RGB"), tuple(notes))


def _raw_mode(image: ImageFile.ImageFile) -> str:
    """How the file stores a pixel, `RGB;16B` for example, where Pillow says so."""
    args = image.tile[0].args if image.tile else ""
    return str(args[0] if isinstance(args, tuple) and args else args)


def _deep(image: Image.Image, kind: str | None, bits: int) -> Image.Image:
    """Grayscale of 16 (or 12) bits as floats in [0, 1].

    Raises:
        PrepError: integers of 32 bits.
    """
    if image.mode == "I" and kind not in {"PNG", "PPM"}:  # these two hold 16 bits, whatever Pillow keeps them in
        raise PrepError("integers of 32 bits, whose range nothing tells: expected 8 or 16 bits")
    return Image.fromarray(np.asarray(image).astype(np.float32) / np.float32(2**bits - 1))
