import numpy as np
import pytest
import torch

from data_prep.ct.slice import OFFSET, SCALE, area_resize, prepare, square_field
from data_prep.run.manifest import PrepError
from es_medical.data.geometry import Geometry

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def plane(spacing):
    return Geometry((-10.0, -20.0, 30.0), AXIAL, spacing, 2.5)


@pytest.mark.parametrize(
    ("old", "new"), [((512, 512), (256, 256)), ((96, 64), (32, 32)), ((511, 300), (64, 256)), ((5, 7), (8, 16))]
)
def test_resize_keeps_the_mean(old, new):
    x = torch.rand(old, dtype=torch.float32)
    assert area_resize(x, new).shape == new
    torch.testing.assert_close(area_resize(x, new).mean(), x.mean(), rtol=1e-5, atol=1e-6)


def test_resize_by_whole_numbers_is_area_interpolation():
    x = torch.rand(96, 64)
    wanted = torch.nn.functional.interpolate(x[None, None], (32, 16), mode="area")[0, 0]
    torch.testing.assert_close(area_resize(x, (32, 16)), wanted)


def test_resize_of_a_ramp_is_the_ramp_of_the_new_centres():
    old, new = 511, 64
    ramp = (torch.arange(old) + 0.5) / old
    wanted = (torch.arange(new) + 0.5) / new
    torch.testing.assert_close(area_resize(ramp.expand(4, old), (4, new))[0], wanted, rtol=1e-4, atol=1e-5)


def test_values_are_clipped_before_they_are_averaged_and_come_back_as_hounsfield_units():
    hu = np.full((4, 4), 40, np.float32)
    hu[0, 0] = 5000
    image = prepare(hu, plane((1, 1)), 2).image * SCALE + OFFSET
    torch.testing.assert_close(image[0], torch.tensor([[(3 * 40 + 1000) / 4, 40], [40, 40]]))


def test_unequal_sides_become_a_square_field_without_distortion():
    hu = np.full((64, 80), -1000, np.float32)
    hu[16:48, 24:56] = 0  # 16 mm x 32 mm
    image, place, _ = prepare(hu, plane((0.5, 1.0)), 256)
    assert place.spacing == (80 / 256, 80 / 256)
    rows, columns = (image[0] > 0.25).any(1).sum(), (image[0] > 0.25).any(0).sum()
    assert (int(rows), int(columns)) == (round(16 * 256 / 80) + 1, round(32 * 256 / 80))
    assert float(image[0, 0].max()) == 0  # padded with air


@pytest.mark.parametrize(
    ("size", "spacing", "new"), [((64, 80), (0.5, 1.0), 256), ((512, 512), (0.7, 0.7), 256), ((60, 41), (1, 1), 16)]
)
def test_mark_keeps_its_place_in_the_patient(size, spacing, new):
    row, column = size[0] // 3, size[1] // 2
    rows, columns = (np.arange(n) - center for n, center in zip(size, (row, column), strict=True))
    mark = np.exp(-((rows[:, None] * spacing[0]) ** 2 + (columns * spacing[1]) ** 2) / 2 / 2**2)
    image, place, _ = prepare((2000 * mark - 1000).astype(np.float32), plane(spacing), new)
    weights = image[0].double().numpy() / float(image.sum())
    center = [float((weights.sum(1 - axis) * np.arange(new)).sum()) for axis in (0, 1)]
    np.testing.assert_allclose(place.world(*center), plane(spacing).world(row, column), atol=0.02 * place.spacing[0])


def test_unknown_spacing_counts_as_square_pixels():
    assert square_field((10, 30), (np.nan, np.nan)) == (30, 30)
    assert prepare(np.zeros((10, 30), np.float32), Geometry(), 16).image.shape == (1, 16, 16)


@pytest.mark.parametrize("spacing", [(1e-5, 1.0), (1.0, 400.0)])
def test_pixels_that_long_are_refused_before_the_field_grows(spacing):
    with pytest.raises(PrepError, match="mm: expected sides that differ by a factor of 20"):
        prepare(np.zeros((32, 32), np.float32), plane(spacing), 16)


def test_pixels_with_values_above_the_window_are_counted():
    """S12: in the pixels that are stored, as far as an implant reaches into them."""
    hu = np.zeros((32, 32), np.float32)
    hu[3:6, 8:10] = 3000
    assert prepare(hu, plane((1, 1)), 16).clipped == 2
    assert prepare(hu.clip(None, 1000), plane((1, 1)), 16).clipped == 0
