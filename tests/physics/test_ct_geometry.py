import json
import math
from dataclasses import replace

import numpy as np
import pytest

from es_medical.physics.ct_geometry import FanBeam, ParallelBeam, geometry_from_dict

PARALLEL = ParallelBeam((16, 20), n_views=5)
FAN = FanBeam((16, 20), n_views=7, source_distance=40, detector_distance=20, pitch=1.5)


@pytest.mark.parametrize("geometry", [PARALLEL, FAN, ParallelBeam((9, 9), (0.1, 1 / 3, 77.7), 11, 0.8, shift=0.3)])
def test_geometry_survives_json(geometry):
    assert geometry_from_dict(json.loads(json.dumps(geometry.to_dict()))) == geometry


def test_views_are_spread_evenly_without_the_last_end():
    assert PARALLEL.angles == (0, 36, 72, 108, 144)
    np.testing.assert_allclose(FAN.angles, 360 * np.arange(7) / 7)
    assert ParallelBeam((8, 8), n_views=2, arc=90.0).angles == (0, 45)
    assert PARALLEL.spacing == pytest.approx(36)
    assert ParallelBeam((8, 8), tuple(np.repeat([0.0, 60, 120], 3))).spacing == pytest.approx(60)  # repeated views


SHIFTED = [replace(one, shift=shift, n_detectors=0, angles=one.angles) for one in (PARALLEL, FAN) for shift in (2.5, -4.0)]


def test_a_shift_moves_the_bins_and_one_of_zero_is_not_written():
    for geometry in SHIFTED:
        middle = (geometry.bins[0] + geometry.bins[-1]) / 2
        assert middle == pytest.approx(geometry.shift)
        assert geometry.to_dict()["shift"] == geometry.shift
        assert geometry.turned(10.0).shift == geometry.shift
    assert "shift" not in FAN.to_dict()
    assert replace(FAN, shift=1e-15) == FAN
    assert ParallelBeam((8, 8), n_views=3, n_detectors=8, shift=5.0).field_of_view == 0  # some views do not see the centre


@pytest.mark.parametrize("geometry", [PARALLEL, FAN, *SHIFTED])
def test_default_detector_sees_the_corners_and_is_no_bin_larger(geometry):
    assert geometry.field_of_view >= math.hypot(8, 10) - 1e-9
    fewer = {**geometry.to_dict(), "n_detectors": geometry.n_detectors - 1}
    assert geometry_from_dict(fewer).field_of_view < math.hypot(8, 10)


def test_outermost_ray_of_a_fan_touches_the_field_of_view():
    for geometry in (FAN, *SHIFTED[2:]):
        half, source = geometry.pitch / 2, np.array([0, -40.0])
        ends = [np.array([u, 20.0]) - source for u in (geometry.bins[0] - half, geometry.bins[-1] + half)]
        distances = [abs(source[1] * along[0]) / np.linalg.norm(along) for along in ends]
        assert min(distances) == pytest.approx(geometry.field_of_view)


def test_turning_moves_every_view_back_and_nothing_else():
    turned = FAN.turned(10.0)
    np.testing.assert_allclose(turned.angles, np.array(FAN.angles) - 10)
    assert turned.turned(-10.0).to_dict() == {**FAN.to_dict(), "angles": pytest.approx(FAN.angles)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"geometry": "cone"}, "one of parallel, fan, got 'cone'"),
        ({"size": [8, 8]}, "got None"),
        ({"geometry": "parallel", "size": [8, 8], "n_view": 3}, "n_view"),
        ({"geometry": "parallel", "size": [8, 8]}, "either angles or n_views"),
        ({"geometry": "parallel", "size": [8, 8], "n_views": 3, "angles": [0.0]}, "either angles or n_views"),
        ({"geometry": "parallel", "size": [8, 8], "n_views": 0}, "n_views must be positive, got 0"),
        ({"geometry": "parallel", "size": [8, 0], "n_views": 3}, "width must be positive, got 0"),
        ({"geometry": "parallel", "size": [8, 8, 8], "n_views": 3}, "height, width"),
        ({"geometry": "parallel", "size": [8, 8], "angles": [math.nan]}, "finite"),
        ({"geometry": "parallel", "size": [8, 8], "n_views": 3, "shift": math.inf}, "shift are finite"),
        ({"geometry": "parallel", "size": [8, 8], "n_views": 3, "pitch": -1.0}, "pitch must be positive, got -1"),
        ({"geometry": "fan", "size": [8, 8], "n_views": 3}, "source_distance"),
        (
            {"geometry": "fan", "size": [8, 8], "n_views": 3, "source_distance": 5, "detector_distance": 1},
            "got 5 and 1 pixels",
        ),
    ],
)
def test_geometry_that_makes_no_sense_is_refused(values, message, unchecked):
    with pytest.raises(ValueError, match=message):
        geometry_from_dict(values)
