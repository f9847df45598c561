"""Estimates on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from zosam.lab.measure.estimate import Estimate, difference, estimate, share

# Student's t, 97.5 %, from printed tables: {degrees of freedom: quantile}
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 20: 2.086, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize(("degrees", "quantile"), QUANTILES.items())
def test_the_interval_is_students(degrees, quantile):
    n = degrees + 1
    values = [0.0] * (n - 1) + [1.0]  # mean 1/n, variance (1/n)(1 - 1/n) n/(n-1) = 1/n, so s/√n = 1/n
    found = estimate(values)
    assert found.mean == pytest.approx(1 / n)
    assert found.half_width == pytest.approx(quantile / n, rel=3e-4)
    assert found.n == n


def test_an_estimate_by_hand():
    found = estimate([93.2, 93.5, 93.8])  # s = 0.3, 4.3027 · 0.3 / √3 = 0.7452
    assert found.mean == pytest.approx(93.5)
    assert found.half_width == pytest.approx(0.7452, abs=1e-4)
    assert found.holds(92.76)
    assert not found.holds(92.75)
    assert estimate([5.0]) == Estimate(5.0, None, 1)
    assert not estimate([5.0]).holds(5.0)  # one seed has no interval
    for wrong in ([], [1.0, math.inf], [math.nan]):
        with pytest.raises(ValueError, match="finite values"):
            estimate(wrong)


def test_differences_are_taken_seed_by_seed():
    ours, versus = {0: 93.0, 1: 92.0, 2: 94.0}, {2: 93.5, 1: 91.6, 0: 92.4, 7: 50.0}
    found = difference(ours, versus)  # 0.6, 0.4, 0.5: mean 0.5, s = 0.1, 4.3027 · 0.1 / √3 = 0.2484
    assert (found.mean, found.n) == (pytest.approx(0.5), 3)
    assert found.half_width == pytest.approx(0.2484, abs=1e-4)
    assert difference(ours, {7: 1.0}) is None
    assert share({0: 60.0, 1: 61.0}, {0: 100.0, 1: 100.0}).mean == pytest.approx(60.5)


def test_the_sign_is_that_of_the_whole_interval():
    assert [estimate(v).sign for v in ((0.4, 0.5, 0.6), (-0.4, -0.5, -0.6), (0.5, -0.1, 0.6), (9.0,))] == [1, -1, 0, 0]
    assert estimate([93.2, 93.5, 93.8]).text() == "93.50 ± 0.75"
    assert estimate([0.5]).text(sign=True) == "+0.50"


def test_equal_differences_are_no_finding():
    found = difference({0: 99.44, 1: 98.61}, {0: 99.16, 1: 98.33})  # by one picture of 360 under both seeds
    assert (found.sign, found.half_width, found.text(sign=True)) == (0, None, "+0.28")
