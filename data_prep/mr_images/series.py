"""Read volumes from MR DICOM images, classic or enhanced: which images form one, their order, and their values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydicom import Dataset, uid
from pydicom.pixels import pixel_array

from data_prep.mr_images.grid import DIRECTIONS, Grid, Scan, Stack, stack_of
from data_prep.mr_images.options import MROptions
from data_prep.mr_images.subjects import subject_in
from data_prep.run.folders import Source
from data_prep.run.manifest import Outcome, PrepError, SkipError
from es_medical.data.dicom.elements import number, numbers, text, values, whole
from es_medical.data.dicom.files import Content, is_directory, is_scout, sop_class
from es_medical.data.dicom.frames import MR_FRAMES, plane_of, read_frames
from es_medical.data.dicom.volumes import Identity, identity_of, stacks
from es_medical.data.geometry import Geometry
from es_medical.data.stack import along_normal, gaps, regular_grid, same_orientation, usual_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = {
    "P": "phase",
    "PHASE": "phase",
    "R": "real part",
    "REAL": "real part",
    "I": "imaginary part",
    "IMAGINARY": "imaginary part",
}
MAPS = {
    "ADC": "apparent diffusion coefficients",
    "FA": "anisotropy",
    "T1 MAP": "T1",
    "T2 MAP": "T2",
    "VELOCITY MAP": "velocity",
}


class Frame(NamedTuple):
    """One image of a file, from its header. Only `name` is shown to the user, and no field is stored as it is.

    Attributes:
        path: the file.
        name: its path below the source folder.
        digest: SHA-256 of the file.
        number: of the frame in the file, from 0.
        identity: what decides to which volume it belongs.
        plane: where it lies.
        size: rows and columns.
        rescale: slope and intercept of its values.
        padding: stored value that means no pixel, or None.
    """

    path: Path
    name: str
    digest: str
    number: int
    identity: Identity
    plane: Geometry
    size: tuple[int, int]
    rescale: tuple[float, float]
    padding: int | None


def read_images(source: Source, digest: str, content: Content) -> list[Frame]:
    """Read the headers of the frames of a DICOM file.

    Raises:
        SkipError: not an MR image, or not one of a body's magnitudes.
        PrepError: the header cannot be read.
    """
    try:
        headers = read_frames(source.path, bare=content == "bare")
    except ValueError as error:  # its text is the room's own, without identifiers
        raise PrepError(str(error)) from None
    except Exception as error:  # broken bytes can raise any exception, and pydicom's messages quote them
        raise PrepError(f"the DICOM header cannot be read ({type(error).__name__})") from None
    _check_kind(headers[0])
    found = [(k, header) for k, header in enumerate(headers) if not _part(header)]
    if not found:
        raise SkipError(f"{_part(headers[0])}, not a magnitude image")
    return [_frame(header, source, digest, k) for k, header in found]


def _check_kind(data: Dataset) -> None:
    sop, modality = sop_class(data), text(data, "Modality")
    if is_directory(data):
        raise SkipError("a DICOMDIR, not an image")
    if not sop and not modality:
        raise PrepError("the DICOM header has neither SOP class nor modality")
    if sop not in {"", uid.MRImageStorage, *MR_FRAMES}:
        known = uid.UID(sop).name if sop in uid.UID_dictionary else "a private or unknown SOP class"
        raise SkipError(f"not an MR image: {known}")
    if modality not in {"", "MR"}:
        raise SkipError("not an MR image: another modality")
    if is_scout(data):
        raise SkipError("a localizer (scout)")
    if text(data, "BurnedInAnnotation").upper() == "YES":
        raise SkipError("text is burned into the pixels (BurnedInAnnotation), it may name the patient")
    if whole(data, "SamplesPerPixel", 1) != 1:
        raise SkipError("a colour image")


def _part(data: Dataset) -> str:
    """What an image shows if not magnitudes, or ""."""
    kinds = [*values(data, "ImageType"), *values(data, "ComplexImageComponent")]
    return next((PARTS.get(kind) or MAPS.get(kind) or "" for kind in kinds if kind in PARTS or kind in MAPS), "")


def _frame(data: Dataset, source: Source, digest: str, index: int) -> Frame:
    identity = identity_of(data)
    if not identity.series:
        identity = identity._replace(series=f"folder/{PurePosixPath(source.name).parent}")
    try:
        slope, intercept = number(data, "RescaleSlope"), number(data, "RescaleIntercept")
    except ValueError as error:
        raise PrepError(str(error)) from None
    rescale = (1.0 if np.isnan(slope) else slope, 0.0 if np.isnan(intercept) else intercept)
    size = whole(data, "Rows"), whole(data, "Columns")
    padding = next((int(value) for value in numbers(data, "PixelPaddingValue", 1)), None)
    return Frame(source.path, source.name, digest, index, identity, plane_of(data), size, rescale, padding)


def examine_series(frames: Sequence[Frame], options: MROptions) -> Iterator[Scan | Outcome]:
    """Divide images into volumes, in whatever folder they are.

    Returns:
        the volumes, and outcomes of images that form none.
    """
    taken = Counter[str]()
    for stack in stacks(frames, lambda frame: frame.identity, _pixel_digest):
        copies = [f"{len(stack.copies)} copies of slices left out"] if stack.copies else []
        told = [f"told from others of its series by {', '.join(stack.told_by)}"] if stack.told_by else []
        for part in _parallel(stack.images):
            name = _name(part, frames)
            taken[name] += 1
            name = f"{name} ({taken[name]})" if taken[name] > 1 else name
            try:
                if stack.problem:
                    raise PrepError(stack.problem)
                yield _scan(part, name, (*told, *copies), options)
            except PrepError as error:
                yield Outcome(name, "failed", str(error))
            except Exception as error:  # one bad series never stops the others
                yield Outcome(name, "failed", f"unexpected {type(error).__name__}")


def _parallel(frames: Sequence[Frame]) -> list[list[Frame]]:
    """Images of the same directions, such as the three planes of a survey."""
    parts: list[list[Frame]] = []
    for frame in frames:
        part = next((part for part in parts if _alike(part[0].plane, frame.plane)), None)
        if part is None:
            parts.append([frame])
        else:
            part.append(frame)
    return parts


def _alike(one: Geometry, other: Geometry) -> bool:
    known = [not np.isnan(plane.orientation).any() for plane in (one, other)]
    return known[0] == known[1] and (not known[0] or same_orientation((one, other)))


def _name(part: Sequence[Frame], frames: Sequence[Frame]) -> str:
    """The folder of a volume if that holds nothing else, else its first file."""
    folders = {PurePosixPath(frame.name).parent for frame in part}
    inside = [frame for frame in frames if PurePosixPath(frame.name).parent in folders]
    if len(folders) == 1 and len(inside) == len(part) > 1 and (folder := folders.pop().as_posix()) != ".":
        return folder
    return min(frame.name for frame in part)


def _scan(frames: Sequence[Frame], name: str, notes: Sequence[str], options: MROptions) -> Scan:
    """One volume of images in the order of their positions, or of their numbers where these are unknown."""
    sizes = Counter(frame.size for frame in frames)
    spacings = {frame.plane.spacing for frame in frames if not np.isnan(frame.plane.spacing).any()}
    if len(sizes) > 1 or min(next(iter(sizes))) < 1:
        raise PrepError(f"images of several sizes in one series: {', '.join(f'{h} x {w}' for h, w in sorted(sizes))}")
    if options.spacing and not spacings:
        raise PrepError("no pixel spacing in the header, so --spacing cannot be used")
    if len(spacings) > 1 and not np.allclose(min(spacings), max(spacings), rtol=1e-3):
        raise PrepError(f"pixels of {min(spacings)} and of {max(spacings)} mm in one series")
    placed = all(np.isfinite([*frame.plane.position, *frame.plane.orientation]).all() for frame in frames)
    ordered, between = _ordered(frames, placed)
    planes = [frame.plane if placed else Geometry(spacing=frame.plane.spacing) for frame in ordered]
    planes = [Geometry(one.position, one.orientation, one.spacing, between) for one in planes]
    notes = [*notes, *(() if spacings else ("no pixel spacing in the header",))]
    remarks = (*notes, *(gaps(along_normal(planes)) if placed else ["positions unknown: in the order of instance numbers"]))
    native = _native(planes[0]) if placed else "acquired"
    digest = hashlib.sha256(repr([(frame.digest, frame.number) for frame in ordered]).encode()).hexdigest()
    label = subject_in(name, options.subject_pattern) if options.subject_pattern else ""
    subject = label or _subject(ordered[0].identity)
    read = partial(read_series, tuple(ordered), tuple(planes))
    if options.plane in {"acquired", native}:
        size = ordered[0].size
        return Scan(name, digest, subject, label, native, size, planes[0].spacing, tuple(remarks), read)
    if not placed or not spacings:
        raise PrepError(f"positions or pixel sizes are unknown: no {options.plane} slices can be made, --plane acquired can")
    grid, _ = _grid_of(planes, ordered[0].size).turned(DIRECTIONS[options.plane])
    columns, rows, _ = grid.shape
    turned = partial(read, directions=DIRECTIONS[options.plane])
    return Scan(name, digest, subject, label, options.plane, (rows, columns), grid.planes()[0].spacing, tuple(remarks), turned)


def _ordered(frames: Sequence[Frame], placed: bool) -> tuple[list[Frame], float]:
    """The images in order, and the distance between neighbours in mm."""
    if not placed:
        return sorted(frames, key=lambda frame: (float(frame.identity.telling[-1] or "inf"), frame.name)), np.nan
    along = along_normal([frame.plane for frame in frames])
    ordered = [frames[i] for i in np.argsort(along, kind="stable")]
    return ordered, usual_step(np.sort(along)) if len(frames) > 1 else frames[0].plane.slice_spacing


def _native(plane: Geometry) -> str:
    return ("sagittal", "coronal", "axial")[int(np.abs(plane.normal).argmax())]


def _subject(identity: Identity) -> str:
    """The patient, else the study, else the series."""
    known = (("patient", identity.patient), ("study", identity.study), ("series", identity.series))
    return next(f"{kind}/{value}" for kind, value in known if value)


def _grid_of(planes: Sequence[Geometry], size: tuple[int, int]) -> Grid:
    """The regular grid of axes (column, row, slice).

    Raises:
        PrepError: a slice is missing, or the slices lie on no regular grid.
    """
    try:
        places, affine = regular_grid(planes, np.arange(len(planes)))
    except ValueError as error:
        raise PrepError(f"no other plane can be made of it: {error}") from None
    if places.max() + 1 != len(planes):
        raise PrepError("slices are missing: no other plane can be made of it, --plane acquired takes those there are")
    return Grid((size[1], size[0], len(planes)), affine)


def read_series(frames: Sequence[Frame], planes: Sequence[Geometry], directions: str = "") -> Stack:
    """The slices of a volume.

    Args:
        frames: its images, in order.
        planes: their planes.
        directions: of columns, rows and slices, see `DIRECTIONS`; "" keeps those of the images.

    Raises:
        PrepError: pixels cannot be decoded.
    """
    stored: dict[Path, NDArray[np.integer]] = {}
    images = []
    for frame in frames:
        if frame.path not in stored:
            stored = {frame.path: _stored(frame.path)}  # of one file at a time
        images.append(_values(frame, stored[frame.path]))
    voxels = np.stack(images)
    if not directions:
        return Stack(voxels, list(planes))
    return stack_of(voxels.transpose(2, 1, 0), _grid_of(planes, frames[0].size), directions)


def _stored(path: Path) -> NDArray[np.integer]:
    """Stored values of a file, (frames, H, W)."""
    try:
        stored = pixel_array(path, raw=True)
    except Exception as error:  # broken bytes can raise any exception in a decoder
        kind = type(error).__name__
        hint = ": pip install 'es_medical[dicom]' decodes compressed files" if isinstance(error, RuntimeError) else ""
        raise PrepError(f"the pixels of an image cannot be decoded ({kind}){hint}") from None
    return stored if stored.ndim == 3 else stored[None]


def _values(frame: Frame, stored: NDArray[np.integer]) -> NDArray[np.float32]:
    """Values of one image, by its own rescale; padding becomes the smallest of the others."""
    if frame.number >= len(stored) or stored.shape[1:] != frame.size:
        raise PrepError(f"pixels of shape {stored.shape}, the header says {frame.size}")
    pixels = stored[frame.number]
    slope, intercept = frame.rescale
    image = pixels.astype(np.float32) * np.float32(slope) + np.float32(intercept)
    padded = pixels == frame.padding if frame.padding is not None else np.zeros(1, bool)
    if padded.any() and not padded.all():
        image[padded] = image[~padded].min()
    return image


def _pixel_digest(frame: Frame) -> str:
    return hashlib.sha256(_values(frame, _stored(frame.path)).tobytes()).hexdigest()
