import numpy as np
import pytest
from raw import complex_noise, to_image, to_kspace

from data_prep.demo.brain import axial_slices, template_path
from data_prep.mri.noise import estimate_sigma, noise_covariance, whitening_matrix
from data_prep.mri.normalisation import crop_or_pad
from data_prep.mri.resample import resampled_sigma, sinc_resample
from data_prep.run.manifest import PrepError

GRIDS = [(64, 48), (256, 170), (640, 368)]
SIGMA = 0.01


def phantom(size):
    """Disc with a soft rim and a blob, with a smooth phase; air in the corners."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    u, v = rows / size[0] - 0.5, columns / size[1] - 0.5
    disc = 1 / (1 + np.exp(40 * (np.hypot(u / 0.36, v / 0.3) - 1)))
    return (disc + 0.5 * np.exp(-((u + 0.1) ** 2 + (v - 0.1) ** 2) / 0.01)) * np.exp(1j * (1 + 6 * u - 3 * v + 8 * u * v))


def brain(size, _cache={}):  # noqa: B006
    """Axial slice of the template, its maximum 1, with air around it."""
    side = min(size[0] if size[0] < 640 else 320, round(1.18 * size[1]))
    if side not in _cache:
        slices, _ = axial_slices(template_path(), side)
        _cache[side] = slices[len(slices) // 2] / slices.max()
    return crop_or_pad(_cache[side].astype(complex), size)


def measured(x, sigma, seed=0):
    return (to_kspace(x) + sigma * complex_noise(x.shape, seed)).astype(np.complex64)


def ratios(x, sigma, n):
    """Estimates over sigma, and how many of them are called reliable."""
    estimates = [estimate_sigma(measured(x, sigma, seed)) for seed in range(n)]
    return np.array([e.sigma / sigma for e in estimates]), sum(e.reliable for e in estimates)


@pytest.mark.parametrize("sigma", [1e-3, 1e-1])
@pytest.mark.parametrize("image", [phantom, brain])
@pytest.mark.parametrize("size", GRIDS)
def test_estimate_is_within_ten_percent_of_the_known_noise(size, image, sigma):
    """The standard error is about 4 % on the smallest grid and 2.5 % at most on the others: at least 9 of 10 within 10 %."""
    n = 30 if size[0] < 200 else 10
    found, reliable = ratios(image(size), sigma, n)
    assert np.mean(np.abs(found - 1) < 0.1) >= 0.9
    assert abs(found.mean() - 1) < 0.05
    assert found.std() < 0.06
    if sigma >= 1e-2:  # below, the template's own samples at the edge count, and are reported
        assert reliable >= 0.9 * n


def test_noise_alone_is_found_without_bias():
    found = np.array([estimate_sigma(complex_noise((96, 96), seed)).sigma for seed in range(100)])
    assert found.mean() == pytest.approx(1, abs=0.01)
    assert found.std() < 0.03


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_estimate_scales_with_the_data(scale):
    k = measured(brain((96, 96)), SIGMA)
    one, other = estimate_sigma(k), estimate_sigma(k * np.float32(scale))
    assert other.sigma == pytest.approx(scale * one.sigma, rel=1e-5)
    assert other[1:3] == one[1:3]


def test_signal_at_the_edge_without_background_is_reported_with_an_upper_bound():
    found = estimate_sigma(measured(crop_or_pad(brain((200, 200)), (64, 48)), SIGMA / 10))
    assert not found.reliable
    assert "signal at the edge" in found.note
    assert "give --sigma" in found.note
    assert found.sigma > SIGMA / 10


def test_object_that_fills_the_field_of_view_leaves_the_edge_of_kspace():
    found = estimate_sigma(measured(crop_or_pad(brain((200, 200)), (64, 48)), 0.2))
    assert found.background > 1.5 * found.sigma
    assert found.reliable
    assert found.sigma == pytest.approx(0.2, rel=0.1)


def test_masked_image_is_reported():
    x = phantom((96, 96))
    noisy = to_image(measured(x, SIGMA)) * (np.abs(x) > 0.01)
    found = estimate_sigma(to_kspace(noisy))
    assert not found.reliable
    assert "empty: free of noise, or masked" in found.note


def test_filtered_kspace_is_reported():
    k = measured(phantom((96, 96)), SIGMA) * np.outer(np.hamming(96), np.hamming(96))
    found = estimate_sigma(k)
    assert found.periphery < 0.2 * SIGMA
    assert not found.reliable
    assert "as high as the edge of k-space" in found.note


def test_receive_filter_over_the_readout_leaves_the_edge_of_kspace():
    x = to_image(measured(brain((640, 368)), SIGMA))
    roll_off = np.clip((320 - np.abs(np.arange(640) - 320)) / 32, 0, 1)[:, None]
    found = estimate_sigma(to_kspace(x * roll_off))
    assert found.background < 0.85 * SIGMA
    assert found.reliable
    assert found.sigma == pytest.approx(SIGMA, rel=0.1)


def test_padding_outside_the_window_is_not_looked_at():
    k = measured(brain((640, 372)), SIGMA)
    window = ((0, 640), (20, 352))
    for outside in (0, 1e-3, 1e3):
        k[:, :20] *= outside
        k[:, 352:] *= outside
        assert estimate_sigma(k, window).sigma == pytest.approx(SIGMA, rel=0.1)


def test_exact_zeros_are_not_samples():
    k = measured(brain((256, 256)), SIGMA)
    rows, columns = np.mgrid[-1:1:256j, -1:1:256j]
    ellipse, padded, lines = k * (rows**2 + columns**2 < 1), k.copy(), k.copy()
    padded[:, :30] = padded[:, 230:] = 0
    lines[:, np.arange(256) % 4 > 0] = 0
    for z in (ellipse, padded, lines):
        found = estimate_sigma(z)
        assert found.reliable
        assert found.sigma == pytest.approx(SIGMA, rel=0.1)
    assert np.isnan(estimate_sigma(lines).background)


def test_a_few_spikes_do_not_move_the_edge_of_kspace():
    k = measured(phantom((256, 170)), SIGMA)
    rng = np.random.default_rng(0)
    k[rng.integers(0, 256, 300), rng.integers(0, 170, 300)] = 1e4 * SIGMA
    assert estimate_sigma(k).sigma == pytest.approx(SIGMA, rel=0.1)


def test_sigma_of_several_coils_is_their_root_mean_square():
    levels = np.array([1.0, 2.0, 3.0, 4.0])
    k = complex_noise((4, 96, 96)) * levels[:, None, None]
    assert estimate_sigma(k).sigma == pytest.approx(np.sqrt(np.mean(levels**2)), rel=0.05)
    assert estimate_sigma(k[:1]).sigma == estimate_sigma(k[0]).sigma


@pytest.mark.parametrize("size", GRIDS)
def test_kspace_without_noise_gets_what_is_found(size):
    found = estimate_sigma(to_kspace(phantom(size)).astype(np.complex64))
    assert np.isfinite(found.sigma)
    assert found.sigma <= 1.01 * max(found.periphery, found.background)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (2, 3, 4, 4)])
def test_too_few_samples_are_reported(shape):
    found = estimate_sigma(complex_noise(shape))
    assert not found.reliable
    assert f"only {found.n} samples" in found.note


def test_zeros_are_no_noise_and_no_estimate():
    found = estimate_sigma(np.zeros((32, 32), complex))
    assert (found.sigma, found.reliable, found.n) == (0, False, 0)


def test_input_is_not_modified():
    k = complex_noise((2, 64, 48))
    before = k.copy()
    k.flags.writeable = False
    estimate_sigma(k)
    noise_covariance(k)
    assert np.array_equal(k, before)


def test_real_kspace_of_a_masked_image_and_of_an_undersampled_one(shared_data):
    """Pictures of both: a floor that is flat in the corners; Poisson-disc samples in an ellipse with signal everywhere."""
    scipy_io, h5py = pytest.importorskip("scipy.io"), pytest.importorskip("h5py")
    k = scipy_io.loadmat(shared_data / "kspace" / "wastling_brain_kspace.mat")["kspace_data"]
    floor = np.sqrt(np.mean([np.abs(k[i : i + 32, j : j + 32]) ** 2 for i in (0, 480) for j in (0, 480)]) / 2)
    assert estimate_sigma(k).periphery == pytest.approx(floor, rel=0.1)
    signs = (-1.0) ** np.add.outer(np.arange(512), np.arange(512))  # moves its image to the centre, as the file's note says
    assert not estimate_sigma(k * signs).reliable
    with h5py.File(shared_data / "kspace" / "fastmri_layout" / "multicoil_brain.h5") as file:
        found = estimate_sigma(file["kspace"][0])
    assert not found.reliable
    assert np.isnan(found.background)


@pytest.mark.parametrize(
    ("old", "new"),
    [((24, 20), (16, 11)), ((24, 20), (32, 40)), ((23, 20), (40, 9))],
)
def test_resampled_sigma_is_that_of_resampled_noise(old, new):
    noise = sinc_resample(complex_noise((400, *old)), new).kspace
    level = np.sqrt(np.mean(np.abs(noise) ** 2) / 2)
    assert level == pytest.approx(resampled_sigma(1.0, old, new), rel=0.01)


def mixing(coils, seed=0):
    return complex_noise((coils, coils), seed) + 2 * np.diag(np.arange(1, coils + 1))


def relative_error(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_coil_without_samples_does_not_lower_the_level():
    k = complex_noise((4, 128, 64))
    alive = estimate_sigma(k[:2]).sigma
    k[2:] = 0
    assert estimate_sigma(k).sigma == pytest.approx(alive, rel=0.02)


def test_covariance_from_fewer_samples_looks_at_the_outermost_alone():
    k = complex_noise((4, 128, 128))
    k[:, 16:112, 16:112] += 2 * complex_noise((96, 96), 1)  # signal that all coils share
    few, many = (np.trace(noise_covariance(k, None, n)).real / 4 for n in (64, 1024))
    assert few == pytest.approx(1, rel=0.1)
    assert many > 1.5


def test_covariance_of_known_noise_is_found():
    A = mixing(4)
    k = np.tensordot(A, complex_noise((4, 256, 256)), 1)
    covariance = noise_covariance(k)
    assert covariance.dtype == np.complex128
    assert np.array_equal(covariance, covariance.conj().T)
    assert relative_error(covariance, A @ A.conj().T) < 0.1  # white noise has variance 1 on each part, so Psi = A A^H
    average = np.mean([noise_covariance(np.tensordot(A, complex_noise((4, 64, 64), seed), 1)) for seed in range(50)], 0)
    assert relative_error(average, A @ A.conj().T) < 0.02


def test_covariance_does_not_see_spikes_zeros_or_what_is_outside_the_window():
    A = mixing(3)
    k = np.tensordot(A, complex_noise((3, 128, 100)), 1)
    k[0, ::17, ::13] = 1e5
    k[1, ::19, ::11] = 0
    k[:, :, :10] = 1e6
    assert relative_error(noise_covariance(k, ((0, 128), (10, 100))), A @ A.conj().T) < 0.15


def test_whitened_coils_have_independent_equal_noise_of_the_old_mean_level():
    A = mixing(4)
    W = whitening_matrix(noise_covariance(np.tensordot(A, complex_noise((4, 640, 64)), 1)))
    after = np.tensordot(W @ A, complex_noise((4, 640, 64), seed=1), 1).reshape(4, -1)  # noise that the estimate has not seen
    covariance = after @ after.conj().T / (2 * after.shape[1])
    level = np.linalg.norm(A) ** 2 / 4
    assert relative_error(covariance, level * np.eye(4)) < 0.12


@pytest.mark.parametrize("scale", [1e-12, 1e8])
def test_whitening_is_exact_for_an_exact_covariance_in_any_unit(scale):
    covariance = scale * mixing(5) @ mixing(5).conj().T
    W = whitening_matrix(covariance)
    level = np.trace(covariance).real / 5
    assert np.allclose(W @ covariance @ W.conj().T, level * np.eye(5), atol=1e-10 * level)
    assert np.allclose(W, W.conj().T)
    assert np.allclose(W, whitening_matrix(covariance / scale))


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (np.diag([1.0, 0.0]), "singular: eigenvalues from 0 to 1"),
        (np.diag([1.0, -0.5]), "singular: eigenvalues from -0.5 to 1"),
        (np.zeros((2, 2)), "singular"),
        (np.array([[1, 1j], [1j, 1]]), "not Hermitian"),
        (np.ones((2, 3)), r"shape \(2, 3\) is not Hermitian"),
        (np.diag([1.0, np.nan]), "NaN"),
    ],
)
def test_covariance_that_cannot_be_whitened_is_an_error(covariance, message):
    with pytest.raises(PrepError, match=message):
        whitening_matrix(covariance)


def test_dead_coil_or_coil_that_is_the_sum_of_others_has_no_whitening():
    k = complex_noise((3, 64, 64))
    k[2] = k[0] + k[1]
    with pytest.raises(PrepError, match="singular"):
        whitening_matrix(noise_covariance(k.astype(np.complex64)))
    k[2] = 0
    with pytest.raises(PrepError, match="0 noise samples for 3 coils"):
        noise_covariance(k)
