"""Read from the header how the pixels of a CT image are stored, and check that all of them are present."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Literal, NamedTuple

from pydicom import Dataset, uid
from pydicom.pixels import get_decoder
from pydicom.tag import Tag
from pydicom.uid import UID

from data_prep.run.manifest import PrepError, SkipError
from es_medical.data.dicom.elements import number, numbers, raw, text, values, whole

PIXEL_DATA = 0x7FE00010
OVERLAYS = tuple(Tag(0x60000102 + (i << 17)) for i in range(16))  # OverlayBitPosition
UNDEFINED = 0xFFFFFFFF
RWV, UNITS, HU_CODE = "RealWorldValueMappingSequence", "MeasurementUnitsCodeSequence", "[hnsf'U]"  # the UCUM code of HU
MAPS = frozenset(  # values of ImageType (PS3.3 C.8.15.2.1.1, C.8.16.1) of images that never hold Hounsfield units
    {"EFF_ATOMIC_NUM", "ELECTRON_DENSITY", "MAT_SPECIFIC", "MAT_FRACTIONAL", "MAT_VALUE_BASED", "PERFUSION", "Z_EFF", "ZEFF"}
)
DERIVED_MAPS = frozenset({"MAT_REMOVED", "MAT_MODIFIED", "IODINE"})  # these may: where the rescale type says HU
INSTALL = "pip install 'es_medical[dicom]' (pylibjpeg with pylibjpeg-libjpeg, pylibjpeg-openjpeg and pylibjpeg-rle)"


class Encoding(NamedTuple):
    """How the pixels of an image are stored and what they mean; the same for most images of a series.

    Attributes:
        syntax: UID of the transfer syntax.
        size: rows and columns.
        bits: BitsAllocated, bits per pixel.
        bits_stored: BitsStored, how many of these are used.
        signed: whether stored values are signed.
        slope: Hounsfield units = stored * slope + intercept; NaN where unknown.
        intercept: see `slope`.
        lut: whether a modality look-up table replaces slope and intercept.
        padding: smallest and largest stored value that means padding, or None.
        overlay: whether an overlay is stored in the unused bits.
        unspecified: whether the file says that the unit of the values is unspecified (rescale type US).
    """

    syntax: str
    size: tuple[int, int]
    bits: int
    bits_stored: int
    signed: bool
    slope: float
    intercept: float
    lut: bool
    padding: tuple[int, int] | None
    overlay: bool
    unspecified: bool

    @property
    def length(self) -> int:
        """Bytes of one uncompressed image."""
        return self.size[0] * self.size[1] * self.bits // 8


def pixel_encodings(
    data: Dataset, frames: Sequence[Dataset], file: BinaryIO, at: int
) -> tuple[list[Encoding | PrepError], int]:
    """How the pixels of each frame are stored, and the byte offset of the first uncompressed ones (-1 for others).

    Args:
        data: the header.
        frames: the header as each frame sees it; one for a classic image.
        file: the file, whose element of pixels is at byte `at`.
        at: see `file`.

    Returns:
        for each frame its encoding, or why it cannot be used.

    Raises:
        PrepError: of all frames: the pixels are missing, truncated, not those of a CT slice, or no decoder is installed.
        SkipError: of all frames: a colour image, or values that are not Hounsfield units.
    """
    syntax = _syntax(data)
    found = [_tried(frame, syntax) for frame in frames]
    good = next((one for one in found if isinstance(one, Encoding)), None)
    if good is None:
        raise next(one for one in found if isinstance(one, PrepError))
    if syntax.is_deflated:
        return found, -1
    if syntax.is_encapsulated:
        _check_decoder(syntax)
    file.seek(at)
    return found, _offset(file, syntax, good, len(frames))


def _tried(frame: Dataset, syntax: UID) -> Encoding | PrepError:
    try:
        return _encoding(frame, syntax)
    except PrepError as error:
        return error


def _syntax(data: Dataset) -> UID:
    given = UID(text(data.file_meta, "TransferSyntaxUID"))
    implicit, little = data.original_encoding
    if given in uid.UID_dictionary and given.is_transfer_syntax:
        return given
    if given:
        raise PrepError("a transfer syntax that the DICOM standard does not define")
    if implicit:
        return uid.ImplicitVRLittleEndian
    return uid.ExplicitVRLittleEndian if little else uid.ExplicitVRBigEndian


def _check_decoder(syntax: UID) -> None:
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise PrepError(f"transfer syntax {syntax.name}: no decoder is known for it") from None
    if not decoder.is_available:
        raise PrepError(f"transfer syntax {syntax.name} ({syntax}): no decoder installed, {INSTALL}")


def _encoding(data: Dataset, syntax: UID) -> Encoding:
    counts = {key: whole(data, key) for key in ("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit")}
    rows, columns, bits, stored, high = counts.values()
    stored, signed = stored or bits, bool(whole(data, "PixelRepresentation"))
    if rows < 1 or columns < 1 or bits not in {8, 16, 32}:
        raise PrepError(f"{rows} x {columns} pixels of {bits} bits: expected an image of 8, 16 or 32 bits")
    if not 1 <= stored <= bits or (high and high != stored - 1):
        raise PrepError(f"bits stored {stored} of {bits}, high bit {high}: expected the lowest bits")
    if whole(data, "SamplesPerPixel", 1) != 1 or text(data, "PhotometricInterpretation") not in {
        "MONOCHROME1",  # only changes the display, not the values
        "MONOCHROME2",
        "",
    }:
        raise SkipError("a colour image, not CT values")
    if other := _not_hounsfield(data):
        raise SkipError(f"{other}: not Hounsfield units")
    slope, intercept = _rescale(data)
    lut = bool(raw(data, "ModalityLUTSequence"))
    overlay = any(int(data[tag].value or 0) > 0 for tag in OVERLAYS if tag in data)
    padding = _padding(data, bits, signed)
    unspecified = _unit(data) == "US"
    return Encoding(str(syntax), (rows, columns), bits, stored, signed, slope, intercept, lut, padding, overlay, unspecified)


def _unit(data: Dataset) -> str:
    """The rescale type; US (unspecified) where a multi-energy image states none, as it must if its values are HU too."""
    return text(data, "RescaleType").upper() or ("US" if text(data, "MultienergyCTAcquisition").upper() == "YES" else "")


def _not_hounsfield(data: Dataset) -> str:
    """What says that the values are not Hounsfield units, or "": unit of the rescale, image type, or real-world units."""
    unit, kinds = _unit(data), values(data, "ImageType")
    stated = unit == "HU" or "OUN" in unit  # some files say "Houndsfield Unit"
    if not (stated or unit in {"", "US"}):
        return "a rescale type that is not HU"
    if found := (MAPS if stated else MAPS | DERIVED_MAPS) & set(kinds):
        return f"a map ({', '.join(sorted(found))})"
    if stated:
        return ""
    if unit == "US" and "DERIVED" in kinds[:1]:
        return "a derived image of unspecified unit (rescale type US)"
    codes = [text(one, "CodeValue") for item in raw(data, RWV) or () for one in raw(item, UNITS) or ()]
    return "real-world units other than HU" if codes and HU_CODE not in codes else ""


def _rescale(data: Dataset) -> tuple[float, float]:
    try:
        slope, intercept = (number(data, key) for key in ("RescaleSlope", "RescaleIntercept"))
    except ValueError as error:
        raise PrepError(str(error)) from None
    if slope == 0:
        raise PrepError("rescale slope 0")
    return slope, intercept


def _padding(data: Dataset, bits: int, signed: bool) -> tuple[int, int] | None:
    """Range of the stored values that are padding, with the sign of the pixels (63536 is -2000 written unsigned)."""
    ends = []
    for key in ("PixelPaddingValue", "PixelPaddingRangeLimit"):
        for value in numbers(data, key, 1):
            unsigned = int(value) % 2**bits
            ends.append(unsigned - 2**bits if signed and unsigned >= 2 ** (bits - 1) else unsigned)
        if not ends:  # a limit alone has no meaning
            return None
    return min(ends), max(ends)


def _offset(file: BinaryIO, syntax: UID, encoding: Encoding, frames: int) -> int:
    """Byte offset of the values of uncompressed pixels of so many frames; -1 for compressed ones.

    Raises:
        PrepError: there are no pixels, or fewer than the header says.
    """
    order: Literal["little", "big"] = "little" if syntax.is_little_endian else "big"
    head = file.read(8)
    group, element = (int.from_bytes(head[i : i + 2], order) for i in (0, 2))
    if len(head) < 8 or (group << 16) + element != PIXEL_DATA:
        raise PrepError("the file holds no pixel data, or ends before it")
    explicit = head[4:6] in {b"OW", b"OB"}  # as a length these bytes would be odd (invalid); the stated syntax may be wrong
    length = int.from_bytes(file.read(4) if explicit else head[4:8], order)
    start = file.tell()
    if syntax.is_encapsulated:
        return -1
    if length == UNDEFINED:
        raise PrepError("uncompressed pixel data of undefined length: its transfer syntax is not the one stated")
    needed = frames * encoding.length
    held = min(length, file.seek(0, 2) - start)
    if held < needed:
        several = f"{frames} frames of " if frames > 1 else ""
        raise PrepError(
            f"pixel data is cut short: {held} bytes, expected {needed} for {several}{encoding.size[0]} x "
            f"{encoding.size[1]} pixels of {encoding.bits} bits"
        )
    return start
