import itertools

import pytest
import torch

from es_medical.physics.masks import center_lines, gaussian_line_mask, line_counts

WIDTHS = [*range(8, 34), 48, 63, 64, 213, 320, 368, 371, 372]
PAPER = [(8, 0.03), (6, 0.08)]


@pytest.mark.parametrize(("acceleration", "center_fraction"), [*PAPER, (4, 0.08), (2, 0.0), (3.3, 0.1), (1, 0.2)])
def test_exact_number_of_lines_with_the_centre(acceleration, center_fraction):
    for width, seed in itertools.product(WIDTHS, range(3)):
        n_lines, n_center = max(round(width / acceleration), 1), max(round(width * center_fraction), 1)
        if n_center > n_lines:
            continue
        mask = gaussian_line_mask(width, acceleration, center_fraction, seed)
        assert mask.shape == (width,)
        assert mask.dtype == torch.bool
        assert mask.sum() == n_lines, (width, seed)
        assert mask[width // 2], (width, seed)
        assert mask[center_lines(width, n_center)].all(), (width, seed)


@pytest.mark.parametrize("width", range(1, 13))
@pytest.mark.parametrize(("acceleration", "center_fraction"), PAPER)
def test_tiny_matrices_keep_the_zero_frequency(width, acceleration, center_fraction):
    mask = gaussian_line_mask(width, acceleration, center_fraction, seed=0)
    assert mask[width // 2]
    assert mask.sum() == max(round(width / acceleration), 1)


@pytest.mark.parametrize("width", [1, 2, 8, 9])
@pytest.mark.parametrize("center_fraction", [0.0, 0.5, 1.0])
def test_acceleration_one_measures_every_line(width, center_fraction):
    assert gaussian_line_mask(width, 1, center_fraction, seed=0).all()


def test_centre_is_contiguous_and_around_the_zero_frequency():
    for width, n in itertools.product(range(1, 20), range(1, 20)):
        if n > width:
            continue
        lines = center_lines(width, n).nonzero().flatten()
        assert len(lines) == n
        assert int(lines[-1] - lines[0]) == n - 1
        assert lines[0] <= width // 2 <= lines[-1]
        assert abs(float(lines.float().mean()) - width // 2) <= 0.5


def test_density_falls_off_as_a_gaussian():  # 400 masks; without a centre the shares of inner and outer lines differ as stated
    width = 96
    counts = sum(gaussian_line_mask(width, 32, 0.0, seed).double() for seed in range(400))  # 3 lines, one is the zero frequency
    position = (torch.arange(width) - width // 2).abs()
    drawn = counts.where(position > 0, 0.0)
    density = torch.exp(-0.5 * (position / (width / 6)) ** 2).where(position > 0, 0.0)
    inner = position <= width // 6
    share, expected = drawn[inner].sum() / drawn.sum(), density[inner].sum() / density.sum()
    assert drawn.sum() == 800
    assert abs(share - expected) < 4 * (expected * (1 - expected) / 800) ** 0.5 + 0.01  # 0.01: drawn without replacement


@pytest.mark.parametrize(("acceleration", "center_fraction"), [(8, 0.2), (6, 0.5)])
def test_centre_larger_than_the_budget_names_both_numbers(acceleration, center_fraction):
    with pytest.raises(ValueError, match=rf"centre of {round(96 * center_fraction)} lines.*{round(96 / acceleration)} lines"):
        line_counts(96, acceleration, center_fraction)


@pytest.mark.parametrize(("acceleration", "center_fraction"), [(0.5, 0.1), (0, 0.1), (4, -0.1), (4, 1.1), (float("nan"), 0.1)])
def test_impossible_arguments_are_refused(acceleration, center_fraction):
    with pytest.raises(ValueError, match="acceleration must be >= 1 and center_fraction in"):
        gaussian_line_mask(32, acceleration, center_fraction, seed=0)


@pytest.mark.parametrize("encoded", [(20, 352), (0, 300), (100, 372)])
def test_only_encoded_columns_are_measured_and_the_acceleration_counts_them(encoded):
    start, stop = encoded
    masks = torch.stack([gaussian_line_mask(372, 4, 0.08, seed, encoded) for seed in range(20)])
    assert not masks[:, :start].any()
    assert not masks[:, stop:].any()
    assert (masks.sum(1) == round((stop - start) / 4)).all()
    n_center = round((stop - start) * 0.08)
    assert masks[:, 186 - n_center // 2 : 186 + n_center - n_center // 2].all()


def test_all_columns_encoded_is_the_mask_without_limits():
    for seed in range(5):
        assert torch.equal(gaussian_line_mask(64, 4, 0.1, seed, (0, 64)), gaussian_line_mask(64, 4, 0.1, seed))


@pytest.mark.parametrize("encoded", [(40, 64), (0, 30), (-2, 64), (0, 70)])
def test_encoded_columns_without_the_centre_are_refused(encoded):
    with pytest.raises(ValueError, match="central .* do not lie within the encoded ones"):
        gaussian_line_mask(64, 4, 0.1, 0, encoded)
