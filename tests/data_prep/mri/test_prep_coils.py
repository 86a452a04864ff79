import sys
import warnings

import h5py
import numpy as np
import pytest
from raw import complex_noise, kspace_of

from data_prep.mr_images.receive import coil_maps, smooth_phase
from data_prep.mri import coils
from data_prep.mri.resample import sinc_resample
from data_prep.run.manifest import PrepError

sigpy = pytest.importorskip("sigpy", reason="sensitivity maps need the extra `coils`")
SIZE = (48, 40)
SIGMA = 0.003
CENTER = slice(18, 30), slice(14, 26)  # the 12 rows and columns about index n // 2


def image_of(k):
    return sinc_resample(k, k.shape[-2:]).image


def disc(size):
    """A head of 1 with an off-centre hole of 0.3, complex."""
    u, v = (np.mgrid[: size[0], : size[1]] - np.array(size)[:, None, None] // 2) / (0.4 * np.array(size))[:, None, None]
    x = (u**2 + v**2 < 1) - 0.7 * ((u - 0.3) ** 2 + (v + 0.2) ** 2 < 0.1)
    phase = smooth_phase(max(size), np.random.default_rng(3))[: size[0], : size[1]]
    return x * np.exp(1j * phase)


def noisy(x, sigma, seed=1):
    return (kspace_of(x) + sigma * complex_noise(x.shape, seed)).astype(np.complex64)


@pytest.fixture(scope="module")
def scan():
    """Image, true maps and noisy k-space of eight coils."""
    x, maps = disc(SIZE), coil_maps(8, SIZE, 0.02, np.random.default_rng(0))
    return x, maps, noisy(maps * x, SIGMA)


def residual(maps, images, inside):
    """What of the coil images no multiple of the maps explains, relative."""
    rest = images - maps * coils.combine(images, maps)
    return np.linalg.norm(rest[:, inside]) / np.linalg.norm(images[:, inside])


@pytest.mark.parametrize(("n_center", "bound"), [(8, 0.02), (16, 0.01), (40, 0.01)])
def test_maps_explain_the_images_of_all_coils(scan, n_center, bound):
    x, true, k = scan
    maps = coils.sensitivity_maps(k, n_center, SIGMA)
    assert maps.shape == k.shape
    assert maps.dtype == np.complex64
    inside = np.abs(x) > 0
    assert residual(maps, true * x, inside) < bound
    combined = coils.combine(true * x, maps)
    assert np.allclose(np.abs(combined)[inside], np.abs(x)[inside], rtol=5 * bound)


@pytest.mark.parametrize("sigma", [0.05, 0.15])
def test_noise_that_dominates_needs_its_level_and_no_more(scan, sigma):
    x, true, _ = scan
    k, inside = noisy(true * x, sigma, 2), np.abs(x) > 0
    known = residual(coils.sensitivity_maps(k, 24, sigma), true * x, inside)
    assert known < sigma
    assert known < 0.5 * residual(coils.sensitivity_maps(k, 24), true * x, inside)


def test_maps_are_of_norm_one_on_a_support_that_holds_the_object_and_zero_outside(scan):
    x, _, k = scan
    norm = (np.abs(coils.sensitivity_maps(k, 16)) ** 2).sum(0)
    support = norm > 0
    assert np.allclose(norm[support], 1, atol=1e-5)
    assert support[np.abs(x) > 0].all()
    assert not support.all()


def test_nothing_outside_the_central_block_enters(scan):
    _, _, k = scan
    other = np.full_like(k, np.nan)
    rows, block = CENTER
    other[:, :, block] = 1e3  # the columns' largest value sets the scale alone
    other[:, rows, block] = k[:, rows, block]
    assert np.allclose(coils.sensitivity_maps(other, 12), coils.sensitivity_maps(k, 12), atol=1e-4)
    undersampled = np.zeros_like(k)
    undersampled[:, :, block] = k[:, :, block]
    assert (coils.sensitivity_maps(undersampled, 12) == coils.sensitivity_maps(k, 12)).all()


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_maps_do_not_depend_on_the_scale(scan, scale):
    _, _, k = scan
    for sigma in (None, SIGMA):
        maps = coils.sensitivity_maps(k, 12, sigma)
        scaled = coils.sensitivity_maps(k * np.complex64(scale), 12, sigma and sigma * scale)
        assert np.abs(maps - scaled).max() < 1e-4


def test_same_kspace_same_maps_and_no_global_randomness(scan):
    _, _, k = scan
    np.random.seed(5)  # noqa: NPY002
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    first, copy = coils.sensitivity_maps(k, 12), k.copy()
    assert (first == coils.sensitivity_maps(k, 12)).all()
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    assert (k == copy).all()


def test_a_phase_common_to_all_coils_moves_to_neither_maps_nor_combination(scan):
    _, _, k = scan
    turned = (k * np.exp(2.5j)).astype(np.complex64)
    maps = coils.sensitivity_maps(k, 16)
    assert (
        np.abs(coils.combine(image_of(turned), coils.sensitivity_maps(turned, 16)) - coils.combine(image_of(k), maps)).max()
        < 1e-3
    )


def test_phase_of_the_maps_is_smooth_inside_the_object(scan):
    x, _, k = scan
    maps = coils.sensitivity_maps(k, 16)
    inside = np.abs(x) > 0
    pairs = inside[1:] & inside[:-1]
    step = np.sqrt((np.abs(maps[:, 1:] - maps[:, :-1]) ** 2).sum(0))[pairs]
    assert step.max() < 0.3  # a jump of the phase by pi would be 2


def test_maps_follow_the_order_of_the_coils(scan):
    (_, _, k), order = scan, [3, 0, 1, 2, 7, 6, 5, 4]
    assert np.abs(coils.sensitivity_maps(k[order], 16) - coils.sensitivity_maps(k, 16)[order]).max() < 1e-3


def test_maps_of_large_images_equal_those_without_the_coarse_grid(monkeypatch):
    size = (130, 101)
    x = disc(size)
    k = kspace_of(coil_maps(4, size, 0.0, np.random.default_rng(1)) * x)
    fast = coils.sensitivity_maps(k, 16)
    monkeypatch.setattr(coils, "COARSE", 1000)
    exact = coils.sensitivity_maps(k, 16)
    inside = np.abs(x) > 0
    assert np.abs(fast - exact)[:, inside].max() < 0.01
    assert residual(fast, image_of(k), inside) < 1.02 * residual(exact, image_of(k), inside)


def test_a_single_coil_and_a_dead_coil(scan):
    x, _, k = scan
    inside = np.abs(x) > 0
    one = coils.sensitivity_maps(k[:1], 16)
    assert np.allclose(np.abs(one[0])[inside], 1, atol=1e-5)
    dead = k.copy()
    dead[0] = 0
    maps = coils.sensitivity_maps(dead, 16)
    assert np.abs(maps[0]).max() < 1e-5
    assert np.isfinite(maps).all()


@pytest.mark.parametrize(("shape", "n_center"), [((8, 32, 32), 5), ((8, 5, 32), 12)])
def test_too_small_a_centre_is_refused_with_both_numbers(shape, n_center):
    with pytest.raises(PrepError, match=rf"centre of {n_center} columns and {shape[1]} rows .* at least 6"):
        coils.sensitivity_maps(np.ones(shape, np.complex64), n_center)


def test_zero_and_bad_kspace_are_refused(scan):
    _, _, k = scan
    with pytest.raises(PrepError, match="the 12 central columns of kspace are zero"):
        coils.sensitivity_maps(np.zeros_like(k), 12)
    edge = np.zeros_like(k)
    edge[:, 0] = 1
    with pytest.raises(PrepError, match="the 12 x 12 samples in the centre of kspace are zero"):
        coils.sensitivity_maps(edge, 12, SIGMA)
    bad = k.copy()
    bad[2, 20, 20] = np.nan
    with pytest.raises(PrepError, match="not finite"):
        coils.sensitivity_maps(bad, 12)
    with pytest.raises(PrepError, match="41 central columns of 40"):
        coils.sensitivity_maps(k, 41)


def test_missing_sigpy_names_the_extra(scan, monkeypatch):
    monkeypatch.setitem(sys.modules, "sigpy.mri.app", None)
    with pytest.raises(PrepError, match=r"pip install 'es_medical\[coils\]'"):
        coils.sensitivity_maps(scan[2], 12)


@pytest.mark.parametrize("n", [1, 7])
def test_compression_has_orthonormal_rows_and_keeps_the_most_energy(scan, n):
    _, _, k = scan
    matrix = coils.compression_matrix(k, n, 12)
    assert matrix.shape == (n, 8)
    assert np.allclose(matrix @ matrix.conj().T, np.eye(n), atol=1e-6)
    block = k[:, :, CENTER[1]].reshape(8, -1)
    values = np.linalg.svd(block.astype(complex), compute_uv=False)
    energy = np.linalg.norm(coils.apply(matrix, k)[:, :, CENTER[1]]) ** 2
    assert energy == pytest.approx((values[:n] ** 2).sum(), rel=1e-5)  # Eckart-Young: no n channels keep more


def test_compression_reads_the_centre_alone_and_not_its_scale(scan):
    _, _, k = scan
    other = k.copy()
    other[:, :, :10] = 7
    matrix = coils.compression_matrix(k, 4, 12)
    assert (coils.compression_matrix(other, 4, 12) == matrix).all()
    assert np.allclose(coils.compression_matrix(k * np.complex64(1e-5), 4, 12), matrix, atol=1e-4)


def test_as_many_coils_as_there_are_stay_as_they_are_and_none_is_refused(scan):
    _, _, k = scan
    for n in (8, 20):
        assert (coils.apply(coils.compression_matrix(k, n, 12), k) == k).all()
    with pytest.raises(PrepError, match="0 virtual coils"):
        coils.compression_matrix(scan[2], 0, 12)


def test_apply_keeps_the_precision_and_commutes_with_the_fft(scan):
    _, _, k = scan
    matrix = coils.compression_matrix(k, 3, 12).astype(np.complex128)
    mixed = coils.apply(matrix, k)
    assert mixed.dtype == np.complex64
    assert np.allclose(image_of(mixed), coils.apply(matrix, image_of(k)), atol=1e-5)


def test_few_virtual_coils_give_the_same_combination(scan):
    x, true, k = scan
    matrix = coils.compression_matrix(k, 5, 16)
    maps = coils.sensitivity_maps(coils.apply(matrix, k), 16)
    combined = coils.combine(coils.apply(matrix, true * x), maps)
    inside = np.abs(x) > 0
    assert np.linalg.norm(np.abs(combined)[inside] - np.abs(x)[inside]) < 0.05 * np.linalg.norm(x)


def test_combination_of_exact_maps_is_the_image(scan):
    x, true, _ = scan
    assert np.allclose(coils.combine(true * x, true), x)
    assert np.allclose(coils.rss(true * x), np.abs(x))


@pytest.mark.parametrize("n_center", [10, 24])
def test_real_eight_coil_brain(shared_data, n_center):
    with h5py.File(shared_data / "kspace" / "fastmri_layout" / "multicoil_brain.h5") as file:
        k, target = file["kspace"][0], file["reconstruction_rss"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = coils.sensitivity_maps(k, n_center)
    images = image_of(k)
    head = target > 0.1 * target.max()
    assert (np.abs(maps).sum(0) > 0)[head].mean() > 0.99
    difference = np.abs(np.abs(coils.combine(images, maps)) - target)[head] / target[head]
    assert np.median(difference) < 0.02
    noise = images[:, :20, :20].real.std()  # air; of 8 coils' noise, combination removes 7 / 8
    expected = noise * np.sqrt(2 * 7 * head.sum()) / np.linalg.norm(images[:, head])
    assert residual(maps, images, head) < 1.1 * expected
