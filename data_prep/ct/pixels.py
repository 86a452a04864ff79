"""Convert stored pixels to Hounsfield units: each file by its own rescale or look-up table; padding becomes air."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydicom import dcmread, uid
from pydicom.encaps import get_frame
from pydicom.pixels import apply_modality_lut, pixel_array
from pydicom.pixels.utils import get_j2k_parameters

from data_prep.ct.encoding import Encoding
from data_prep.ct.header import CTFile
from data_prep.run.manifest import PrepError
from es_medical.data.dicom.elements import whole

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pydicom import Dataset

AIR = -1000.0  # HU, also the lower end of the stored window
EVIDENCE = 0.005  # smallest share of pixels between -1100 and 0 for values without rescale to count as Hounsfield units
NO_AIR = -200.0  # HU; a slice without any lower value is unusual
NO_TISSUE = 8000.0  # HU; higher values are metal or misread
BEYOND = "values above the bits stored: the bits above them are ignored"
JPEG2000 = (uid.JPEG2000, uid.JPEG2000Lossless)


class Hounsfield(NamedTuple):
    """One slice in Hounsfield units.

    Attributes:
        values: (H, W) float32; `AIR` where the file has padding.
        notes: what a user should know.
    """

    values: NDArray[np.float32]
    notes: tuple[str, ...]


def read_hounsfield(path: Path, file: CTFile, intercept: float | None = None) -> Hounsfield:
    """Read the pixels of one CT image in Hounsfield units.

    Args:
        path: the file.
        file: its header.
        intercept: value to add to stored values if the file has no rescale intercept; None accepts only values that look
            like HU.

    Raises:
        PrepError: the pixels cannot be decoded, or their meaning is unknown.
    """
    if file.encoding is None:
        raise PrepError(file.problem or file.left_out)
    if file.offset >= 0 and not file.encoding.lut:
        return hounsfield(_uncompressed(path, file.offset, file.encoding), file.encoding, intercept)
    data = _frames(path) if file.frame else _data_set(path)
    stored, notes = _decoded(data, file.encoding, max(file.frame - 1, 0))
    if file.encoding.lut:
        values, padded = _looked_up(data, stored), _padded(stored, file.encoding)
        return Hounsfield(values, (*notes, *_to_air(values, padded)))
    result = hounsfield(stored, file.encoding, intercept)
    return result._replace(notes=(*notes, *result.notes))


def hounsfield(stored: NDArray[np.integer], encoding: Encoding, intercept: float | None = None) -> Hounsfield:
    """HU = stored * slope + intercept in float32, so that no integer overflows; padding becomes air.

    Raises:
        PrepError: there is no rescale, and the meaning of the stored values is unknown.
    """
    used, cut = _used_bits(stored, encoding)
    padded = _padded(stored, encoding)
    if used is not stored and (below := _padded(used, encoding)) is not None:  # an overlay may lie over padding
        padded = below if padded is None else padded | below
    if padded is not None and padded.all():
        raise PrepError("every pixel is padding")
    slope, shift, notes = _rescale(used, padded, encoding, intercept)
    notes += (BEYOND,) * bool(np.any(cut if padded is None else cut & ~padded))
    values = used.astype(np.float32)
    if slope != 1:
        values *= np.float32(slope)
    values += np.float32(shift)
    notes = (*notes, *_doubts(values))
    if encoding.unspecified and np.mean(values < NO_AIR) < EVIDENCE:
        raise PrepError(
            f"values of unspecified unit (rescale type US), none below {NO_AIR:g}: they may not be Hounsfield units"
        )
    return Hounsfield(values, (*notes, *_to_air(values, padded)))


def _to_air(values: NDArray[np.float32], padded: NDArray[np.bool_] | None) -> Iterator[str]:
    """Set padding to air, in place; yield a note where a value that means padding is tissue.

    Padding lies outside the field of the scan. Where its value is above air, and so could be tissue, only what reaches the
    corners of the image is padding; the rest keeps its value.

    Raises:
        PrepError: it reaches the centre of the image: nothing tells padding from tissue.
    """
    if padded is None:
        return
    if (dense := padded & (values > AIR)).any():
        outside = _from_corners(padded)
        rows, columns = (slice(n // 2 - n // 8, n // 2 + n // 8) for n in values.shape)
        if (outside & dense)[rows, columns].any():
            raise PrepError(f"padding has a value of tissue ({values[dense].min():g} HU) and reaches the centre of the image")
        if n := int((dense & ~outside).sum()):
            yield f"the value of padding ({values[dense].min():g} HU) is tissue inside the image"
        padded = padded & (outside | ~dense) if n else padded
    values[padded] = AIR


def _from_corners(padded: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The part of `padded` that is connected with a corner of the image."""
    from scipy.ndimage import label

    parts, _ = label(padded)
    return np.isin(parts, [part for part in parts[[0, 0, -1, -1], [0, -1, 0, -1]] if part])


def _doubts(values: NDArray[np.float32]) -> Iterator[str]:
    """Notes on values that are unusual for CT. They may be right: the slice may lie inside the body, or show metal."""
    sampled = values[::2, ::2]
    if sampled.min() > NO_AIR:
        yield f"no value below {NO_AIR:g} HU"
    if sampled.max() > NO_TISSUE and np.mean(sampled > NO_TISSUE) > 0.5:
        yield f"most values above {NO_TISSUE:g} HU"


