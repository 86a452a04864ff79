import numpy as np
import pytest
from ismrmrd_scans import header, readout, readouts, write
from raw import complex_noise, kspace_of, to_image

from data_prep.mri.recorded import open_raw

SIZE = (16, 9)
FIELD = (160.0, 108.0)  # mm: pixels of 10 x 12
READ, PHASE = np.array([0.0, 0.6, -0.8]), np.array([1.0, 0.0, 0.0])
SLICE = np.cross(READ, PHASE)
CENTRE = np.array([12.0, -30.0, 45.0])


def placed(k, positions, read=READ, phase=PHASE, across=SLICE, **more):
    """Lines of k-space (slices, coils, rows, columns) whose slice s has its centre at positions[s]."""
    lines = readouts(k, read_dir=tuple(read), phase_dir=tuple(phase), slice_dir=tuple(across), **more)
    for line in lines:
        line.position[:] = tuple(positions[line.idx.slice])
    return lines


def point_scan(point, sign):
    """Signal (1, 1, rows, columns) of a point at LPS coordinates, as gradients along READ and PHASE encode it.

    k-space of the exponent -2 pi i k.r (sign -1) has its image in the inverse FFT, that of +2 pi i k.r in the forward one.
    """
    kx, ky = (np.arange(n) - n // 2 for n in SIZE)
    u, v = (point - CENTRE) @ READ / FIELD[0], (point - CENTRE) @ PHASE / FIELD[1]
    return np.exp(sign * 2j * np.pi * (kx[:, None] * u + ky * v))[None, None]


@pytest.mark.parametrize(("vendor", "sign"), [("GE", -1), ("Siemens Healthineers", 1)])
@pytest.mark.parametrize("steps", [(3, -2), (-8, 4)])
def test_a_point_in_the_patient_appears_where_the_plane_says(tmp_path, vendor, sign, steps):
    point = CENTRE + steps[0] * 10 * READ + steps[1] * 12 * PHASE
    if sign > 0 and steps[0] == -8:
        point = CENTRE + 7 * 10 * READ + steps[1] * 12 * PHASE  # an even side has one pixel more on one side
    path = write(tmp_path / "a.h5", placed(point_scan(point, sign), [CENTRE]), header(SIZE, field=FIELD, vendor=vendor))
    with open_raw(path) as volume:
        image = np.abs(to_image(volume.kspace(0)))
        row, column = np.unravel_index(image.argmax(), image.shape)
        assert image.max() > 0.99 * np.sqrt(image.size)  # the whole point in one pixel
        np.testing.assert_allclose(volume.geometry(0).world(row, column), point, atol=1e-4)


def test_plane_is_that_of_dicom(tmp_path):
    path = write(tmp_path / "a.h5", placed(kspace_of(complex_noise((1, 1, *SIZE))), [CENTRE]), header(SIZE, field=FIELD))
    with open_raw(path) as volume:
        plane = volume.geometry(0)
    np.testing.assert_allclose(plane.orientation, [*PHASE, *READ], atol=1e-6)  # of increasing column, then row, index
    np.testing.assert_allclose(plane.position, CENTRE - 8 * 10 * READ - 4 * 12 * PHASE, atol=1e-4)
    assert plane.spacing == (10, 12)
    assert plane.slice_spacing == 5  # the thickness of the only slice
    assert plane.known


def test_slices_stand_in_the_order_of_their_positions(tmp_path):
    k = kspace_of(complex_noise((4, 2, *SIZE)))
    heights = [4.0, -2.0, 1.0, -5.0]  # along DICOM's normal, which is that of PHASE x READ
    normal = np.cross(PHASE, READ)
    lines = placed(k, [CENTRE + height * normal for height in heights])
    lines = [lines[i] for i in np.random.default_rng(0).permutation(len(lines))]
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE, field=FIELD, slices=4))) as volume:
        for i, number in enumerate([3, 1, 2, 0]):
            np.testing.assert_array_equal(volume.kspace(i), k[number])
            plane = volume.geometry(i)
            np.testing.assert_allclose(plane.world(8, 4), CENTRE + heights[number] * normal, atol=1e-4)
            assert plane.slice_spacing == pytest.approx(3, abs=1e-4)
        assert volume.note == ""


