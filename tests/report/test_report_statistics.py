"""Paired differences with a bootstrap interval, and how soon methods get there."""

import math

import numpy as np
import pytest
from report_store import items

from es_medical.report.reading.timing import Curve, psnr_at, race, time_to
from es_medical.report.statistics import difference, differences, interval


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        found = interval(rng.normal(0.5, 1.0, 40).tolist())
        covered += found.low <= 0.5 <= found.high
    assert 50 <= covered <= 60  # 57 expected; 4 standard deviations are 6.8


def test_the_interval_narrows_with_the_root_of_the_number_of_items():
    rng = np.random.default_rng(2)
    few, many = (interval(rng.normal(0.0, 1.0, n).tolist()) for n in (25, 400))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(4.0, rel=0.35)


def test_the_interval_is_the_same_each_time():
    values = np.random.default_rng(3).normal(size=20).tolist()
    assert interval(values) == interval(values)


@pytest.mark.parametrize(("values", "expected"), [([], (None, None)), ([1.0], (None, None)), ([2.0, 2.0], (2.0, 2.0))])
def test_few_or_equal_values_have_no_interval_or_a_point(values, expected):
    found = interval(values)
    assert (found.low, found.high) == expected
    assert math.isnan(found.mean) == (not values)


def test_items_are_matched_by_their_id_and_what_is_not_compared_is_counted():
    found = difference("ei", "EI", "psnr", {"a": 3.0, "b": 5.0, "only": 9.0}, {"b": 4.0, "a": 1.0, "x": 0.0, "z": 0.0})
    assert found.interval.mean == pytest.approx(1.5)  # (3 - 1 + 5 - 4) / 2
    assert (found.n, found.es_only, found.other_only) == (2, 1, 2)
    found = difference("ei", "EI", "psnr", {"a": 3.0, "b": math.nan, "c": math.inf}, {"a": 1.0, "b": 4.0, "c": 5.0})
    assert (found.n, found.undefined, found.interval.mean) == (1, 2, 2.0)
    assert found.verdict == "too few items"


def test_es_is_compared_with_every_method_and_the_baseline(store):
    store.log("ei", {one: row | {"psnr": row["psnr"] - 2.0 + 0.1 * i} for i, (one, row) in enumerate(items(28, n=12).items())})
    assert differences(store.group()) == []
    store.log("es", items(28, n=12, spread=4.0))
    found = {(one.method, one.name): one for one in differences(store.group())}
    assert set(found) == {(method, name) for method in ("ei", "baseline") for name in ("psnr", "ssim")}
    assert found["baseline", "psnr"].interval.mean == pytest.approx(8.0)
    assert found["baseline", "psnr"].verdict == "ES better"
    assert found["ei", "ssim"].verdict == "no difference shown"


# --- time


CURVE = Curve((0, 10, 20), (0, 1, 2), (0.0, 10.0, 30.0), (20.0, 25.0, 29.0), (0.5, 0.7, 0.8))


@pytest.mark.parametrize(("target", "seconds"), [(22.5, 5.0), (25.0, 10.0), (27.0, 20.0), (29.1, None), (19.0, 0.0)])
def test_the_time_to_a_target_is_interpolated_between_validations(target, seconds):
    assert time_to(CURVE, target) == (None if seconds is None else pytest.approx(seconds))


def test_the_first_time_counts_when_a_curve_falls_and_rises_again():
    again = Curve((0, 1, 2, 3), (0, 1, 2, 3), (0.0, 1.0, 2.0, 3.0), (20.0, 26.0, 22.0, 28.0), (0.5, 0.7, 0.6, 0.8))
    assert time_to(again, 25.0) == pytest.approx(5 / 6)


@pytest.mark.parametrize(("seconds", "psnr"), [(5.0, 22.5), (30.0, 29.0), (31.0, None)])
def test_the_psnr_at_a_time_is_interpolated_and_never_beyond_the_end(seconds, psnr):
    assert psnr_at(CURVE, seconds) == (None if psnr is None else pytest.approx(psnr))


def test_methods_are_compared_at_the_time_of_the_shortest_training(store):
    store.log("supervised", items(30), curve=((0, 0.0, 20.0), (1, 20.0, 26.0), (2, 20.0, 30.0)))
    store.log("es", items(28), curve=((0, 0.0, 20.0), (1, 10.0, 28.0), (2, 10.0, 29.5)))
    store.log("ei", items(24), curve=((0, 0.0, 20.0), (1, 50.0, 22.0), (2, 50.0, 24.0)))
    store.log("tv", items(22), curve=())
    store.log("tikhonov", items(21), curve=((1, 1.0, 20.5), (2, 1.0, 20.6)))  # two weights, not a training
    found = race(store.group().runs)
    assert found.target == pytest.approx(29.0)  # 20 + 0.9 * 10
    assert found.equal_time == 20.0
    rows = {row.method: row for row in found.rows}
    assert list(rows) == ["supervised", "es", "ei"]
    assert rows["supervised"].seconds == pytest.approx(35.0)
    assert rows["es"].seconds == pytest.approx(10.0 + 10.0 * 2 / 3)
    assert rows["ei"].seconds is None
    assert rows["supervised"].at_equal_time == pytest.approx(26.0)
    assert rows["ei"].at_equal_time == pytest.approx(20.8)


def test_times_are_means_over_seeds_and_none_as_soon_as_one_seed_fails_or_without_supervised(store):
    for seed, (es, ei) in enumerate((((10.0, 30.0), (10.0, 30.0)), ((20.0, 30.0), (10.0, 21.0)))):
        store.log("es", items(28), seed=seed, curve=((0, 0.0, 20.0), (1, *es)))
        store.log("ei", items(28), seed=seed, curve=((0, 0.0, 20.0), (1, *ei)))
    found = race(store.group().runs)
    assert (found.target, found.rows[0].seconds) == (None, None)
    store.log("supervised", items(30), curve=((0, 0.0, 20.0), (1, 10.0, 30.0)))
    rows = {row.method: row for row in race(store.group().runs).rows}
    assert rows["es"].seconds == pytest.approx((9.0 + 18.0) / 2)
    assert rows["ei"].seconds is None
