"""Intervals of means: by the formula, and for what has none."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from milepost.lab.statistics.intervals import interval, over_seeds, over_windows, student


def test_students_t_is_that_of_the_tables():
    table = {1: 12.706, 5: 2.571, 9: 2.262, 10: 2.228, 20: 2.086, 30: 2.042, 120: 1.980}
    assert {freedom: student(freedom) for freedom in table} == pytest.approx(table, rel=2e-4)


def test_over_seeds_it_is_the_standard_error_times_students_t():
    values = [1.5, 2.25, 0.125, 3.0, 2.5]
    mean, half = interval(values)
    assert mean == pytest.approx(statistics.mean(values), rel=1e-15)
    assert half == pytest.approx(2.7764451 * statistics.stdev(values) / math.sqrt(5), rel=1e-7)
    assert math.isnan(interval([1.5])[1])


@pytest.mark.parametrize("n", [8, 11, 12, 40, 200])
def test_over_windows_it_is_the_formula(n: int):
    x = np.cumsum(np.random.default_rng(n).standard_normal(n)) * 0.3 + 2
    e, r = [value - x.mean() for value in x], 0.0
    if n >= 12:
        squares = sum(value * value for value in e)
        r = (n * sum(a * b for a, b in itertools.pairwise(e)) / squares + 1) / (n - 4)
        r = min(max(r, 0.0), 0.97)
        e = [b - r * a for a, b in itertools.pairwise(e)]
    m = len(e)
    waves = max(2, math.floor(0.4 * m ** (2 / 3)))
    cosines = [
        sum(value * math.sqrt(2 / m) * math.cos(math.pi * k * (t + 0.5) / m) for t, value in enumerate(e))
        for k in range(1, waves + 1)
    ]
    v = sum(each * each for each in cosines) / waves
    assert float(over_windows(x)) == pytest.approx(student(waves) * math.sqrt(v / n) / (1 - r), rel=1e-9)


def test_windows_that_go_up_and_down_together_are_less_certain_than_as_many_independent_ones():
    rng = np.random.default_rng(0)
    alone = rng.standard_normal((50, 64))
    together = np.repeat(rng.standard_normal((50, 8)), 8, axis=1)
    assert np.median(over_windows(alone) / over_seeds(alone)) < 1.3
    assert np.median(over_windows(together) / over_seeds(together)) > 2


@pytest.mark.parametrize("over", [over_windows, over_seeds])
def test_one_value_has_no_interval_and_equal_ones_have_none_of_any_width(over):
    assert math.isnan(float(over([2.0])))
    assert [float(over([2.0] * n)) for n in (2, 3, 8, 12, 40)] == [0.0] * 5
    assert not math.isfinite(float(over([1.0, math.nan, 2.0, 3.0])))
    assert over(np.ones((3, 4, 20))).shape == (3, 4)
    assert over(np.ones((3, 4, 1))).shape == (3, 4)
