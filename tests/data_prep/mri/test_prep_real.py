"""`data_prep fastmri --measurements real`: recorded k-space on one grid, undersampled by one mask."""

import math

import h5py
import numpy as np
import pytest
import torch
from columns import columns as columns_of
from raw import HEADER, complex_noise, kspace_of, phantom, seen_by_coils
from torch.utils.data import DataLoader

from data_prep.mri import fastmri
from data_prep.mri.normalisation import crop_or_pad
from es_medical.data import SliceDataset, read_header
from es_medical.physics.fourier import ifft2c

FULL = ("--acceleration", 1, "--center-fraction", 1)
ALL = ("--slices", "all", "--train", 1, "--test", 0, "--val", 0)


@pytest.fixture
def real(prep):
    """Runs the command on a folder; returns the result, and the columns of the file that it wrote, if any."""

    def run(source, out, *options, code=0):
        result = prep("fastmri", source, out, "--measurements", "real", *options, code=code)
        return result, columns_of(out) if out.is_file() else {}

    return run


def to_complex(x):
    """(N, 2, ...) to complex (N, ...)."""
    return x[:, 0] + 1j * x[:, 1]


def noisy(sigma, seed=0):
    """k-space of the phantom plus noise."""
    k = kspace_of(phantom((3, 64, 48), seed))
    return k + sigma * complex_noise(k.shape, seed).astype(np.complex64)


# --- the right numbers


def test_full_noise_free_kspace_gives_the_stored_reconstruction(tmp_path, make_volume, real):
    """Issue: magnitude up to scale to 1e-4 relative, orientation included (A18)."""
    path = make_volume(tmp_path / "in" / "a.h5")
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL)
    assert columns["mask"].all()
    image = ifft2c(torch.from_numpy(columns["measurement"]))
    magnitude = torch.linalg.vector_norm(image, dim=1).numpy() * columns["scale"][:, :1, None]
    with h5py.File(path) as file:
        stored = file["reconstruction_esc"][()]
    assert np.abs(magnitude - stored).max() <= 1e-4 * stored.max()
    np.testing.assert_allclose(columns["image"], image.numpy(), atol=1e-5)


def test_phase_is_kept(tmp_path, make_volume, real):
    """A13: exp(0.01 i x) comes out with an error below 1e-5 rad where there is signal."""
    x = np.mgrid[:64, :48][1]
    k = kspace_of((1 + np.random.default_rng(0).random((2, 64, 48))) * np.exp(0.01j * x))
    make_volume(tmp_path / "in" / "a.h5", kspace=k, keys=())
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL, "--size", 32)
    image = to_complex(columns["image"].astype(np.float64))
    expected = crop_or_pad(np.exp(0.01j * x), (32, 32))
    assert np.abs(np.angle(image * expected.conj())).max() < 1e-5


@pytest.mark.parametrize("scale", [1e-5, 1e-12, 3e4])
def test_result_does_not_depend_on_the_scale_of_the_input(tmp_path, make_volume, real, scale):
    """A14, E2: values near 1e-5; the stored scale gives the raw values back."""
    outputs = []
    for i, factor in enumerate((1.0, scale)):
        make_volume(tmp_path / f"in{i}" / "a.h5", scale=factor, kspace=(noisy(0.01) * factor).astype(np.complex64))
        _, columns = real(tmp_path / f"in{i}", tmp_path / f"out{i}.h5", *ALL, "--acceleration", 2, "--center-fraction", 0.2)
        outputs.append(columns)
    one, other = outputs
    for name in ("measurement", "image", "sigma", "peak", "data_range"):
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(other["scale"][:, 0], one["scale"][:, 0] * scale, rtol=1e-5)
    assert 0.3 < one["peak"].min() <= one["peak"].max() < 3


def test_scale_uses_the_central_lines_alone(tmp_path, make_volume, real):
    """What a scan without the other lines would give is what is stored."""
    k, outputs = noisy(0.01), []
    for i in (0, 1):
        changed = k.copy()
        if i:
            changed[..., :19] *= 3  # outside the centre: columns 19 to 28
        make_volume(tmp_path / f"in{i}" / "a.h5", kspace=changed, keys=())
        options = ("--acceleration", 2, "--center-fraction", 0.2, "--size", 48)
        outputs.append(real(tmp_path / f"in{i}", tmp_path / f"out{i}.h5", *ALL, *options)[1])
    np.testing.assert_allclose(outputs[0]["scale"], outputs[1]["scale"], rtol=1e-6)


