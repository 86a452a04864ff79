"""The one rule of which images form a volume, for preparation and inference.

The images of a volume have one patient, study, frame of reference and series. Where several of them lie at one place (phases,
echoes, reconstructions), the first attribute of `TELLING` that divides them into stacks with each place once makes volumes of
their own; one of `SCANS` does so too where the slices of two stacks alternate. Slices that lie between each other and share
their instance numbers are two stacks too. Where no attribute divides them, the series is refused: no rule could tell which
image belongs to which stack.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

from pydicom import Dataset

from es_medical.data.dicom.elements import Vector, numbers, text
from es_medical.data.dicom.frames import plane_of
from es_medical.data.geometry import normal_of
from es_medical.data.stack import PARALLEL

SAME_PLACE = 1e-2  # mm along the normal
OWN = 3  # so many images, each with a study or frame of reference of its own, are no volumes but an error
SCANS = (
    *("AcquisitionNumber", "TemporalPositionIdentifier", "EchoTime", "KVP", "ConvolutionKernel", "AcquisitionDate"),
    *("StudyDate", "SeriesDate", "StudyTime", "SeriesTime"),
)
TELLING = (
    *(*SCANS, "ImageType", "SeriesNumber"),
    *("LossyImageCompressionRatio", "TriggerTime", "AcquisitionDateTime", "AcquisitionTime", "ContentTime", "InstanceNumber"),
)
IDENTIFYING = ("PatientID", "StudyInstanceUID", "FrameOfReferenceUID", "SeriesInstanceUID", *TELLING)

T = TypeVar("T")


class Identity(NamedTuple):
    """What decides to which volume an image belongs; "", () and NaN where unknown.

    Attributes:
        patient: PatientID.
        study: StudyInstanceUID.
        frame: FrameOfReferenceUID.
        series: SeriesInstanceUID.
        telling: the texts of `TELLING`.
        position: ImagePositionPatient.
        orientation: ImageOrientationPatient.
    """

    patient: str
    study: str
    frame: str
    series: str
    telling: tuple[str, ...]
    position: Vector = ()
    orientation: Vector = ()


WHOLE = {"patient": "PatientID", "study": "StudyInstanceUID", "frame": "FrameOfReferenceUID"}


class Stack(NamedTuple, Generic[T]):
    """The images of one volume, in the given order.

    Attributes:
        images: the images.
        told_by: attributes that separate this volume from others of its series.
        copies: images with the pixels and the place of another one, which are no part of it.
        problem: why the images form no volume, or "".
    """

    images: list[T]
    told_by: tuple[str, ...] = ()
    copies: Sequence[T] = ()
    problem: str = ""


def identity_of(frame: Dataset) -> Identity:
    """The identity of a classic image, or of a frame (see `frames_of`)."""
    plane, position = plane_of(frame), numbers(frame, "ImagePositionPatient", 3)
    orientation = () if math.isnan(plane.orientation[0]) else plane.orientation
    patient, study, of_reference, series, *telling = (text(frame, name) for name in IDENTIFYING)
    return Identity(patient, study, of_reference, series, tuple(telling), position, orientation)


def stacks(
    images: Iterable[T], identity: Callable[[T], Identity], pixels: Callable[[T], Hashable] | None = None
) -> list[Stack[T]]:
    """Divide images into volumes.

    Args:
        images: images of any series.
        identity: the identity of an image; give images without a series one by their folder.
        pixels: a digest of the pixels of an image, asked for where nothing else tells two images at one place apart: equal ones
            are copies. None: no pixels are read.
    """
    return [volume for part in by_uid(images, identity) for volume in by_place(part, identity, pixels)]


def by_uid(images: Iterable[T], identity: Callable[[T], Identity]) -> list[Stack[T]]:
    """Divide images by series, patient, study and frame of reference; those that lack one are a part of their own."""
    series: dict[str, list[T]] = defaultdict(list)
    for image in images:
        series[identity(image).series].append(image)
    parts = [Stack(group) for group in series.values()]
    for field, name in WHOLE.items():
        parts = [piece for part in parts for piece in _divided(part, lambda image: getattr(identity(image), field), name)]  # noqa: B023
    return parts


def _divided(stack: Stack[T], value: Callable[[T], str], name: str) -> list[Stack[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for image in stack.images:
        found[value(image)].append(image)
    known = found.keys() - {""}
    if stack.problem or len(known) < 2:
        return [stack]
    if name != "PatientID" and len(known) == len(stack.images) >= OWN:
        return [stack._replace(problem=f"each of its {len(known)} images has a {name} of its own: expected one for all")]
    return [Stack(part, (*stack.told_by, name)) for part in found.values()]


def by_place(
    stack: Stack[T], identity: Callable[[T], Identity], pixels: Callable[[T], Hashable] | None = None
) -> list[Stack[T]]:
    """Divide images with equal UIDs of which several lie at one place, or which interleave; see the module."""
    if stack.problem:
        return [stack]
    told = [identity(image) for image in stack.images]
    places = _places(told)
    shared = _shared_numbers(told, places)
    places = shared or places
    most = _most(range(len(told)), places)
    for k, name in enumerate(TELLING if most > 1 else SCANS):
        values = [one.telling[k] for one in told]
        equal = _equal(values)
        parts = equal if sum(_most(part, places) for part in equal) == most > 1 else _sweeps(values, places, most)
        if len(parts) < 2 and name in SCANS and _interleave(equal, places):
            parts = equal
        if len(parts) > 1:
            several = (Stack([stack.images[i] for i in part], (*stack.told_by, name)) for part in parts)
            return [done for one in several for done in by_place(one, identity, pixels)]
    if most == 1:
        return [stack]
    if shared:
        cause = (
            f"two scans whose slices lie between each other with equal InstanceNumbers, and no {TELLING[0]} or time tells them"
        )
        return [stack._replace(problem=f"{cause} apart")]
    kept, copies = _without_copies(stack.images, places, pixels)
    if len(kept) == len(set(places.values())) + len(told) - len(places):
        return [stack._replace(images=kept, copies=copies)]
    taken = sum(count > 1 for count in Counter(places.values()).values())
    return [stack._replace(problem=f"several images at {taken} positions, and no {TELLING[0]} or time tells them apart")]


def _most(part: Iterable[int], places: dict[int, Hashable]) -> int:
    """The largest number of images at one place."""
    return max(Counter(places[i] for i in part if i in places).values(), default=1)


def _interleave(parts: Sequence[Sequence[int]], places: dict[int, Hashable]) -> bool:
    """Whether stacks of two or more slices lie between each other: two scans of one body, not one scan in pieces."""
    if len(parts) < 2 or min(map(len, parts)) < 2 or not all(isinstance(place, tuple) for place in places.values()):
        return False
    part_of = {i: k for k, part in enumerate(parts) for i in part}
    along = [part_of[i] for i in sorted(places, key=places.__getitem__)]  # type: ignore[arg-type]
    return len(list(groupby(along))) > len(parts)


_normal = lru_cache(maxsize=4096)(normal_of)  # the slices of a series repeat their orientation


def _places(images: Sequence[Identity]) -> dict[int, Hashable]:
    """Place of each image, by its index: direction and height along the normal, else InstanceNumber; none where unknown."""
    normals, heights = list[Vector](), defaultdict[int, list[tuple[float, int]]](list)
    places = dict[int, Hashable]()
    for i, image in enumerate(images):
        if not image.position:
            if number := image.telling[-1]:
                places[i] = number
            continue
        normal = _normal(image.orientation or (1.0, 0.0, 0.0, 0.0, 1.0, 0.0))
        k = next((k for k, other in enumerate(normals) if normal @ other > PARALLEL), len(normals))
        if k == len(normals):
            normals.append(tuple(normal))
        heights[k].append((float(normal @ image.position), i))
    for k, several in heights.items():
        last, count = -math.inf, 0
        for height, i in sorted(several):
            count += height - last >= SAME_PLACE
            last, places[i] = height, (k, count)
    return places


def _shared_numbers(images: Sequence[Identity], places: dict[int, Hashable]) -> dict[int, Hashable]:
    """InstanceNumber of each image if slices that share one lie between each other, else {}: one scan, maybe in pieces."""
    numbers = {i: images[i].telling[-1] for i in places}
    if len(places) < len(images) or not all(numbers.values()) or not all(isinstance(place, tuple) for place in places.values()):
        return {}
    if len(set(places.values())) < len(places):
        return {}
    count, turns = Counter[Hashable](), list[int]()
    for i in sorted(places, key=places.__getitem__):  # type: ignore[arg-type]
        turns.append(count[numbers[i]])
        count[numbers[i]] += 1
    return dict(numbers) if len(list(groupby(turns))) > 2 * max(turns, default=0) + 1 else {}


def _equal(values: Sequence[str]) -> list[list[int]]:
    """Indices of equal values."""
    found: dict[str, list[int]] = defaultdict(list)
    for i, value in enumerate(values):
        found[value].append(i)
    return list(found.values())


def _sweeps(values: Sequence[str], places: dict[int, Hashable], most: int) -> list[list[int]]:
    """`most` runs through all places, one after the other, in the order of the values; [] if there are none."""
    try:
        order = sorted(range(len(values)), key=lambda i: float(values[i]))
    except ValueError:
        return []
    runs: list[list[int]] = [[]]
    for _, tied in groupby(order, key=lambda i: values[i]):
        group = list(tied)
        if not {places.get(i) for i in group}.isdisjoint({places.get(i) for i in runs[-1]}):
            runs.append([])
        runs[-1] += group
    same = len({frozenset(places.get(i) for i in run) for run in runs}) == 1
    return runs if same and len(runs) == most and all(_most(run, places) == 1 for run in runs) else []


def _without_copies(
    images: Sequence[T], places: dict[int, Hashable], pixels: Callable[[T], Hashable] | None
) -> tuple[list[T], list[T]]:
    """One image of those with equal pixels at one place, and the others."""
    several = {place for place, count in Counter(places.values()).items() if count > 1}
    seen, kept, copies = set[Hashable](), list[T](), list[T]()
    for i, image in enumerate(images):
        key = (places[i], pixels(image)) if pixels and places.get(i) in several else i
        (copies if key in seen else kept).append(image)
        seen.add(key)
    return kept, copies
