import pytest
import torch
from helpers import line_mri, randn

from es_medical.diagnostics.actions import DIHEDRAL
from es_medical.diagnostics.coverage import _moved_angles, coverage, plane_of, view_angles
from es_medical.diagnostics.spectrum import spectrum
from es_medical.groups import D4
from es_medical.physics import MRI, CompressedSensing, Inpainting, bernoulli_mask, gaussian_line_mask
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import FanBeam, ParallelBeam


def rank_share(physics, action):
    """Rank of the mean Gram matrix, as a share of n; test_mean_gram compares that matrix with its definition."""
    found = spectrum(physics, action)
    return found.rank() / found.n


# --- k-space


SQUARE = [(size, action) for size in ((8, 8), (9, 9)) for action in DIHEDRAL]


@pytest.mark.parametrize(("size", "action"), [*SQUARE, ((6, 9), "none"), ((6, 9), "flips")])
def test_covered_share_of_kspace_is_the_rank_of_the_mean_gram(size, action):
    physics = line_mri(size, acceleration=3, seed=2)
    assert coverage(physics, action).share == pytest.approx(rank_share(physics, action))


def test_symmetric_lines_cover_23_percent_under_d4_and_flips_add_nothing():
    frequency = torch.arange(320) - 160
    lines = (frequency.abs() <= 19) | (frequency == -160)  # 0 and -160 are their own mirror images: 40 lines
    physics = MRI(lines, (320, 320))
    assert coverage(physics, "none").share == coverage(physics, "flips").share == 0.125
    assert coverage(physics, "d4").share == pytest.approx(1 - (1 - 0.125) ** 2)  # 23.4 %


def test_lines_of_the_paper_setting_cover_more_since_mirror_images_are_new():
    physics = MRI(gaussian_line_mask(320, 8, 0.03, seed=0), (320, 320))
    flipped = coverage(physics, "flips").share
    assert coverage(physics, "none").share == 0.125
    assert flipped > 0.2
    assert coverage(physics, "d4").share == pytest.approx(1 - (1 - flipped) ** 2)


def test_share_of_operators_that_measure_zero_frequency_is_one():
    assert coverage(line_mri((8, 8)), "d4").sampled[0, 4, 4] == 1
    assert coverage(line_mri((9, 9)), "d4").sampled[0, 4, 4] == 1


# --- pixels


def test_shifts_bring_every_pixel_to_every_place():
    physics = Inpainting(bernoulli_mask((3, 8, 8), 0.3, seed=0), (8, 8), 3)
    found = coverage(physics, "shifts")
    assert found.share == 1
    assert found.sampled.amax((1, 2)).tolist() == pytest.approx(physics.mask[0].mean((1, 2)).tolist())


@pytest.mark.parametrize("action", DIHEDRAL)
def test_covered_share_of_values_is_the_rank_of_the_mean_gram(action):
    physics = Inpainting(bernoulli_mask((2, 5, 5), 0.3, seed=1), (5, 5), 2)
    assert coverage(physics, action).share == pytest.approx(rank_share(physics, action))


def test_operators_that_sample_no_plane_are_refused():
    physics = CompressedSensing(randn(3, 16), (4, 4))
    assert plane_of(physics) is None
    with pytest.raises(ValueError, match="CompressedSensing"):
        coverage(physics, "d4")
    with pytest.raises(ValueError, match="fine_rotations"):
        coverage(line_mri((8, 8)), "fine_rotations")


def test_d4_of_an_image_that_is_not_square_is_refused_with_both_sides():
    with pytest.raises(ValueError, match="6 x 9"):
        coverage(line_mri((6, 9)), "d4")


# --- views


@pytest.mark.parametrize(("views", "seen"), [(49, 98), (50, 50), (51, 102)])
def test_even_views_are_blind_to_d4_and_odd_ones_are_doubled(views, seen):
    physics = CT(ParallelBeam((8, 8), n_views=views))
    assert len(view_angles(physics, "none")) == len(view_angles(physics, "flips")) == views
    assert len(view_angles(physics, "d4")) == len(view_angles(physics, "rotations_90")) == seen
    assert len(view_angles(physics, "fine_rotations")) == 4 * views


def test_angles_under_fine_rotations_are_evenly_spread():
    angles = view_angles(CT(ParallelBeam((8, 8), n_views=5)), "fine_rotations")
    assert angles == pytest.approx([9.0 * k for k in range(20)], abs=1e-5)


@pytest.mark.parametrize("g", [1, 2, 4, 7])
def test_views_of_the_transformed_operator_stand_at_the_moved_angles(g):
    angles, x = (10.0, 35.0, 77.0), randn(1, 1, 9, 9)
    physics, element, group = CT(ParallelBeam((9, 9), angles), unit_norm=False), torch.tensor([g]), D4()
    found = group.apply(physics.A_adjoint_A(group.inverse(x, element)), element)  # of A T_g^-1
    moved = ParallelBeam((9, 9), tuple(_moved_angles(torch.tensor(angles).double().numpy(), g)))
    torch.testing.assert_close(found, CT(moved, unit_norm=False).A_adjoint_A(x), rtol=1e-3, atol=1e-3)


def test_views_that_the_mask_leaves_out_are_not_counted():
    physics = CT(ParallelBeam((8, 8), n_views=4), mask=[1, 0, 1, 1])
    assert view_angles(physics, "none") == pytest.approx([0, 90, 135], abs=1e-5)


def test_opposite_views_of_a_fan_beam_differ():
    physics = CT(FanBeam((8, 8), n_views=3, source_distance=20, detector_distance=10))
    assert len(view_angles(physics, "none")) == 3
    assert len(view_angles(physics, "rotations_90")) == 12


def test_operators_without_views_are_refused():
    with pytest.raises(ValueError, match="MRI"):
        view_angles(line_mri((8, 8)), "d4")
    with pytest.raises(ValueError, match="shifts"):
        view_angles(CT(ParallelBeam((8, 8), n_views=3)), "shifts")