@pytest.mark.parametrize("sigma", [0.003, 0.02, 0.1])
def test_noise_level_is_found_and_stored_for_each_slice(tmp_path, make_volume, real, sigma):
    """Within 10 % in the mean over 12 slices; each slice is stored in its own units."""
    for seed in range(4):
        make_volume(tmp_path / "in" / f"{seed}.h5", seed=seed, kspace=noisy(sigma, seed).astype(np.complex64))
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL)
    raw = columns["sigma"] * columns["scale"][:, 0]
    assert abs(raw.mean() / sigma - 1) < 0.1
    assert len(np.unique(columns["sigma"])) == 12
    assert math.isnan(read_header(tmp_path / "out.h5").sigma)
    item = SliceDataset(tmp_path / "out.h5")[5]
    assert float(item["sigma"]) == pytest.approx(columns["sigma"][5])


def test_given_noise_level_and_added_noise(tmp_path, make_volume, real):
    """--sigma is in the file's units; added noise in stored units adds up in squares and changes measured lines only."""
    make_volume(tmp_path / "in" / "a.h5", n=3)
    options = (*ALL, "--acceleration", 2, "--center-fraction", 0.2, "--sigma", 0.25)
    plain = real(tmp_path / "in", tmp_path / "a.h5", *options)[1]
    np.testing.assert_allclose(plain["sigma"] * plain["scale"][:, 0], 0.25, rtol=1e-6)
    more = real(tmp_path / "in", tmp_path / "b.h5", *options, "--added-noise", 0.1)[1]
    np.testing.assert_allclose(more["sigma"], np.hypot(plain["sigma"], 0.1), rtol=1e-6)
    noise = more["measurement"] - plain["measurement"]
    assert (noise[..., ~plain["mask"].astype(bool)] == 0).all()
    measured = noise[..., plain["mask"].astype(bool)]
    assert abs(measured.std() / 0.1 - 1) < 4 / math.sqrt(2 * measured.size)  # four standard errors
    np.testing.assert_array_equal(more["image"], plain["image"])


def test_mixed_widths_collate(tmp_path, make_volume, real):
    """A15: 64 x 48 and 64 x 52 both give slices of the target's size."""
    for i, width in enumerate((48, 52, 47, 48)):
        make_volume(tmp_path / "in" / f"{i}.h5", seed=i, n=2, width=width)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--acceleration", 2, "--center-fraction", 0.2)
    batch = next(iter(DataLoader(SliceDataset(tmp_path / "out.h5"), 8)))
    assert batch["measurement"].shape == (8, 2, 32, 32)
    assert (columns["measurement"][..., ~columns["mask"].astype(bool)] == 0).all()


@pytest.mark.parametrize("shape", [(64, 21), (25, 17), (33, 47)])
def test_small_and_odd_grids_are_padded_about_the_origin(tmp_path, make_volume, real, shape):
    """A7, A8: a delta at n//2 lands on N//2 with angle 0 everywhere, for every parity."""
    k = np.full((2, *shape), 1 / math.sqrt(math.prod(shape)), np.complex64)
    make_volume(tmp_path / "in" / "a.h5", kspace=k, keys=(), header=False)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL, "--size", 32)
    image = to_complex(columns["image"])
    image /= np.abs(image).max()
    expected = np.zeros((32, 32))
    expected[16, 16] = 1
    np.testing.assert_allclose(image, expected[None].repeat(2, 0), atol=1e-5)


def zero_padded(make_volume, path):
    """372 columns of which 332, 20 to 351, were encoded."""
    k = kspace_of(phantom((2, 16, 372)))
    k[..., :20] = k[..., 352:] = 0
    header = HEADER.format(width=372, maximum=331, center=166).replace("<x>64</x>", "<x>16</x>")
    make_volume(path, kspace=k, keys=(), header=False, ismrmrd_header=header)


