"""The rule of what a volume is: a mixture of two scans is never one volume."""

import pytest

from es_medical.data.dicom.volumes import TELLING, Identity, stacks

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
CORONAL = (1.0, 0.0, 0.0, 0.0, 0.0, -1.0)


def image(z=0.0, patient="p", study="s", frame="f", series="x", orientation=AXIAL, **telling):
    position = () if z is None else (0.0, -z, 0.0) if orientation == CORONAL else (0.0, 0.0, z)
    return Identity(patient, study, frame, series, tuple(str(telling.get(name, "")) for name in TELLING), position, orientation)


def scan(n=6, step=2.5, start=0.0, **same):
    return [image(start + i * step, InstanceNumber=i + 1, **same) for i in range(n)]


def divided(images, pixels=None):
    return stacks(images, lambda one: one, pixels)


def test_one_scan_is_one_volume():
    (one,) = divided(scan())
    assert one.images == scan()
    assert (one.told_by, one.problem) == ((), "")


@pytest.mark.parametrize("field", ["patient", "study", "frame"])
@pytest.mark.parametrize("shift", [0.0, 1.25])
def test_two_studies_with_the_uid_of_one_series_are_two_volumes(field, shift):
    first, second = scan(**{field: "a"}), scan(start=shift, **{field: "b"})
    mixed = [one for pair in zip(first, second, strict=True) for one in pair]
    assert [one.images for one in divided(mixed)] == [first, second]


@pytest.mark.parametrize(
    "name", ["AcquisitionNumber", "TemporalPositionIdentifier", "EchoTime", "AcquisitionTime", "ContentTime"]
)
@pytest.mark.parametrize("n", [6, 1])
def test_phases_are_told_apart_by_number_or_time(name, n):
    first, second = scan(n, **{name: 1}), scan(n, **{name: 2})
    found = divided([*second, *first])
    assert sorted(one.images for one in found) == sorted([first, second])
    assert {one.told_by for one in found} == {(name,)}


@pytest.mark.parametrize("name", ["StudyDate", "SeriesTime", "AcquisitionTime", "ImageType"])
@pytest.mark.parametrize("n", [5, 6])
def test_scans_that_lie_between_each_other_with_equal_numbers_are_told_apart(name, n):
    first, second = scan(**{name: 1}), scan(n, start=1.25, **{name: 2})
    assert sorted(one.images for one in divided([*second, *first])) == sorted([first, second])


def test_scans_that_lie_between_each_other_with_equal_numbers_and_nothing_else_are_refused():
    (one,) = divided([*scan(), *scan(5, start=0.3)])
    assert "lie between each other" in one.problem


@pytest.mark.parametrize(
    "images", [scan() + scan(start=15.0), scan()[::-1] + scan(start=-15.0), [image(2.5 * i) for i in range(5)]]
)
def test_pieces_of_a_scan_with_repeated_numbers_are_one_volume(images):
    (one,) = divided(images)
    assert (one.images, one.problem) == (images, "")


@pytest.mark.parametrize("name", ["AcquisitionNumber", "ContentTime", "InstanceNumber"])
def test_phases_are_told_apart_by_times_that_differ_from_slice_to_slice(name):
    phases = [[image(2.5 * i, **{name: 100 * k + i}) for i in range(4)] for k in range(3)]
    assert [one.images for one in divided(sum(phases, []))] == phases


def test_echoes_of_phases_are_volumes_of_their_own():
    images = [image(z, EchoTime=echo, ContentTime=time) for z in (0, 1, 2) for echo in (10, 20) for time in (100, 200)]
    found = divided(images)
    assert [len(one.images) for one in found] == [3] * 4
    assert all(len({(one.telling[2], one.telling[-2]) for one in volume.images}) == 1 for volume in found)


def test_phases_between_each_other_are_two_volumes_and_a_scan_in_pieces_is_one():
    first, second = scan(AcquisitionNumber=1), scan(start=1.25, AcquisitionNumber=2)
    assert [one.images for one in divided(first + second)] == [first, second]
    pieces = scan(3, AcquisitionNumber=1) + scan(3, start=7.5, AcquisitionNumber=2)
    assert [one.images for one in divided(pieces)] == [pieces]
    rotations = [image(z, AcquisitionNumber=z) for z in range(9)]
    assert len(divided(rotations)) == 1


def test_part_of_a_scan_made_again_is_a_volume_of_its_own():
    first, again = scan(AcquisitionNumber=1), scan(2, start=5.0, AcquisitionNumber=2)
    assert [one.images for one in divided(first + again)] == [first, again]


@pytest.mark.parametrize(
    "telling",
    [
        [{}] * 4,
        [{"ContentTime": t} for t in (1, 2, 3, 4)],  # z 0, 0, 1, 1: position by position, as a perfusion scan
        [{"InstanceNumber": t} for t in (1, 1, 2, 2)],
    ],
)
def test_what_nothing_tells_apart_is_refused(telling):
    (one,) = divided([image(z, **told) for z, told in zip((0, 0, 1, 1), telling, strict=True)])
    assert "several images at 2 positions, and no AcquisitionNumber or time tells them apart" in one.problem


def test_a_missing_slice_leaves_phases_in_the_order_of_times_untold():
    """The last slice of the first phase is missing: a run through all places would take the one of the second phase."""
    times = {"ContentTime": 0}
    first = [image(z, ContentTime=z) for z in range(5)]
    second = [image(z, ContentTime=20 - z) for z in range(6)]
    assert [bool(one.problem) for one in divided(first + second)] == [True]
    assert not divided([one._replace(telling=scan(1, **times)[0].telling) for one in second])[0].problem


def test_equal_pixels_at_one_place_are_copies():
    images = scan(4)
    (one,) = divided(images + images[1:3], pixels=lambda one: one.position)
    assert (one.images, list(one.copies), one.problem) == (images, images[1:3], "")
    (one,) = divided(images + images[1:3], pixels=id)
    assert "positions" in one.problem or one.copies


@pytest.mark.parametrize(("field", "name"), [("study", "StudyInstanceUID"), ("frame", "FrameOfReferenceUID")])
def test_a_uid_for_each_slice_is_named(field, name):
    (one,) = divided([image(z, **{field: str(z)}) for z in range(5)])
    assert one.problem == f"each of its 5 images has a {name} of its own: expected one for all"


def test_slices_without_positions_are_told_apart_by_their_numbers():
    first, second = ([image(None, InstanceNumber=i, AcquisitionNumber=k) for i in range(3)] for k in (1, 2))
    assert [one.images for one in divided(first + second)] == [first, second]
    assert divided([one._replace(telling=first[0].telling) for one in first])[0].problem


def test_three_planes_share_no_place():
    (one,) = divided([image(z, orientation=orientation) for orientation in (AXIAL, CORONAL) for z in (0, 1)])
    assert not one.problem
