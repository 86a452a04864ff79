from fractions import Fraction

import numpy as np
import pytest
from raw import complex_noise, to_image, to_kspace

from data_prep.mri.normalisation import crop_or_pad
from data_prep.mri.resample import resampled_columns, sinc_resample

GRIDS = [(6, 9), (7, 8)]
SIZES = [(4, 5), (5, 4), (10, 13), (11, 12), (3, 14), (1, 1)]  # from even and odd to even and odd, smaller and larger


def random_kspace(shape, dtype=np.complex128, seed=0):
    return complex_noise(shape, seed).astype(dtype)


def retained(n, m):
    """Pixel positions, relative to the origin n//2 and m//2, that are inside both fields of view."""
    return sorted(set(range(-(n // 2), n - n // 2)) & set(range(-(m // 2), m - m // 2)))


def dense_matrix(n, m):
    """(m, n): k' at frequency q from k at frequency p is the sum over the retained pixels t of e^{2 pi i t (p - q)}."""
    t = np.array(retained(n, m), float)[None, None]
    p = (np.arange(n) - n // 2)[None, :, None] / n
    q = (np.arange(m) - m // 2)[:, None, None] / m
    return np.exp(2j * np.pi * t * (p - q)).sum(-1) / np.sqrt(n * m)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(
    ("grid", "size"),
    [((6, 9), (4, 5)), ((7, 8), (11, 12)), ((6, 9), (3, 14)), ((640, 371), (320, 320)), ((256, 170), (320, 320))],
)
def test_delta_at_the_origin_stays_there_without_phase(grid, size, dtype):
    new = sinc_resample(np.full(grid, 1 / np.sqrt(np.prod(grid)), dtype), size)
    tolerance = 1e-5 if dtype == np.complex64 else 1e-12
    assert np.abs(new.kspace * np.sqrt(np.prod(size)) - 1).max() < tolerance
    delta = np.zeros(size)
    delta[size[0] // 2, size[1] // 2] = 1
    assert np.abs(new.image - delta).max() < tolerance
    assert new.kspace.dtype == new.image.dtype == dtype


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grid", GRIDS)
def test_equals_the_dense_sum_over_retained_pixels(grid, size):
    k = random_kspace(grid)
    expected = dense_matrix(grid[0], size[0]) @ k @ dense_matrix(grid[1], size[1]).T
    assert np.abs(sinc_resample(k, size).kspace - expected).max() < 1e-10


@pytest.mark.parametrize("grid", GRIDS)
def test_padding_keeps_the_energy_and_can_be_undone(grid):
    k = random_kspace(grid)
    padded = sinc_resample(k, (13, 16)).kspace
    assert np.linalg.norm(padded) == pytest.approx(np.linalg.norm(k), rel=1e-12)
    assert np.abs(sinc_resample(padded, grid).kspace - k).max() < 1e-12


@pytest.mark.parametrize("grid", GRIDS)
def test_cropping_removes_only_what_lies_outside_the_field_of_view(grid):
    size = (4, 5)
    x = random_kspace(grid)
    inside = crop_or_pad(crop_or_pad(x, size), grid)
    new = sinc_resample(to_kspace(x), size)
    assert np.abs(new.kspace - sinc_resample(to_kspace(inside), size).kspace).max() < 1e-12
    assert np.linalg.norm(new.kspace) == pytest.approx(np.linalg.norm(inside), rel=1e-12)
    assert np.abs(sinc_resample(to_kspace(x - inside), size).kspace).max() < 1e-12


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grid", GRIDS)
def test_image_is_the_cropped_or_padded_image(grid, size):
    k = random_kspace(grid)
    new = sinc_resample(k, size)
    assert np.abs(new.image - crop_or_pad(to_image(k), size)).max() < 1e-12
    assert np.abs(new.kspace - to_kspace(new.image)).max() < 1e-12


def test_phase_of_an_image_is_kept():
    width = 371
    x = np.broadcast_to(np.exp(0.01j * np.arange(width)), (64, width))
    new = sinc_resample(to_kspace(x).astype(np.complex64), (40, 320))
    wanted = crop_or_pad(x, (40, 320))
    assert new.image.dtype == np.complex64
    assert np.abs(np.angle(new.image * wanted.conj())).max() < 1e-5
    assert np.abs(np.angle(to_image(new.kspace.astype(np.complex128)) * wanted.conj())).max() < 1e-5


def test_batch_equals_loop():
    k, size = random_kspace((2, 3, 6, 9)), (4, 13)
    new = sinc_resample(k, size)
    assert new.kspace.shape == new.image.shape == (2, 3, *size)
    for index in np.ndindex(2, 3):
        one = sinc_resample(k[index], size)
        assert np.abs(new.kspace[index] - one.kspace).max() < 1e-13
        assert np.abs(new.image[index] - one.image).max() < 1e-13


def test_scale_of_raw_data_does_not_matter():
    k = random_kspace((12, 13), np.complex64)
    a, b = sinc_resample(k, (8, 8)).kspace, sinc_resample(k * np.float32(1e-7), (8, 8)).kspace
    assert np.abs(b / 1e-7 - a).max() < 1e-5 * np.abs(a).max()


def test_same_size_returns_a_copy_of_the_very_values():
    k = random_kspace((3, 6, 9), np.complex64)
    new = sinc_resample(k, (6, 9))
    assert np.array_equal(new.kspace, k)
    assert new.kspace.dtype == np.complex64
    assert not np.shares_memory(new.kspace, k)
    assert np.abs(new.image - to_image(k)).max() < 1e-5


@pytest.mark.parametrize("size", [(6, 9), (11, 13)])
def test_input_is_neither_modified_nor_has_to_be_writable_contiguous_or_native(size):
    k = random_kspace((6, 9))
    wanted = sinc_resample(k, size)
    for other in (
        k.copy(),
        np.asfortranarray(k),
        k.astype(">c16"),
        np.repeat(k, 2, 1)[:, ::2],
        k[::-1, ::-1].copy()[::-1, ::-1],
    ):
        before = other.copy()
        other.flags.writeable = False
        new = sinc_resample(other, size)
        assert np.array_equal(new.kspace, wanted.kspace)
        assert np.array_equal(new.image, wanted.image)
        assert new.kspace.flags.writeable
        assert new.kspace.dtype.isnative
        assert np.array_equal(other, before)


@pytest.mark.parametrize(
    ("k", "size", "message"),
    [
        (np.ones((4, 4)), (2, 2), "type float64, expected complex64 or complex128"),
        (np.ones(4, complex), (2, 2), r"shape \(4,\), expected"),
        (np.ones((0, 4), complex), (2, 2), r"shape \(0, 4\), expected"),
        (np.ones((4, 4), complex), (0, 2), r"size \(0, 2\), expected"),
    ],
)
def test_what_cannot_be_resampled_is_named(k, size, message):
    with pytest.raises(ValueError, match=message):
        sinc_resample(k, size)


@pytest.mark.parametrize("new_width", [1, 5, 8, 13, 24])
@pytest.mark.parametrize("width", [1, 7, 8, 12])
def test_columns_inside_are_those_whose_frequency_was_measured(width, new_width):
    frequency = lambda i, n: Fraction(i - n // 2, n)  # noqa: E731
    for start in range(width):
        for stop in range(start + 1, width + 1):
            low, high = frequency(start, width), frequency(stop - 1, width)
            inside = [j for j in range(new_width) if low <= frequency(j, new_width) <= high]
            if (start, stop) == (0, width):
                inside = list(range(new_width))  # a whole period
            assert list(range(*resampled_columns((start, stop), width, new_width))) == inside


@pytest.mark.parametrize("window", [(3, 3), (-1, 4), (0, 9), (5, 2)])
def test_window_outside_the_grid_is_an_error(window):
    with pytest.raises(ValueError, match="expected 0 <= start < stop <= width"):
        resampled_columns(window, 8, 6)