def test_zero_padded_columns_are_never_measured(tmp_path, make_volume, real):
    """A10 on the recorded grid: matrix 372, limits 20 to 351; the acceleration counts the 332 encoded lines."""
    zero_padded(make_volume, tmp_path / "in" / "a.h5")
    options = (*ALL, "--native-width", "--size", 16, "--acceleration", 4, "--center-fraction", 0.1)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *options)
    mask, found = columns["mask"].astype(bool), read_header(tmp_path / "out.h5")
    assert not mask[:20].any()
    assert not mask[352:].any()
    assert mask.sum() == round(332 / 4)
    assert found.encoded_lines == 332
    from es_medical.engine.operators import build_physics, build_split

    split = build_split(str(tmp_path / "out.h5"), "lines", 0.8, True)
    assert split.n_center == round(332 * 0.1)
    m1 = split(build_physics(str(tmp_path / "out.h5"), 4, 0.1), 2, None)
    assert not m1[..., :20].any()
    assert not m1[..., 352:].any()


def test_zero_padded_columns_are_no_columns_of_another_grid(tmp_path, make_volume, real):
    """A10 on a resampled grid: frequencies outside the encoded ones are not measured there either."""
    zero_padded(make_volume, tmp_path / "in" / "a.h5")
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--size", 320, "--acceleration", 2, "--center-fraction", 0.1)
    frequency = (np.arange(320) - 160) / 320
    outside = (frequency < -166 / 372) | (frequency > 165 / 372)
    assert not columns["mask"].astype(bool)[outside].any()
    assert columns["mask"].sum() == round((~outside).sum() / 2)


def test_volume_maximum_is_the_range_of_its_slices(tmp_path, make_volume, real):
    make_volume(tmp_path / "in" / "a.h5", n=4)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL)
    magnitude = np.abs(to_complex(columns["image"])).max((1, 2))
    np.testing.assert_allclose(columns["peak"], magnitude, rtol=1e-6)
    raw = magnitude * columns["scale"][:, 0]
    np.testing.assert_allclose(columns["data_range"] * columns["scale"][:, 0], raw.max(), rtol=1e-5)
    _, middle = real(tmp_path / "in", tmp_path / "middle.h5", *ALL[2:], *FULL)
    assert np.isnan(middle["data_range"]).all()  # the other slices were not read


def test_pixel_size_is_that_of_the_recorded_grid(tmp_path, make_volume, real):
    header = HEADER.replace(
        "</matrixSize></encodedSpace>",
        "</matrixSize><fieldOfView_mm><x>128</x><y>72</y><z>4</z></fieldOfView_mm></encodedSpace>",
    )
    make_volume(tmp_path / "in" / "a.h5", header=False, ismrmrd_header=header.format(width=48, maximum=47, center=24))
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL)
    np.testing.assert_allclose(columns["spacing"], [[2.0, 1.5]] * 3)
    np.testing.assert_allclose(columns["slice_spacing"], 4)
    assert np.isnan(columns["orientation"]).all()


# --- several coils


@pytest.fixture
def make_coils(make_volume):
    """Writes a multi-coil volume: the phantom seen by smooth coils, noise of 0.01."""

    def make(path, coils=5, sigma=0.01, seed=0, **options):
        x = seen_by_coils(phantom((3, 64, 48), seed), coils)
        k = kspace_of(x) + sigma * complex_noise(x.shape, seed)
        rss = np.sqrt((np.abs(x) ** 2).sum(1))[:, 16:48, 8:40]
        return make_volume(path, kspace=k.astype(np.complex64), keys=(), reconstruction_rss=rss.astype(np.float32), **options)

    return make


MULTI = ("--coils", "multi", "--acceleration", 2, "--center-fraction", 0.4)