@pytest.mark.parametrize("positions", [np.zeros((3, 3)), [CENTRE, CENTRE + 3 * SLICE, CENTRE + 3 * SLICE]])
def test_slices_of_one_position_have_the_nominal_geometry_and_the_order_of_their_counters(tmp_path, positions):
    """All positions 0, as where a converter knows none; with them no volume could be written after its reconstruction."""
    k = kspace_of(complex_noise((3, 1, *SIZE)))
    with open_raw(write(tmp_path / "a.h5", placed(k, positions), header(SIZE, field=FIELD))) as volume:
        assert [volume.geometry(i) for i in range(3)] == [None] * 3
        assert "several slices have the same position" in volume.note
        assert "nominal geometry" in volume.note
        for i in range(3):
            np.testing.assert_array_equal(volume.kspace(i), k[i, 0])


def test_uneven_slices_have_no_single_distance(tmp_path):
    k = kspace_of(complex_noise((3, 1, *SIZE)))
    path = write(tmp_path / "a.h5", placed(k, [CENTRE + h * SLICE for h in (0, 3, 9)]), header(SIZE, field=FIELD))
    with open_raw(path) as volume:
        assert "distances between slices vary from 3 to 6 mm" in volume.note
        assert np.isnan(volume.geometry(0).slice_spacing)
        assert volume.geometry(0).known


def test_slices_of_several_directions_stay_in_the_order_of_their_counters(tmp_path):
    k = kspace_of(complex_noise((2, 1, *SIZE)))
    lines = placed(k, [CENTRE, CENTRE - SLICE])
    for line in lines[SIZE[1] :]:  # the second slice is turned in its plane
        line.read_dir[:], line.phase_dir[:] = tuple(PHASE), tuple(-READ)
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE, field=FIELD))) as volume:
        np.testing.assert_array_equal(volume.kspace(1), k[1, 0])
        np.testing.assert_allclose(volume.geometry(1).orientation, [*-READ, *PHASE], atol=1e-6)


def test_directions_that_were_not_recorded_are_unknown(tmp_path):
    k = kspace_of(complex_noise((1, 1, *SIZE)))
    with open_raw(write(tmp_path / "a.h5", readouts(k), header(SIZE))) as volume:
        assert volume.geometry(0) is None
        assert volume.note == ""


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"read": 2 * READ}, "perpendicular directions of length 1"),
        ({"read": [0.6, 0.8, 0]}, "perpendicular directions of length 1"),
        ({"phase": [0, 0, 0]}, "perpendicular directions of length 1"),
        ({"across": READ}, "slice_dir is not perpendicular"),
        ({"read": [np.nan, 0, 0]}, "not finite"),
    ],
)
def test_directions_that_are_none_are_unknown_and_said(tmp_path, change, note):
    lines = placed(kspace_of(complex_noise((2, 1, *SIZE))), [CENTRE, CENTRE + SLICE], **change)
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE, field=FIELD))) as volume:
        assert volume.geometry(0) is None
        assert volume.note.count(note) == 1


def test_a_slice_that_moves_has_no_plane(tmp_path):
    lines = placed(kspace_of(complex_noise((1, 1, *SIZE))), [CENTRE])
    lines[4].position[2] += 1
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE, field=FIELD))) as volume:
        assert volume.geometry(0) is None
        assert "changes within a slice" in volume.note


def test_noise_readouts_without_directions_do_not_matter(tmp_path):
    lines = placed(kspace_of(complex_noise((1, 1, *SIZE))), [CENTRE])
    noise = [readout(complex_noise((1, 20)), flag="NOISE_MEASUREMENT")]
    with open_raw(write(tmp_path / "a.h5", noise + lines, header(SIZE, field=FIELD))) as volume:
        np.testing.assert_allclose(volume.geometry(0).world(8, 4), CENTRE, atol=1e-4)
