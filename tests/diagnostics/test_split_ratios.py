import pytest
from helpers import line_mri

from es_medical.diagnostics.coverage import coverage
from es_medical.diagnostics.diagnosis import support_of
from es_medical.diagnostics.split_ratios import by_split_ratio, split_words
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.splits import Split


def test_a_split_of_lines_shows_its_share_of_the_lines():
    physics = line_mri((20, 20), acceleration=2)  # 10 lines
    found = by_split_ratio(physics, Split("lines", 0.8), "d4", (0.2, 0.5, 0.9))
    assert [one.ratio for one in found] == [0.2, 0.5, 0.9]
    assert [one.alone.share for one in found] == pytest.approx([2 / 20, 5 / 20, 9 / 20])
    for one in found:
        assert one.alone.share < one.moved.share <= coverage(physics, "d4").share


def test_views_are_split_too():
    physics = CT(ParallelBeam((12, 12), n_views=6))
    few, many = by_split_ratio(physics, Split("views", 0.5), "flips", (0.4, 0.9), support_of(physics))
    assert few.alone.rank < many.alone.rank


def test_seed_draws_the_split():
    physics = line_mri((20, 20), acceleration=2)
    shares = {seed: by_split_ratio(physics, Split("lines"), "flips", (0.5,), seed=seed)[0].moved.share for seed in range(6)}
    assert len(set(shares.values())) > 1
    assert by_split_ratio(physics, Split("lines"), "flips", (0.5,), seed=3)[0].moved.share == shares[3]


def test_what_can_not_be_looked_at_is_refused():
    with pytest.raises(ValueError, match="split_ratio"):
        by_split_ratio(line_mri((8, 8)), Split("lines"), "d4", (1.5,))
    with pytest.raises(ValueError, match="8 x 10"):
        by_split_ratio(line_mri((8, 10)), Split("lines"), "d4", (0.5,))


def test_words_name_each_ratio():
    found = by_split_ratio(line_mri((20, 20), acceleration=2), Split("lines"), "d4", (0.2, 0.5))
    words = split_words(found)
    assert "- ratio 0.2: 10.0 % of n" in words
    assert "- ratio 0.5: 25.0 % of n" in words
    assert split_words([]) == ""