def test_coils_are_compressed_and_their_maps_reproduce_the_data(tmp_path, make_coils, real):
    make_coils(tmp_path / "in" / "a.h5")
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *MULTI, "--virtual-coils", 4)
    assert columns["measurement"].shape == columns["maps"].shape == (3, 2, 4, 32, 32)
    energy = (columns["maps"] ** 2).sum((1, 2))
    assert (np.isclose(energy, 1, atol=1e-4) | (energy == 0)).all()
    from es_medical.engine.operators import build_physics

    batch = next(iter(DataLoader(SliceDataset(tmp_path / "out.h5"), 3)))
    physics = build_physics(str(tmp_path / "out.h5"), 2, 0.4).of(batch)
    residual = physics.A(batch["image"]) - batch["measurement"]
    assert (
        float(residual.norm() / batch["measurement"].norm()) < 0.15
    )  # noise, and what no map explains: the object reaches beyond the field of view
    assert "coil-combined image of kspace" in result.output


def test_rss_target_of_full_kspace_is_the_stored_reconstruction(tmp_path, make_coils, real):
    path = make_coils(tmp_path / "in" / "a.h5", sigma=0)
    options = ("--coils", "multi", *FULL, "--target", "rss", "--virtual-coils", 5)
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *options)
    with h5py.File(path) as file:
        stored = file["reconstruction_rss"][()]
    assert (columns["image"][:, 1] == 0).all()
    assert np.abs(columns["image"][:, 0] * columns["scale"][:, :1, None] - stored).max() <= 1e-4 * stored.max()
    assert "coils not whitened: no noise scan" in result.output  # there is no noise whose covariance could be told


def test_volumes_of_different_coil_numbers_share_the_smallest(tmp_path, make_coils, real):
    make_coils(tmp_path / "in" / "a.h5", coils=5)
    make_coils(tmp_path / "in" / "b.h5", coils=3, seed=1)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *MULTI)
    assert columns["measurement"].shape == (6, 2, 3, 32, 32)


def test_noise_of_whitened_and_compressed_coils_has_the_stored_level(tmp_path, make_coils, real):
    """Noise alone in the outer lines of a smooth phantom: its standard deviation there is the stored sigma."""
    make_coils(tmp_path / "in" / "a.h5", sigma=0.05)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--coils", "multi", *FULL)
    corners = columns["measurement"][..., [0, 1, 2, -2, -1], :][..., [0, 1, 2, -2, -1]]
    ratio = corners.std((1, 2, 3, 4)) / columns["sigma"]
    assert np.abs(ratio - 1).max() < 0.15


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_scale_of_several_coils_neither_under_nor_overflows(tmp_path, make_coils, make_volume, real, scale):
    """A14 and its neighbours: squares of single precision end at 1e-38 and 1e38."""
    with h5py.File(make_coils(tmp_path / "one" / "a.h5")) as file:
        k = file["kspace"][()]
    make_volume(tmp_path / "other" / "a.h5", kspace=(k * np.float32(scale)).astype(np.complex64), keys=())
    _, one = real(tmp_path / "one", tmp_path / "a.h5", *ALL, *MULTI)
    _, other = real(tmp_path / "other", tmp_path / "b.h5", *ALL, *MULTI, "--size", 32)
    np.testing.assert_allclose(other["scale"][:, 0], one["scale"][:, 0] * scale, rtol=1e-5)
    np.testing.assert_allclose(other["measurement"], one["measurement"], atol=1e-4)
    np.testing.assert_allclose(other["sigma"], one["sigma"], rtol=1e-4)


def test_signal_at_the_edge_of_kspace_is_not_whitened_as_noise(tmp_path, make_coils, make_volume, real):
    """Sharp edges reach the periphery: their covariance would colour white noise, and raise its level."""
    rows, columns = np.mgrid[:64, :48]
    x = (((rows - 32) / 13) ** 2 + ((columns - 24) / 18) ** 2 < 1) * np.exp(0.1j * columns)
    maps = np.stack([np.exp(-((rows - 32 - r) ** 2 + (columns - 24 - c) ** 2) / 900) for r, c in ((20, 0), (-20, 9), (0, 20))])
    k = kspace_of((maps * x)[None])
    k = k + 0.01 * complex_noise(k.shape)
    make_volume(tmp_path / "in" / "a.h5", kspace=k.astype(np.complex64), keys=())
    result, found = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *MULTI)
    assert "coils not whitened: no noise scan, and the edge of k-space holds more than noise" in result.output
    np.testing.assert_allclose(found["sigma"] * found["scale"][:, 0], 0.01, rtol=0.1)