def _rescale(
    stored: NDArray[np.integer], padded: NDArray[np.bool_] | None, encoding: Encoding, intercept: float | None
) -> tuple[float, float, tuple[str, ...]]:
    """Slope, intercept and notes; if the file gives no intercept, values that are not padding must look like HU."""
    slope = 1.0 if np.isnan(encoding.slope) else encoding.slope
    if not np.isnan(encoding.intercept):
        return slope, encoding.intercept, ("no rescale slope: 1 is used",) if np.isnan(encoding.slope) else ()
    if intercept is not None:
        return slope, intercept, ("no rescale intercept: the given one is used",)
    inside = stored if padded is None else stored[~padded]
    if np.mean((inside > -1100) & (inside < 0)) < EVIDENCE:
        raise PrepError(
            f"no rescale intercept, and stored values of {inside.min()} to {inside.max()} may not be Hounsfield units: "
            "give --intercept (often -1024; 0 if they are)"
        )
    return slope, 0.0, ("no rescale intercept: stored values are taken as Hounsfield units",)


def _padded(stored: NDArray[np.integer], encoding: Encoding) -> NDArray[np.bool_] | None:
    if encoding.padding is None:
        return None
    low, high = encoding.padding
    found = stored == low if low == high else (stored >= low) & (stored <= high)
    return found if found.any() else None


def _used_bits(stored: NDArray[np.integer], encoding: Encoding) -> tuple[NDArray[np.integer], NDArray[np.bool_] | np.bool_]:
    """Clear the bits above BitsStored: an old overlay, a missing sign extension, or anything else.

    Returns:
        the values, and where the cleared bits were neither of the first two.
    """
    unused = encoding.bits - encoding.bits_stored
    high = 2 ** (encoding.bits_stored - encoding.signed)
    if not unused or not (encoding.overlay or stored.max(initial=0) >= high):
        return stored, np.False_
    used = np.right_shift(np.left_shift(stored, unused), unused)  # signed shifts keep the sign
    return used, np.False_ if encoding.overlay else stored >= 2**encoding.bits_stored


def _uncompressed(path: Path, offset: int, encoding: Encoding) -> NDArray[np.integer]:
    """Stored values of uncompressed pixels, in the byte order of this machine."""
    kind = np.dtype(f"{'i' if encoding.signed else 'u'}{encoding.bits // 8}")
    order: Literal["<", ">"] = "<" if uid.UID(encoding.syntax).is_little_endian else ">"
    stored = np.fromfile(path, kind.newbyteorder(order), int(np.prod(encoding.size)), offset=offset)
    if stored.size < np.prod(encoding.size):
        raise PrepError(f"only {stored.nbytes} bytes of pixel data could be read")
    return stored.reshape(encoding.size).astype(kind, copy=False)


def _data_set(path: Path) -> Dataset:
    try:
        return dcmread(path, force=True)
    except Exception as error:
        raise PrepError(f"cannot be read as DICOM ({type(error).__name__})") from None


@lru_cache(maxsize=2)
def _frames(path: Path) -> Dataset:
    """An enhanced image, kept while its frames are read one after the other."""
    return _data_set(path)


def _decoded(data: Dataset, encoding: Encoding, index: int) -> tuple[NDArray[np.integer], tuple[str, ...]]:
    """Stored values of one frame in any encoding, decoded by pydicom and its plugins."""
    try:
        if "TransferSyntaxUID" not in data.file_meta:
            data.file_meta.TransferSyntaxUID = uid.UID(encoding.syntax)
        stored = pixel_array(data, index=index, raw=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # broken bytes can raise any exception in a decoder, and one in Rust panics
        raise PrepError(f"the pixel data cannot be decoded ({type(error).__name__})") from None
    if stored.shape != encoding.size or stored.dtype.kind not in "iu":
        raise PrepError(f"the pixel data decodes to {stored.dtype} of {stored.shape}, the header says {encoding.size}")
    stored = stored.astype(stored.dtype.newbyteorder("="), copy=False)
    return _as_encoded(data, stored, encoding, index)


def _as_encoded(
    data: Dataset, stored: NDArray[np.integer], encoding: Encoding, index: int
) -> tuple[NDArray[np.integer], tuple[str, ...]]:
    """Read values as signed if the JPEG 2000 stream is signed but the header says unsigned (decoders disagree on this case).

    Raises:
        PrepError: the values are implausible as signed ones.
    """
    if encoding.syntax not in JPEG2000 or encoding.signed:
        return stored, ()
    frames = whole(data, "NumberOfFrames", 1)
    if not get_j2k_parameters(get_frame(data.PixelData, index, number_of_frames=frames)).get("is_signed"):
        return stored, ()
    signed = stored.view(f"i{stored.itemsize}")
    if np.mean(np.abs(signed.astype(np.int64)) <= 4096) < 0.9:
        raise PrepError("the JPEG 2000 stream is signed, the header says unsigned: the values are uncertain")
    return signed, ("signed JPEG 2000 stream under an unsigned header: read as signed",)


def _looked_up(data: Dataset, stored: NDArray[np.integer]) -> NDArray[np.float32]:
    try:
        return np.asarray(apply_modality_lut(stored, data), np.float32)
    except Exception as error:
        raise PrepError(f"the modality look-up table cannot be applied ({type(error).__name__})") from None
