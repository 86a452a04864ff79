"""Read a DICOM image as frames: enhanced multi-frame objects as if each frame were an image of its own.

for number, frame in enumerate(read_frames(path)):  # headers alone
    plane, stored = plane_of(frame), frame_pixels(path, number)
    values = apply_rescale(stored, frame)           # pydicom.pixels: by the frame's own slope and intercept
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydicom import Dataset, Sequence, dcmread, uid
from pydicom.datadict import keyword_for_tag
from pydicom.dataset import FileMetaDataset
from pydicom.pixels import pixel_array
from pydicom.tag import BaseTag

from es_medical.data.dicom.elements import numbers, raw, tag_of, whole
from es_medical.data.geometry import NAN, Geometry, is_orientation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUMBER = "InstanceNumber"
SHARED, OWN = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
CT_FRAMES = frozenset({uid.EnhancedCTImageStorage, uid.LegacyConvertedEnhancedCTImageStorage})
MR_FRAMES = frozenset({uid.EnhancedMRImageStorage, uid.LegacyConvertedEnhancedMRImageStorage})
KEPT_WHOLE = "RealWorldValueMappingSequence"  # a frame may have several, and classic images hold it as a sequence too
CLASSIC = {  # name in a functional group -> name in a classic image
    "FrameType": "ImageType",
    "FrameAcquisitionNumber": "AcquisitionNumber",
    "FrameAcquisitionDateTime": "AcquisitionDateTime",
    "TemporalPositionIndex": "TemporalPositionIdentifier",
    "EffectiveEchoTime": "EchoTime",
}


def read_frames(path: str | Path, tags: list[BaseTag] | None = None, bare: bool = False) -> list[Dataset]:
    """Read the headers of the frames of a DICOM image, without pixels; see `frames_of`.

    Args:
        path: the file.
        tags: elements to read, with both sequences of functional groups; None reads all.
        bare: whether the file may lack a preamble.

    Raises:
        ValueError: frames and functional groups do not agree. Broken bytes can raise any exception in pydicom.
    """
    return frames_of(dcmread(path, stop_before_pixels=True, force=bare, specific_tags=tags))


def frames_of(data: Dataset) -> list[Dataset]:
    """One data set for each frame: the header with the frame's own functional groups in place of the two sequences.

    The elements of the groups (PS3.3 C.7.6.16) stand at the top level, with the names of classic images: rescale, position,
    orientation, pixel spacing, frame type (as ImageType), acquisition number and time, echo time. InstanceNumber is the number
    of the frame, from 1. The frames share elements: do not change them in place. A classic image is the only frame of itself.

    Raises:
        ValueError: several frames without functional groups, or another number of groups than frames.
    """
    groups, n = raw(data, OWN) or (), whole(data, "NumberOfFrames", 1)
    if not groups and n <= 1:
        return [data]
    if len(groups) != n:
        raise ValueError(f"{n} frames, but {len(groups)} functional groups of frames: expected one for each")
    shared = _elements(next(iter(raw(data, SHARED) or ()), Dataset()))
    head = {tag: data.get_item(tag) for tag in data.keys() - set(map(tag_of, (SHARED, OWN, NUMBER, "NumberOfFrames")))}
    frames = []
    for number, group in enumerate(groups, start=1):
        frame = Dataset(head | shared | _elements(group))
        implicit, little = data.original_encoding
        frame.set_original_encoding(implicit, little, data.original_character_set)
        frame.file_meta, frame.InstanceNumber = getattr(data, "file_meta", FileMetaDataset()), number
        frames.append(frame)
    return frames


def _elements(groups: Dataset) -> dict[BaseTag, Any]:
    """The elements of all functional groups by tag; references to other images and private groups are left out."""
    found = dict[BaseTag, Any]()
    for tag in groups.keys():  # noqa: SIM118  a Dataset yields elements, and invalid ones raise
        name, items = keyword_for_tag(tag), raw(groups, tag)
        if name == KEPT_WHOLE:
            found[tag] = groups.get_item(tag)
        elif name and isinstance(items, Sequence) and not name.startswith(("Referenced", "Derivation")):
            for item in items[:1]:
                found |= {tag: item.get_item(tag) for tag in item.keys()}  # noqa: SIM118
                found |= {one.tag: one for one in _renamed(item)}
    return found


def _renamed(item: Dataset) -> Dataset:
    """The elements of a functional group that have another name in a classic image."""
    found = Dataset()
    for name, classic in CLASSIC.items():
        value = raw(item, name)
        if value is not None:
            setattr(found, classic, value)
    return found


def frame_pixels(path: str | Path, index: int = 0) -> NDArray[np.integer]:
    """Stored values (H, W) of one frame, counted from 0; only this frame is decoded."""
    return pixel_array(path, index=index, raw=True)


def plane_of(frame: Dataset) -> Geometry:
    """The plane of a frame or classic image; NaN for a part that is absent or invalid."""
    orientation, spacing = numbers(frame, "ImageOrientationPatient", 6), numbers(frame, "PixelSpacing", 2)
    between = (abs(value) for name in ("SpacingBetweenSlices", "SliceThickness") for value in numbers(frame, name, 1))
    return Geometry(
        numbers(frame, "ImagePositionPatient", 3) or (NAN,) * 3,  # type: ignore[arg-type]
        orientation if orientation and is_orientation(orientation) else (NAN,) * 6,  # type: ignore[arg-type]
        spacing if spacing and min(spacing) > 0 else (NAN,) * 2,  # type: ignore[arg-type]
        next((value for value in between if value > 0), NAN),
    )