def test_wrong_kind_is_refused_by_rank(tmp_path, make_volume, make_coils, real):
    """A12."""
    make_volume(tmp_path / "single" / "a.h5")
    make_coils(tmp_path / "multi" / "a.h5")
    result, columns = real(tmp_path / "single", tmp_path / "a.h5", *ALL, *MULTI, code=1)
    assert not columns
    assert "kspace is single-coil, expected multi-coil: give --coils single" in result.output
    result, columns = real(tmp_path / "multi", tmp_path / "b.h5", *ALL, code=1)
    assert "kspace is multi-coil (5 coils), expected single-coil: give --coils multi" in result.output


# --- undersampled files


def undersampled(make_volume, path, lines, seed=0, width=48, **options):
    mask = np.zeros(width, np.uint8)
    mask[list(lines)] = 1
    return make_volume(path, seed=seed, keys=(), kspace=kspace_of(phantom((3, 64, width), seed)) * mask, mask=mask, **options)


LINES = (2, 9, *range(21, 28), 33, 40, 44)


def test_undersampled_files_keep_their_lines_on_their_own_width(tmp_path, make_volume, real):
    """A4: the stored mask is used, there is no ground truth, and nothing derived from one."""
    for i in (0, 1):
        undersampled(make_volume, tmp_path / "in" / f"{i}.h5", LINES, seed=i)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--native-width", "--size", 32)
    assert columns["mask"].nonzero()[0].tolist() == list(LINES)
    assert "image" not in columns
    assert columns["measurement"].shape == (6, 2, 32, 48)
    assert (columns["peak"] == 1).all()
    header = read_header(tmp_path / "out.h5")
    assert (header.acceleration, header.center_fraction) == (pytest.approx(48 / len(LINES)), pytest.approx(7 / 48))


def test_lines_without_gaps_are_no_full_kspace(tmp_path, make_volume, real):
    """A4: the mask of a scan of low resolution leaves out no line between others; there is no ground truth all the same."""
    undersampled(make_volume, tmp_path / "in" / "a.h5", range(18, 30), header=False)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--native-width", "--size", 32)
    assert "image" not in columns
    assert columns["mask"].nonzero()[0].tolist() == list(range(18, 30))
    assert read_header(tmp_path / "out.h5").acceleration == 4


def test_wrong_encoding_limits_of_an_undersampled_file_stop_no_other(tmp_path, make_volume, real):
    header = HEADER.format(width=60, maximum=70, center=30)  # of another matrix than the stored 48 columns
    undersampled(make_volume, tmp_path / "in" / "a.h5", LINES, header=False, ismrmrd_header=header)
    undersampled(make_volume, tmp_path / "in" / "b.h5", LINES, seed=1)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--native-width", "--size", 32)
    assert columns["mask"].nonzero()[0].tolist() == list(LINES)


def test_noise_level_of_undersampled_kspace_is_told_to_be_an_upper_bound(tmp_path, make_volume, real):
    noise = complex_noise((3, 64, 48)) * np.isin(np.arange(48), LINES)
    make_volume(tmp_path / "in" / "a.h5", keys=(), kspace=noise, mask=np.isin(np.arange(48), LINES).astype(np.uint8))
    result, _ = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--native-width", "--size", 32)
    assert "that of its edge, an upper bound: give --sigma if you know it (3 of 3 slices)" in result.output
    result, _ = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--native-width", "--size", 32, "--sigma", 1)
    assert "upper bound" not in result.output


def test_undersampled_file_is_not_resampled(tmp_path, make_volume, real):
    undersampled(make_volume, tmp_path / "in" / "a.h5", LINES)
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, code=1)
    assert not columns
    assert "can't be resampled to 32: give --native-width" in result.output


def test_one_file_has_one_mask_and_one_width(tmp_path, make_volume, real):
    undersampled(make_volume, tmp_path / "in" / "a.h5", LINES)
    undersampled(make_volume, tmp_path / "in" / "b.h5", LINES, seed=1)
    undersampled(make_volume, tmp_path / "in" / "c.h5", (1, *LINES), seed=2)
    make_volume(tmp_path / "in" / "d.h5", seed=3, width=52)
    make_volume(tmp_path / "in" / "e.h5", seed=4)
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--native-width", "--size", 32, code=1)
    assert "done 3 · skipped 0 · failed 2" in result.output
    assert "another mask than most volumes" in result.output
    assert "has 52 columns, most volumes have 48" in result.output
    assert "image" not in columns
    assert (columns["measurement"][..., ~columns["mask"].astype(bool)] == 0).all()


