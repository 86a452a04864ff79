import numpy as np
import pytest
import torch

from es_medical.output.pictures import panel_values, picture, windowed


def test_log_magnitude_of_small_k_space_is_spread_over_its_window():
    kspace = 1e-5 * np.exp(np.linspace(-6, 0, 64).reshape(8, 8)) * np.exp(0.3j)
    image = windowed(np.log10(np.abs(kspace)), (-8, -5))
    assert image.dtype == np.uint8
    assert image.max() == 255
    assert image.min() < 60
    assert len(np.unique(image)) > 50


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.float64])
def test_hounsfield_units_keep_their_sign(dtype):
    hu = np.array([[-1000, -160], [40, 240], [3000, 240]], dtype)
    assert windowed(hu, (-160, 240)).tolist() == [[0, 0], [128, 255], [255, 255]]


def test_the_same_value_has_the_same_gray_in_every_image():
    small, large = np.full((4, 4), 0.5), np.linspace(0.5, 100, 16).reshape(4, 4)
    assert windowed(small, (0, 1))[0, 0] == windowed(large, (0, 1))[0, 0] == 128


def test_complex_two_channel_single_channel_and_tensor_images_are_the_same_picture():
    real, imaginary = np.random.default_rng(0).random((2, 6, 5))
    wanted = windowed(np.hypot(real, imaginary), (0, 1.5))
    stacked = np.stack([real, imaginary])
    for image in (real + 1j * imaginary, stacked, torch.from_numpy(stacked).requires_grad_(), (real + 1j * imaginary)[None]):
        np.testing.assert_array_equal(windowed(image, (0, 1.5)), wanted)
    assert panel_values(torch.zeros(1, 6, 5, dtype=torch.bool)).shape == (6, 5)


def test_nan_is_black_and_infinity_an_end_of_the_window():
    assert windowed([[np.nan, np.inf, -np.inf]], (0, 1)).tolist() == [[0, 255, 0]]


@pytest.mark.parametrize("window", [(1, 1), (1, 0), (0, float("inf")), (float("nan"), 1)])
def test_an_empty_window_is_refused(window):
    with pytest.raises(ValueError, match="window"):
        windowed(np.zeros((2, 2)), window)


@pytest.mark.parametrize("shape", [(4,), (4, 4, 4), (4, 4, 3), (1, 1, 4, 4)])
def test_another_shape_is_refused_by_name(shape):
    with pytest.raises(ValueError, match=str(shape).replace("(", r"\(").replace(")", r"\)")):
        windowed(np.zeros(shape), (0, 1))


def test_panels_stand_side_by_side():
    zf, recon, spread, target = (np.full((16, 10), value) for value in (0.0, 0.5, 0.05, 1.0))
    image = picture(zf, recon, spread, target, window=(0, 1), error_max=0.1, labels=False, smallest=16)
    assert (image.shape, image.dtype) == ((16, 5 * 10 + 4 * 2), np.uint8)
    assert [int(image[0, 12 * i]) for i in range(5)] == [0, 128, 128, 255, 255]  # the error 0.5 is above 0.1
    assert [int(image[0, 12 * i - 1]) for i in range(1, 5)] == [255] * 4


def test_without_ground_truth_three_panels_remain():
    image = picture(*np.zeros((3, 16, 10)), window=(0, 1), error_max=1, labels=False, smallest=16)
    assert image.shape == (16, 34)


def test_small_images_are_enlarged_and_labelled():
    plain = picture(*np.zeros((3, 32, 32)), window=(0, 1), error_max=1, labels=False)
    labelled = picture(*np.zeros((3, 32, 32)), window=(0, 1), error_max=1)
    assert plain.shape == (128, 3 * 128 + 4)
    assert labelled.shape == (142, plain.shape[1])
    assert labelled[:14, :128].max() > 0


def test_panels_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match=r"one size.*\(4, 4\).*\(4, 5\)"):
        picture(np.zeros((4, 4)), np.zeros((4, 5)), np.zeros((4, 4)), window=(0, 1), error_max=1, smallest=1)
