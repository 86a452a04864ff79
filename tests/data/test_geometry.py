"""Planes in the patient: what a crop, a padding or another grid does to them, and the affine of NIfTI."""

import nibabel as nib
import numpy as np
import pytest

from es_medical.data.geometry import Geometry
from es_medical.data.stack import regular_grid, volume_planes

SIZES = [((8, 8), (4, 5)), ((7, 9), (10, 4)), ((5, 6), (5, 6)), ((4, 5), (9, 8)), ((640, 372), (320, 320))]


def oblique(seed: int = 0) -> Geometry:
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return Geometry((12.5, -40.25, 7.0), tuple(axes[:, :2].T.ravel()), (0.75, 1.5), 4.0)


def about_the_middle(image, size):
    """Crop or zero-pad so that index n//2 stays on index n//2, one pixel at a time."""
    out = np.zeros(size)
    for row, column in np.ndindex(*size):
        i, j = row - size[0] // 2 + image.shape[0] // 2, column - size[1] // 2 + image.shape[1] // 2
        if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
            out[row, column] = image[i, j]
    return out


@pytest.mark.parametrize(("old", "new"), SIZES[:-1])
def test_crop_or_padding_leaves_a_marked_pixel_in_its_place(old, new):
    image = np.zeros(old)
    image[old[0] // 2 - 1, old[1] // 2 + 1] = 1
    row, column = np.argwhere(about_the_middle(image, new))[0]
    plane = oblique()
    expected = plane.world(old[0] // 2 - 1, old[1] // 2 + 1)
    np.testing.assert_allclose(plane.resized(old, new).world(row, column), expected, atol=1e-12)
    assert plane.resized(old, new).spacing == plane.spacing


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_crop_and_back_is_the_same_plane(old, new):
    plane = oblique(1)
    np.testing.assert_allclose(plane.resized(old, new).resized(new, old).position, plane.position, atol=1e-9)
    np.testing.assert_allclose(plane.rescaled(old, new).rescaled(new, old).position, plane.position, atol=1e-9)


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_another_grid_has_the_same_outer_corners(old, new):
    plane = oblique(2)
    fine = plane.rescaled(old, new)
    np.testing.assert_allclose(fine.world(-0.5, -0.5), plane.world(-0.5, -0.5), atol=1e-9)
    np.testing.assert_allclose(fine.world(new[0] - 0.5, new[1] - 0.5), plane.world(old[0] - 0.5, old[1] - 0.5), atol=1e-9)


def test_half_the_pixels_double_the_spacing_and_move_the_first_centre_by_half_an_old_pixel():
    plane = Geometry((10.0, 20.0, 30.0), (0.0, 1.0, 0.0, 0.0, 0.0, -1.0), (0.5, 0.8))
    half = plane.rescaled((512, 512), (256, 256))
    assert half.spacing == (1.0, 1.6)
    np.testing.assert_allclose(half.position, (10.0, 20.0 + 0.4, 30.0 - 0.25))  # columns run along y, rows down z


def test_affine_gives_the_world_point_of_a_pixel_in_ras():
    plane = oblique(3)
    left, posterior, superior = plane.world(5, 2)
    np.testing.assert_allclose(nib.affines.apply_affine(plane.affine, (2, 5, 0)), (-left, -posterior, superior), atol=1e-12)
    step = nib.affines.apply_affine(plane.affine, (0, 0, 1)) - nib.affines.apply_affine(plane.affine, (0, 0, 0))
    np.testing.assert_allclose(step, plane.normal * 4.0 * (-1, -1, 1), atol=1e-12)
    np.testing.assert_allclose(nib.affines.voxel_sizes(plane.affine), (1.5, 0.75, 4.0))


def test_normal_is_right_handed_and_perpendicular():
    plane = oblique(4)
    column, row = np.reshape(plane.orientation, (2, 3))
    assert np.linalg.det([column, row, plane.normal]) == pytest.approx(1)


def test_nominal_plane_is_axial_supine_head_first():
    plane = Geometry.nominal((4, 6), (2.0, np.nan), 5.0, index=2)
    assert nib.aff2axcodes(plane.affine) == ("L", "P", "S")
    np.testing.assert_array_equal(plane.world(2, 3), (0, 0, 10))  # index n//2 is the origin
    assert plane.spacing == (2.0, 1.0)
    assert not plane.known


@pytest.mark.parametrize("change", [{"position": (np.nan,) * 3}, {"orientation": (np.nan,) * 6}, {"spacing": (1.0, np.nan)}])
def test_a_plane_with_an_unknown_part_is_not_known(change):
    plane = oblique()
    parts = {name: getattr(plane, name) for name in ("position", "orientation", "spacing", "slice_spacing")}
    assert Geometry(**parts).known
    assert not Geometry(**parts | change).known


@pytest.mark.parametrize("name", ["resized", "rescaled"])
def test_a_nominal_plane_stays_nominal(name):
    assert getattr(Geometry.nominal((4, 4)), name)((4, 4), (8, 8)).assumed


def test_wrong_numbers_are_refused_with_the_values():
    with pytest.raises(ValueError, match=r"spacing.*\[0\.0, 1\.0.*positive"):
        Geometry(spacing=(0.0, 1.0))
    with pytest.raises(ValueError, match=r"orientation.*perpendicular"):
        Geometry(orientation=(1, 0, 0, 1, 0, 0))
    with pytest.raises(ValueError, match="position.*2 numbers, expected 3"):
        Geometry(position=(1, 2))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Geometry((0, 0, 5), (0, 1, 0, -1, 0, 0), (1, 1), 5), "differ in orientation or pixel spacing"),
        (Geometry((0, 0, 5), (1, 0, 0, 0, 1, 0), (1, 2), 5), "differ in orientation or pixel spacing"),
        (Geometry((0, 0, 1e-4), (1, 0, 0, 0, 1, 0), (1, 1), 5), "two slices of one volume are 0.0001 mm apart"),
    ],
)
def test_slices_that_are_no_volume_are_refused(other, message):
    planes, indices = (Geometry((0, 0, 0), (1, 0, 0, 0, 1, 0), (1, 1), 5), other), np.arange(2)
    for make in (regular_grid, lambda *given: volume_planes(*given, (4, 4))):
        with pytest.raises(ValueError, match=message):
            make(planes, indices)