def test_undersampled_kspace_without_a_mask_is_refused(tmp_path, make_volume, real):
    k = kspace_of(phantom((3, 64, 48)))
    k[..., ::2] = 0
    make_volume(tmp_path / "in" / "a.h5", kspace=k, keys=())
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, code=1)
    assert "kspace is undersampled" in result.output


def test_mask_that_does_not_fit_the_data_is_refused(tmp_path, make_volume, real):
    mask = np.zeros(48)
    mask[[3, *range(20, 29)]] = 1
    make_volume(tmp_path / "in" / "a.h5", mask=mask)  # all lines hold samples
    make_volume(tmp_path / "in" / "b.h5", seed=1, mask=np.ones(40))
    result, _ = real(tmp_path / "in", tmp_path / "out.h5", *ALL, "--native-width", code=1)
    assert "38 columns that it leaves out hold samples" in result.output
    assert "mask of shape (40,)" in result.output


# --- one bad file never stops the others


@pytest.mark.parametrize("at_once", [3, 2**20])
def test_volume_with_one_bad_slice_is_taken_back(tmp_path, make_volume, real, monkeypatch, at_once):
    """A20: NaN in the last slice; the others of that volume are not left in the file, whatever is read at once."""
    monkeypatch.setattr(fastmri, "TASK_BYTES", at_once * 2 * 8 * 32 * 32)
    bad = kspace_of(phantom((9, 64, 48)))
    bad[8, 3, 3] = np.nan
    make_volume(tmp_path / "in" / "a.h5", kspace=bad, keys=())
    for seed in (1, 2):
        make_volume(tmp_path / "in" / f"{seed}.h5", seed=seed)
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL, code=1)
    assert "done 2 · skipped 0 · failed 1" in result.output
    assert "kspace slice 8 holds NaN" in result.output
    assert len(columns["id"]) == 6
    assert len(set(columns["subject"])) == 2
    assert np.isfinite(columns["measurement"]).all()


def test_values_beyond_single_precision_are_refused(tmp_path, make_volume, real):
    make_volume(tmp_path / "in" / "a.h5", kspace=kspace_of(phantom((3, 64, 48))).astype(np.complex128) * 1e200)
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, code=1)
    assert not columns
    assert "too large for single precision" in result.output


def test_blank_slices_are_left_out_and_told(tmp_path, make_volume, real):
    k = kspace_of(phantom((4, 64, 48)))
    k[0] = 0
    make_volume(tmp_path / "in" / "a.h5", kspace=k, keys=())
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL)
    assert columns["slice"].tolist() == [1, 2, 3]
    assert "blank slices left out (1 of 4 slices)" in result.output


# --- the command


def test_mask_of_another_file_is_used_again(tmp_path, make_volume, real):
    for i in range(2):
        make_volume(tmp_path / f"in{i}" / "a.h5", seed=i)
    options = (*ALL, "--acceleration", 2, "--center-fraction", 0.2)
    first = real(tmp_path / "in0", tmp_path / "a.h5", *options, "--mask-seed", 3)[1]
    _, second = real(tmp_path / "in1", tmp_path / "b.h5", *ALL, "--mask-from", tmp_path / "a.h5")
    np.testing.assert_array_equal(first["mask"], second["mask"])
    assert (read_header(tmp_path / "b.h5").acceleration, read_header(tmp_path / "b.h5").center_fraction) == (2, 0.2)
    result, _ = real(tmp_path / "in1", tmp_path / "c.h5", *ALL, "--mask-from", tmp_path / "a.h5", "--size", 40, code=1)
    assert "has 32 columns, the slices have 40" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--measurements", "real", "--normalise", "slice"), "--normalise"),
        (("--measurements", "real", "--target", "esc"), "--target esc"),
        (("--measurements", "real", "--target", "rss"), "--target rss"),
        (("--added-noise", "0.1"), "--added-noise"),
        (("--native-width",), "--native-width"),
        (("--virtual-coils", "4"), "--virtual-coils"),
        (("--no-whiten",), "--no-whiten"),
    ],
)
def test_knob_without_effect_is_refused(tmp_path, make_volume, prep, options, message):
    make_volume(tmp_path / "in" / "a.h5")
    assert f"{message}: without effect" in prep("fastmri", tmp_path / "in", tmp_path / "out.h5", *options, code=1).output


