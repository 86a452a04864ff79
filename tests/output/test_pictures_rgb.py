"""Pictures of RGB images: in colour, their spread and error in gray, beside gray panels and in MLflow's files."""

import numpy as np
import pytest
import torch
from PIL import Image

from es_medical.output.pictures import Panel, deviation, panel_values, picture, side_by_side, windowed
from es_medical.tracking.artifacts import write_image


def rgb(height=16, width=10, seed=0):
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


def test_channels_go_to_the_end_and_through_the_window():
    image = rgb()
    found = windowed(image, (0.25, 0.75))
    assert (found.shape, found.dtype) == ((16, 10, 3), np.uint8)
    for channel in range(3):
        np.testing.assert_array_equal(found[..., channel], windowed(image[channel], (0.25, 0.75)))


def test_red_is_red():
    red = torch.zeros(3, 2, 2)
    red[0] = 1
    assert windowed(red, (0, 1))[0, 0].tolist() == [255, 0, 0]


def test_gray_image_in_three_channels_has_the_gray_of_one():
    gray = rgb()[:1]
    found = windowed(gray.expand(3, -1, -1), (0, 1))
    np.testing.assert_array_equal(found, windowed(gray, (0, 1))[..., None].repeat(3, -1))


def test_deviation_is_the_root_mean_square_over_channels():
    values = torch.tensor([3.0, -4.0, 5.0]).view(3, 1, 1).expand(3, 2, 4)
    np.testing.assert_allclose(deviation(values), np.full((2, 4), np.sqrt(50 / 3)))
    np.testing.assert_allclose(deviation(-values[:1]), np.full((2, 4), 3.0))
    np.testing.assert_allclose(deviation(values[:2]), np.full((2, 4), 5.0))  # real and imaginary part: the magnitude


def test_picture_of_rgb_images_is_in_colour_but_for_spread_and_error():
    baseline, reconstruction, spread, target = (rgb(seed=i) for i in range(4))
    image = picture(baseline, reconstruction, spread / 10, target, window=(0, 1), error_max=0.8, labels=False, smallest=16)
    assert (image.shape, image.dtype) == ((16, 5 * 10 + 4 * 2, 3), np.uint8)
    panels = [image[:, 12 * i : 12 * i + 10] for i in range(5)]
    for i, one in zip((0, 1, 3), (baseline, reconstruction, target), strict=True):
        np.testing.assert_array_equal(panels[i], windowed(one, (0, 1)))
    for i, one in zip((2, 4), (spread / 10, reconstruction - target), strict=True):
        size = one.double().square().mean(0).sqrt()
        np.testing.assert_array_equal(panels[i], windowed(size, (0, 0.8))[..., None].repeat(3, -1))
    assert (image[:, 10:12] == 255).all()


def test_given_error_is_shown_in_gray():
    error = -rgb(seed=5)
    image = picture(*[rgb()] * 3, error=error, window=(0, 1), error_max=1, labels=False, smallest=16)
    np.testing.assert_array_equal(image[:, 36:, 0], windowed(deviation(error), (0, 1)))


def test_gray_panel_stands_beside_rgb_panels_under_the_same_labels():
    gray = rgb()[:1]
    panels = [Panel("incomplete", gray, (0, 1)), Panel("recon", rgb(seed=1), (0, 1))]
    both = side_by_side(panels, smallest=48)
    alone = side_by_side(panels[:1], smallest=48)
    assert both.shape == (14 + 48, 2 * 30 + 2, 3)
    assert alone.shape == (14 + 48, 30)
    np.testing.assert_array_equal(both[:, :30], alone[..., None].repeat(3, -1))
    assert both[:14, 32:].max() > 0


def test_small_rgb_images_are_enlarged_pixel_by_pixel():
    image = side_by_side([Panel("", rgb(), (0, 1))], labels=False, smallest=32)
    assert image.shape == (32, 20, 3)
    np.testing.assert_array_equal(image[::2, ::2], windowed(rgb(), (0, 1)))
    np.testing.assert_array_equal(image[1::2, 1::2], image[::2, ::2])


def test_complex_values_have_no_colours():
    with pytest.raises(ValueError, match=r"real \(3, H, W\), got \(3, 4, 4\)"):
        panel_values(np.zeros((3, 4, 4), np.complex64))


def test_reconstruction_and_target_of_another_kind_are_refused():
    with pytest.raises(ValueError, match=r"one size and kind, got \(16, 10, 3\) and \(16, 10\)"):
        picture(rgb(), rgb(), rgb(), rgb()[:1], window=(0, 1), error_max=1)


def test_nan_of_one_channel_is_dark_in_that_channel_alone():
    image = torch.ones(3, 2, 2)
    image[1, 0, 0] = torch.nan
    assert windowed(image, (0, 1))[0, 0].tolist() == [255, 0, 255]


def test_mlflow_gets_the_colours_of_the_picture(tmp_path):
    image = picture(*[rgb(64, 64)] * 3, window=(0, 1), error_max=1)
    write_image(tmp_path / "images", image, "recon/case0", 3, 12345)
    (png,) = (tmp_path / "images").glob("*.png")
    with Image.open(png) as whole:
        np.testing.assert_array_equal(np.asarray(whole), image)
    (webp,) = (tmp_path / "images").glob("*.webp")
    with Image.open(webp) as small:
        assert small.mode == "RGB"
