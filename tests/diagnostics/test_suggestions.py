import pytest
import torch
from helpers import coil_maps, randn

from es_medical.diagnostics.diagnosis import diagnose
from es_medical.diagnostics.spectrum import spectrum
from es_medical.diagnostics.suggestions import mirror_images, mirrored, suggest, without_mirrors
from es_medical.groups import Flips
from es_medical.physics import (
    MRI,
    CompressedSensing,
    Decimation,
    Inpainting,
    MultiCoilMRI,
    even_columns,
    gaussian_line_mask,
    gaussian_matrix,
    random_columns,
)


def symmetric(width=32, positions=(0, 1, 2, 5, 9, 13)):
    """Lines at 0, +-1, +-2, +-5, +-9 and +-13."""
    lines = torch.zeros(width, dtype=torch.bool)
    for k in positions:
        lines[width // 2 + k] = lines[width // 2 - k] = True
    return lines


def suggested(physics, actions=("flips", "rotations_90", "d4", "shifts")):
    return suggest(physics, diagnose(physics, actions))


def acquisitions(physics):
    return [one for one in suggested(physics) if one.kind == "acquisition"]


@pytest.mark.parametrize("width", [7, 8])
def test_mirrored_lines_are_those_that_a_flip_measures(width):
    size = (4, width)
    lines = torch.rand(width, generator=torch.Generator().manual_seed(width)) < 0.4
    x, g = randn(1, 2, *size, dtype=torch.float64), torch.tensor([4])
    flipped = Flips().inverse(MRI(lines, size).A_adjoint_A(Flips().apply(x, g)), g)
    torch.testing.assert_close(flipped, MRI(mirrored(lines), size).A_adjoint_A(x))


def test_a_symmetric_mask_gains_nothing_by_flips_until_it_is_moved_by_a_line():
    size = (24, 32)
    found = suggested(MRI(symmetric(), size), ("flips",))
    assert [one.kind for one in found] == ["acquisition", "acquisition", "acquisition"]
    assert spectrum(MRI(symmetric(), size), "flips").rank() == spectrum(MRI(symmetric(), size), "none").rank()
    moved, redrawn, square = found
    assert moved.text.startswith("Move the mask by one line (10 of 11 k-space lines")
    assert redrawn.text.startswith("Measure another line in place of one of each mirrored pair (10 of 11")
    for one, mask in ((moved, symmetric().roll(1)), (redrawn, without_mirrors(symmetric(), 0))):
        n = 2 * size[0] * size[1]
        assert one.before == pytest.approx(11 / 32)
        assert one.after == pytest.approx(spectrum(MRI(mask, size), "flips").rank() / n)
        assert one.after > one.before + 0.15
    assert "Crop or pad the images to 32 x 32" in square.text
    assert square.after == pytest.approx(1 - (1 - 11 / 32) ** 2)


@pytest.mark.parametrize("width", [31, 32])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lines_without_mirror_images_keep_their_number_and_the_centre(width, seed):
    lines = gaussian_line_mask(width, 3, 0.1, seed) | mirrored(gaussian_line_mask(width, 4, 0.1, seed + 5))
    other = without_mirrors(lines, seed)
    assert int(other.sum()) == int(lines.sum())
    assert bool(other[width // 2])
    assert mirror_images(other) <= mirror_images(lines)
    assert int((other | mirrored(other)).sum()) >= int((lines | mirrored(lines)).sum())


def test_a_mask_without_mirror_images_is_left_as_it_is():
    assert acquisitions(MRI(without_mirrors(symmetric(), 0), (32, 32))) == []


def test_a_move_that_loses_zero_frequency_is_not_suggested():
    lines = torch.zeros(16, dtype=torch.bool)
    lines[[8, 5, 11]] = True
    assert all("Move" not in one.text for one in acquisitions(MRI(lines, (16, 16))))


def test_lines_of_several_coils_are_counted_as_those_of_one():
    lines = symmetric(16, (0, 1, 4))
    one, several = MRI(lines, (16, 16)), MultiCoilMRI(lines, coil_maps(1, 2, (16, 16)))
    assert acquisitions(several) == acquisitions(one) != []


def test_samples_in_two_directions_are_moved_as_a_whole():
    mask = symmetric().float()[:, None] * symmetric().float()
    (one,) = acquisitions(MRI(mask, (32, 32)))
    assert one.text.startswith("Move the mask by one sample along the rows")


def test_even_columns_are_told_the_push_broom_failure_and_random_ones_are_not():
    even = Inpainting(even_columns(16), (16, 16), 3)
    (one,) = acquisitions(even)
    assert one.text.startswith("Measure as many columns at random places")
    assert "only 50.0 % of the pairs" in one.text
    assert (one.before, one.after) == (0.5, 1.0)
    assert acquisitions(Inpainting(random_columns(16, 0.5, 0), (16, 16), 3)) == []


def test_decimation_has_the_same_failure_in_both_directions():
    (one,) = suggest(Decimation((8, 8), 2), diagnose(Inpainting(even_columns(8), (8, 8)), ()))
    assert one.text.startswith("Measure as many pixels at random places")
    assert one.before == 0.25
    assert one.after > 0.9


def test_the_best_group_of_the_diagnosis_is_suggested_with_what_it_shows():
    lines = MRI(without_mirrors(symmetric(), 0), (32, 32))
    (group,) = [one for one in suggested(lines) if one.kind == "group"]
    assert group.text.startswith(("Use D4", "Use rotations by 90 degrees"))  # both bring lines to their mirror images
    assert group.after == pytest.approx(spectrum(lines, "d4").rank() / 2048)
    sensing = CompressedSensing(gaussian_matrix(16, 64, 0), (8, 8))
    (group,) = suggested(sensing)
    assert (group.kind, group.before, group.after) == ("group", 0.25, 1.0)
    assert group.text.startswith("Use ")


def test_an_operator_that_sees_everything_gets_no_suggestion():
    assert suggested(Inpainting([1] * 8, (8, 8))) == suggested(MRI(torch.ones(8), (8, 8)), ("flips", "d4")) == []
