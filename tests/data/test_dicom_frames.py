"""Frames of enhanced multi-frame images: each with its own elements, geometry and pixels."""

import numpy as np
import pytest
from dicom_parts import OBLIQUE, scanned, source_plane, write_slice
from enhanced_dicom import enhanced
from pydicom.pixels import apply_rescale

from es_medical.data.dicom.frames import frame_pixels, frames_of, plane_of, read_frames
from es_medical.data.dicom.volumes import identity_of, stacks
from es_medical.output.dicom.header import CT, MR


def images(n=3, kind=CT):
    """Slices whose slope, intercept and position all differ."""
    return [
        scanned(source_plane(i), 5 * i, kind=kind, RescaleSlope=str(i + 1), RescaleIntercept=str(-100 * i), RescaleType="HU")
        for i in range(n)
    ]


@pytest.mark.parametrize("kind", [CT, MR], ids=["CT", "MR"])
def test_a_frame_has_its_own_rescale_and_plane_and_the_header_of_the_file(tmp_path, kind):
    write_slice(tmp_path / "a", enhanced(images(kind=kind), [{"FrameAcquisitionNumber": i} for i in range(3)]))
    frames = read_frames(tmp_path / "a")
    assert [one.InstanceNumber for one in frames] == [1, 2, 3]
    assert [one.AcquisitionNumber for one in frames] == [0, 1, 2]
    assert {one.PatientID for one in frames} == {"id17"}
    for i, frame in enumerate(frames):
        plane = plane_of(frame)
        np.testing.assert_allclose(plane.position, source_plane(i).position, atol=1e-6)
        np.testing.assert_allclose(plane.orientation, OBLIQUE, atol=1e-6)
        assert plane.spacing == (1.5, 0.75)
        values = apply_rescale(frame_pixels(tmp_path / "a", i), frame)
        np.testing.assert_array_equal(values, np.full((12, 10), 5 * i * (i + 1) - 100 * i))


def test_a_classic_image_is_its_own_frame(tmp_path):
    write_slice(tmp_path / "a", images()[1])
    (frame,) = read_frames(tmp_path / "a")
    assert frame.InstanceNumber == 5
    assert frame_pixels(tmp_path / "a").shape == (12, 10)


def test_frames_without_their_functional_groups_are_refused():
    image = enhanced(images())
    image.NumberOfFrames = 4
    with pytest.raises(ValueError, match="4 frames, but 3 functional groups"):
        frames_of(image)
    del image.PerFrameFunctionalGroupsSequence
    with pytest.raises(ValueError, match="4 frames, but 0 functional groups"):
        frames_of(image)


def test_an_invalid_plane_is_unknown():
    image = images()[0]
    image.PixelSpacing, image.ImageOrientationPatient = [0, 1], [1, 0, 0, 1, 0, 0]
    plane = plane_of(image)
    assert np.isnan([*plane.spacing, *plane.orientation]).all()
    np.testing.assert_allclose(plane.position, source_plane(0).position, atol=1e-6)


def test_frames_of_a_moving_knee_are_told_apart_by_time(shared_data):
    path = shared_data / "mr_magnitude" / "dicom_knee_multiframe.dcm"
    if not path.is_file():
        pytest.skip("the enhanced MR image is not here")
    frames = read_frames(path)
    assert len(frames) == 19
    assert {plane_of(frame).spacing for frame in frames} == {(0.625, 0.625)}
    found = stacks(frames, identity_of)
    assert [len(one.images) for one in found] == [1] * 19
    assert {one.told_by for one in found} == {("TemporalPositionIdentifier",)}