@pytest.mark.parametrize("name", ["--acceleration", "--sigma", "--added-noise", "--train", "--test"])
def test_number_that_is_not_finite_is_refused(tmp_path, make_volume, real, name):
    make_volume(tmp_path / "in" / "a.h5")
    result, columns = real(tmp_path / "in", tmp_path / "out.h5", name, "inf", code=1)
    assert not columns
    assert f"{name} inf: expected a finite number" in result.output


def test_kspace_sampled_at_random_points_without_a_mask_is_refused(tmp_path, shared_data, real):
    """A real multi-coil file that looks fully sampled by its header: 88 % of its samples are empty, line by line."""
    source = shared_data / "kspace" / "fastmri_layout" / "multicoil_brain.h5"
    result, columns = real(source, tmp_path / "out.h5", *ALL, "--coils", "multi", code=1)
    assert not columns
    assert "35843 of 40991 encoded samples are empty" in result.output


def test_real_brain(tmp_path, shared_data, make_volume, real):
    """A real single-coil slice of 512 x 512 that lacks the image shift: set right, its image comes out upright."""
    from scipy.io import loadmat

    k = loadmat(shared_data / "kspace" / "wastling_brain_kspace.mat")["kspace_data"]
    i, j = np.indices(k.shape)
    k = (k * (-1.0) ** (i + j))[None].astype(np.complex64)
    make_volume(tmp_path / "in" / "a.h5", kspace=k, keys=(), header=False)
    options = ("--size", 320, "--acceleration", 4, "--center-fraction", 0.08)
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *options)
    expected = crop_or_pad(np.abs(np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(k[0]), norm="ortho"))), (320, 320))
    image = np.abs(to_complex(columns["image"])[0]) * columns["scale"][0, 0]
    np.testing.assert_allclose(image, expected, atol=1e-4 * expected.max())
    assert 0.5 < columns["peak"][0] < 3
    assert 0 < columns["sigma"][0] < 0.1


def test_ismrmrd_raw_file_needs_real_measurements(tmp_path, prep, real):
    """The issue: converted, or refused with a message that says what the file is."""
    pytest.importorskip("ismrmrd", reason="raw files need the extra `ismrmrd`")
    from ismrmrd_scans import header, readouts, write

    k = kspace_of(phantom((3, 64, 48)))
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.h5", readouts(k[:, None]), header((64, 48), recon=(32, 32), field=(200, 135)))
    refused = prep("fastmri", tmp_path / "in", tmp_path / "out.h5", *ALL, code=1)
    assert "an ISMRMRD raw file, give --measurements real" in refused.output
    _, columns = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *FULL)
    image = np.abs(to_complex(columns["image"])) * columns["scale"][:, :1, None]
    expected = crop_or_pad(np.abs(phantom((3, 64, 48))), (32, 32))
    np.testing.assert_allclose(image, expected, atol=1e-4 * expected.max())


def test_what_the_volumes_make_of_the_knobs_is_told(tmp_path, make_volume, make_coils, real):
    make_coils(tmp_path / "in" / "a.h5", coils=5)
    make_coils(tmp_path / "in" / "b.h5", coils=3, seed=1)
    result, _ = real(tmp_path / "in", tmp_path / "out.h5", *ALL, *MULTI)
    assert "3 virtual coils: one volume has no more than 3" in result.output
    undersampled(make_volume, tmp_path / "raw" / "a.h5", LINES)
    make_volume(tmp_path / "raw" / "b.h5", seed=1)
    result, _ = real(tmp_path / "raw", tmp_path / "other.h5", *ALL, "--native-width", "--size", 32)
    assert "1 of 2 volumes are undersampled: their mask is that of all, no ground truth" in result.output
