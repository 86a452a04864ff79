"""An even number of views over 180 degrees is blind to D4, an odd one is not."""

import pytest
import torch

from es_medical.diagnostics.coverage import view_angles
from es_medical.diagnostics.other_views import Scan, fewer, other_views, scan_of
from es_medical.diagnostics.spectrum import spectrum
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import FanBeam, ParallelBeam

pytest.importorskip("astra")


@pytest.mark.parametrize(("views", "part", "times"), [(6, 0.25, 2), (7, 0.25, 2), (7, 0.125, 4), (6, 0.125, 2)])
def test_a_scan_that_starts_a_part_of_the_spacing_later_sees_more_directions(views, part, times):
    physics = CT(ParallelBeam((8, 8), Scan(views, part).angles(180.0)))
    assert len(view_angles(physics, "d4")) == times * views


@pytest.fixture(scope="module")
def changes():
    return other_views(CT(ParallelBeam((64, 64), n_views=18)))


def test_the_changes_of_an_even_scan_are_a_later_start_and_one_view_more_or_less(changes):
    begin = ["Start the scan at 2.5 degrees (a quarter", "Measure 17 views", "Measure 19 views"]
    assert len(changes) == 3
    for change, words, directions in zip(changes, begin, (36, 34, 38), strict=True):
        assert change.text.startswith(words)
        assert f"with D4 {directions} directions in place of 18" in change.text


def test_the_ranks_of_the_changes_are_those_of_the_small_scanner(changes):
    """10 views on 32 x 32 pixels, and 9, 11 and a later start."""
    position = torch.arange(32) - 15.5
    support = (torch.hypot(position[:, None], position) <= 16).double()
    small = {views: spectrum(CT(ParallelBeam((32, 32), n_views=views, n_detectors=46)), "d4", support) for views in (9, 10, 11)}
    assert {change.before for change in changes} == {small[10].rank() / 812}
    assert [change.after for change in changes[1:]] == [small[9].rank() / 812, small[11].rank() / 812]
    assert all(change.after > 1.4 * change.before for change in changes)


def test_an_odd_scan_is_only_told_to_start_an_eighth_later():
    (change,) = other_views(CT(ParallelBeam((32, 32), n_views=7)))
    assert change.text.startswith("Start the scan at 3.21 degrees (an eighth")
    assert "28 directions in place of 14" in change.text
    assert change.after > change.before


def test_a_scan_that_starts_well_is_left_as_it_is():
    assert other_views(CT(ParallelBeam((32, 32), Scan(6, 0.25).angles(180.0)))) == []


def test_rectangles_have_flips_alone():
    changes = other_views(CT(ParallelBeam((8, 16), n_views=5)))
    assert [change.text[:9] for change in changes] == ["Start the"]
    assert "with flips 10 directions in place of 5" in changes[0].text


def test_a_fan_beam_is_blind_to_d4_when_its_views_are_a_multiple_of_four():
    fan = {"source_distance": 32, "detector_distance": 16}
    changes = other_views(CT(FanBeam((16, 16), n_views=8, **fan)))
    assert [change.text.split(":")[0][:15] for change in changes] == ["Start the scan ", "Measure 7 views", "Measure 9 views"]
    assert "28 directions in place of 8" in changes[1].text


@pytest.mark.parametrize(
    "physics",
    [
        CT(ParallelBeam((8, 8), (0.0, 10.0, 50.0))),
        CT(ParallelBeam((8, 8), n_views=6, arc=120)),
        CT(ParallelBeam((8, 8), n_views=4), mask=[1, 0, 1, 1]),
    ],
    ids=["uneven", "limited arc", "masked"],
)
def test_scans_that_are_not_even_are_left_as_they_are(physics):
    assert scan_of(physics) is None
    assert other_views(physics) == []


def test_a_single_view_can_only_become_more():
    assert all(not change.text.startswith("Measure 0") for change in other_views(CT(ParallelBeam((8, 8), n_views=1))))


@pytest.mark.parametrize(("views", "side"), [(50, 256), (51, 256), (48, 256), (8, 32), (7, 24), (720, 512), (3, 512)])
def test_the_small_scanner_has_views_in_proportion_and_of_the_same_kind(views, side):
    few = fewer(views, side)
    assert (few % 2 == 0, few % 4 == 0) == (views % 2 == 0, views % 4 == 0)
    assert abs(few - max(views * 32 / side, 4)) <= 2
