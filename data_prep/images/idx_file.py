"""Read IDX files, the format of MNIST: raw or gzip, recognised by their content and never by their name.

An IDX file holds two zero bytes, a byte for the number type, one for the number of axes, the length of each axis in 4 bytes
(big-endian), then the numbers, last axis fastest (http://yann.lecun.com/exdb/mnist). Images are unsigned bytes, three axes.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from data_prep.run.manifest import PrepError, SkipError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TYPES = {8: "ubyte", 9: "sbyte", 11: "short", 12: "int", 13: "float", 14: "double"}
IMAGE_AXES = 3  # count, rows, columns
GZIP = b"\x1f\x8b"
DEFLATE_RATIO = 1100  # deflate packs at most 1032 bytes into one
CHUNK = 1 << 22  # bytes read at a time
OTHERS = {b"PK\x03\x04": "a zip archive (unpack it first)", b"\x1f\x9d": "packed by compress, not by gzip", b"BZh": "bzip2"}


class IdxImages(NamedTuple):
    """The images of one file.

    Attributes:
        pixels: (n, rows, columns) uint8.
        digest: SHA-256 of the unpacked content: the same for a file and its gzip.
        md5: MD5 of the unpacked content, which identifies the official files.
    """

    pixels: NDArray[np.uint8]
    digest: str
    md5: str


def read_idx_images(path: Path) -> IdxImages:
    """Read all images of an IDX file of unsigned bytes.

    Raises:
        SkipError: neither an IDX file nor named like one, or a file of labels.
        PrepError: truncated, longer than its header says, of another type or number of axes, or named as IDX or gzip but
            something else.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "digits"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2, 7, 255]))
    ...     read_idx_images(path).pixels.tolist()
    [[[7, 255]]]
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start[:2] != GZIP:
                return _images(file, path.name, path.stat().st_size, exact=True)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _images(unpacked, path.name, DEFLATE_RATIO * path.stat().st_size, exact=False)
    except EOFError as error:
        raise PrepError("gzip cut off before its end: an unfinished download?") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise PrepError(f"broken gzip ({_reason(error)}): a damaged download?") from error
    except OSError as error:
        raise PrepError(f"cannot be read ({error.strerror})") from error


def _images(file: IO[bytes] | gzip.GzipFile, name: str, most: int, exact: bool) -> IdxImages:
    """Read header and pixels of a file of at most `most` bytes, or exactly so many if `exact` (a raw file)."""
    head = file.read(4)
    _check_magic(head, name)
    shape = _shape(file)
    expected = 4 + 4 * IMAGE_AXES + math.prod(shape)
    if expected > most or (exact and expected < most):  # checked first, so that a header of many gigabytes reads nothing
        raise PrepError(f"{_wanted(shape)}, the file {'has' if exact else 'can hold at most'} {most - 4 - 4 * IMAGE_AXES}")
    pixels = _read(file, math.prod(shape) + 1, shape)
    content = head + b"".join(length.to_bytes(4, "big") for length in shape)
    digests = [hashlib.new(kind, content) for kind in ("sha256", "md5")]
    for digest in digests:
        digest.update(pixels)
    return IdxImages(np.frombuffer(pixels, np.uint8).reshape(shape), *(digest.hexdigest() for digest in digests))


def _check_magic(head: bytes, name: str) -> None:
    if head[:2] != b"\0\0" or len(head) < 4 or head[2] not in TYPES:
        raise _not_idx(head, name)
    kind, axes = TYPES[head[2]], head[3]
    if axes == 1:
        raise SkipError("labels, which are not needed")
    if kind != "ubyte":
        raise PrepError(f"numbers of type {kind}: expected ubyte (unsigned bytes 0 to 255)")
    if axes != IMAGE_AXES:
        raise PrepError(f"{axes} axes: expected {IMAGE_AXES} (count, rows, columns)")


def _not_idx(head: bytes, name: str) -> PrepError:
    """Error for a file that does not start like an IDX file: skipped, unless its name claims that it is one."""
    found = next((what for start, what in OTHERS.items() if head.startswith(start)), f"it starts with bytes {head.hex(' ')}")
    if not head:
        found = "it is empty"
    elif head.lstrip().startswith(b"<"):
        found = "a web page, which servers send in place of a missing file"
    if "ubyte" in name.lower() or (name.lower().endswith(".gz") and found.startswith("a web page")):
        return PrepError(f"named as an IDX file, but {found}: expected 00 00 08 03, or gzip")
    return SkipError(f"not an IDX file: {found}")


def _shape(file: IO[bytes] | gzip.GzipFile) -> tuple[int, int, int]:
    lengths = file.read(4 * IMAGE_AXES)
    if len(lengths) < 4 * IMAGE_AXES:
        raise PrepError(f"cut off in its header: {4 + len(lengths)} bytes, expected {4 + 4 * IMAGE_AXES} before the pixels")
    n, rows, columns = np.frombuffer(lengths, ">u4").tolist()
    if not n * rows * columns:
        raise PrepError(f"no pixels: its header says {n} images of {rows} x {columns}")
    return n, rows, columns


def _read(file: IO[bytes] | gzip.GzipFile, most: int, shape: tuple[int, int, int]) -> bytearray:
    """Read the pixels; one byte more is requested, which also makes gzip verify its checksum."""
    content = bytearray()
    while len(content) < most and (part := file.read(min(CHUNK, most - len(content)))):
        content += part
    if len(content) != most - 1:
        found = f"it has {len(content)}" if len(content) < most else "it has more"
        raise PrepError(
            f"{_wanted(shape)}, {found}: {'cut off' if len(content) < most else 'bytes follow after the last image'}"
        )
    return content


def _wanted(shape: tuple[int, int, int]) -> str:
    n, rows, columns = shape
    return f"its header says {n} images of {rows} x {columns}, {n * rows * columns} bytes"


def _reason(error: Exception) -> str:
    return "checksum differs" if "CRC" in str(error) else "no valid data"
