"""Simulated phase and coils: what is stored is what the operator of the file makes of the stored image."""

import numpy as np
import pytest
import torch
from columns import columns
from mr_volumes import affine_of, head, write_nifti

from data_prep.mr_images.receive import drawn_maps, drawn_phase
from es_medical.data import SliceDataset, read_header
from es_medical.engine.operators import operator_of


@pytest.mark.parametrize("options", [(), ("--phase",), ("--coils", 4), ("--coils", 4, "--phase")])
def test_measurement_is_that_of_the_stored_image_maps_and_mask(tmp_path, prep, options):
    write_nifti(tmp_path / "a.nii", head())
    prep("mr", tmp_path / "a.nii", tmp_path / "a.h5", "--sigma", 0, *options)
    data = SliceDataset(tmp_path / "a.h5")
    assert read_header(tmp_path / "a.h5").coils == (4 if "--coils" in options else 0)
    batch = torch.utils.data.default_collate([data[i] for i in range(len(data))])
    physics = operator_of(str(tmp_path / "a.h5")).of(batch)
    torch.testing.assert_close(physics.A(batch["image"]), batch["measurement"], atol=1e-5, rtol=0)
    assert bool(batch["image"][:, 1].any()) == ("--phase" in options)


def test_phase_and_coils_leave_the_magnitude_and_its_scale(tmp_path, prep):
    write_nifti(tmp_path / "a.nii", head())
    found = []
    for options in ((), ("--phase", "--coils", 3)):
        prep("mr", tmp_path / "a.nii", tmp_path / "a.h5", *options)
        found.append(columns(tmp_path / "a.h5"))
    np.testing.assert_allclose(np.hypot(*np.moveaxis(found[1]["image"], 1, 0)), found[0]["image"][:, 0], atol=1e-6)
    for name in ("scale", "position", "id", "split", "data_range"):
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("size", [32, 48, 128])
def test_maps_are_normalised_smooth_and_those_of_one_ring_in_every_slice(size):
    maps = [drawn_maps(6, size, height, 0, "v").numpy() for height in (0.0, 0.02, 0.4)]
    rows, columns = np.mgrid[:size, : size - 1] - size // 2
    body = np.hypot(rows, columns) < 0.45 * size  # the ring of coils is outside it
    for one in maps:
        np.testing.assert_allclose((one**2).sum((0, 1)), 1, rtol=1e-5)
        assert np.abs(np.diff(one, axis=-1)[..., body]).max() < 8 / size
    assert np.abs(maps[1] - maps[0]).max() < 0.1 < np.abs(maps[2] - maps[0]).max()
    assert np.abs(drawn_maps(6, size, 0.0, 0, "w").numpy() - maps[0]).max() > 0.1
    assert np.abs(drawn_maps(6, size, 0.0, 1, "v").numpy() - maps[0]).max() > 0.1


def test_maps_of_a_finer_grid_are_the_same_maps():
    coarse, fine = (drawn_maps(5, size, 0.1, 0, "v").numpy() for size in (32, 128))
    np.testing.assert_allclose(fine[..., ::4, ::4], coarse, atol=2e-3)


def test_phase_is_smooth_and_differs_from_slice_to_slice():
    one, other = drawn_phase(64, 0, "a"), drawn_phase(64, 0, "b")
    assert np.abs(np.diff(one, axis=0)).max() < 0.3
    assert np.abs(one - other).max() > 0.3
    np.testing.assert_array_equal(one, drawn_phase(64, 0, "a"))


def test_noise_is_of_the_given_level_in_every_coil(tmp_path, prep):
    write_nifti(tmp_path / "a.nii", head((32, 32, 12)), affine_of())
    found = []
    for sigma in (0, 0.1):
        prep("mr", tmp_path / "a.nii", tmp_path / "a.h5", "--sigma", sigma, "--coils", 3)
        found.append(columns(tmp_path / "a.h5"))
    noise = (found[1]["measurement"] - found[0]["measurement"])[..., found[0]["mask"].astype(bool)]  # (n, 2, C, H, lines)
    assert noise.std((0, 1, 3, 4)) == pytest.approx([0.1] * 3, rel=0.05)
