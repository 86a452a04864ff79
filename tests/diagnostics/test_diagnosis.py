import pytest
import torch
from helpers import line_mri, randn

from es_medical.diagnostics.actions import ACTIONS
from es_medical.diagnostics.coverage import coverage
from es_medical.diagnostics.diagnosis import diagnose, support_of
from es_medical.physics import CompressedSensing, Decimation, Inpainting, bernoulli_mask, even_columns, gaussian_matrix
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.physics.fourier import ifft2c


def scanner(views, size=32):
    return CT(ParallelBeam((size, size), n_views=views, n_detectors=size * 3 // 2))


def test_ranks_of_mri_are_the_covered_share_of_kspace():
    physics = line_mri((8, 8), acceleration=4)
    found = diagnose(physics, ("flips", "d4", "shifts"))
    assert found.n == 2 * 8 * 8
    for one in found.findings:
        assert one.share == pytest.approx(coverage(physics, one.action).share)
    assert found.of("d4").gain == pytest.approx(found.of("d4").share - found.alone.share)
    assert found.blind == ("shifts",)
    assert found.best is found.of("d4")


def test_every_set_is_looked_at_once_and_the_operator_alone_first():
    found = diagnose(line_mri((6, 6)))
    assert tuple(one.action for one in found.findings) == ACTIONS
    assert found.alone.action == "none"
    assert not found.refused


def test_even_views_are_blind_to_d4_and_fine_rotations_help():
    physics = scanner(8)
    found = diagnose(physics, ("flips", "d4", "fine_rotations"), support=support_of(physics))
    assert found.n == 812
    assert (found.alone.rank, found.of("d4").rank, found.of("fine_rotations").rank) == (231, 231, 628)
    assert found.blind == ("flips", "d4")
    assert found.best is found.of("fine_rotations")
    assert found.turns


def test_shifts_are_refused_where_images_lie_in_a_circle():
    physics = scanner(4, size=8)
    found = diagnose(physics, ("shifts", "amplitude"), support=support_of(physics))
    assert set(found.refused) == {"shifts"}
    assert "circle" in found.refused["shifts"]


def test_what_does_not_act_is_refused_with_the_cause():
    found = diagnose(line_mri((6, 8)), ("flips", "d4"))
    assert "6 x 8" in found.refused["d4"]
    assert [one.action for one in found.findings] == ["none", "flips"]


def test_unknown_transformations_are_named_with_the_valid_ones():
    with pytest.raises(ValueError, match=r"d8.*rotations_90"):
        diagnose(line_mri((6, 6)), ("d8",))


def test_lost_energy_is_zero_for_images_of_measured_lines_and_one_for_the_others():
    physics = line_mri((8, 8), acceleration=4)
    kspace = randn(2, 2, 8, 8)
    seen = ifft2c(physics.mask * kspace)
    hidden = ifft2c((coverage(physics, "d4").sampled == 0) * kspace)
    assert diagnose(physics, ("d4",), seen).alone.lost == pytest.approx(0, abs=1e-6)
    found = diagnose(physics, ("d4",), hidden)
    assert (found.alone.lost, found.of("d4").lost) == pytest.approx((1, 1))
    assert found.n_images == 2


def test_evenly_spaced_columns_have_full_rank_under_shifts_but_no_pairs():
    found = diagnose(Inpainting(even_columns(8), (8, 8), 1), ("shifts", "d4"))
    shifts = found.of("shifts")
    assert (shifts.share, shifts.joint, shifts.usable) == (1, 0.5, 0.5)
    assert found.best is not shifts


def test_random_values_are_best_learnt_with_shifts():
    found = diagnose(Inpainting(bernoulli_mask((1, 16, 16), 0.5, 0), (16, 16), 1))
    assert found.best is found.of("shifts")
    assert found.best.usable == 1


def test_of_sets_with_full_rank_the_most_even_spectrum_is_best():
    found = diagnose(CompressedSensing(gaussian_matrix(43, 144, 0), (12, 12)))
    assert found.of("flips").share == found.of("shifts").share == 1
    assert found.of("flips").effective_rank < found.of("shifts").effective_rank
    assert found.best is found.of("shifts")


def test_nothing_helps_an_operator_that_sees_everything():
    found = diagnose(Inpainting([1] * 6, (6, 6), 1))
    assert found.alone.share == 1
    assert found.best is None


def test_quick_estimate_agrees_with_the_dense_spectrum_within_its_error():
    physics = scanner(7, size=40)
    support = support_of(physics)
    full, quick = (diagnose(physics, ("d4",), support=support, quick=quick) for quick in (False, True))
    for exact, estimate in zip(full.findings, quick.findings, strict=True):
        assert (exact.spectrum.method, estimate.spectrum.method) == ("dense", "Lanczos")
        assert abs(estimate.rank - exact.rank) <= 4 * estimate.spectrum.error < 0.2 * full.n
    assert quick.of("d4").invariant is None


def test_support_is_the_circle_that_every_view_sees():
    assert int(support_of(scanner(3)).sum()) == 812
    narrow = CT(ParallelBeam((8, 8), n_views=3, n_detectors=4))
    assert support_of(narrow).sum() < support_of(scanner(3, size=8)).sum()
    assert torch.equal(support_of(narrow), support_of(narrow).mT)
    assert support_of(line_mri((6, 6))) is None


def test_decimated_pixels_are_bounded_by_the_pairs_that_are_seen_together():
    """Every other row and column: flips move them onto others, but never measure those along with a seen one."""
    found = diagnose(Decimation((8, 8), 2), ["flips"]).of("flips")
    assert found.joint is not None
    assert found.share == 1.0
    assert found.usable == pytest.approx(0.25)
