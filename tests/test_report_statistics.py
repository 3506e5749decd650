from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagc_verl.report.statistics import (
    MIN_STEPS,
    Estimate,
    block_indices,
    block_length,
    mean_estimate,
    ratio_estimate,
    seed_difference,
    seed_estimate,
    trailing_mean,
)

values = st.lists(st.one_of(st.floats(-1e3, 1e3), st.just(math.nan)), min_size=1, max_size=60)


@given(values, st.integers(1, 20))
def test_trailing_mean_is_the_mean_of_the_last_steps_that_are_known(series: list[float], window: int) -> None:
    smooth = trailing_mean(np.array(series), window)
    for step in range(len(series)):
        known = [value for value in series[max(0, step - window + 1) : step + 1] if math.isfinite(value)]
        if known:
            assert smooth[step] == pytest.approx(np.mean(known), abs=1e-6)
        else:
            assert math.isnan(smooth[step])


@given(st.integers(1, 300))
def test_blocks_are_consecutive_steps_of_the_series(steps: int) -> None:
    rows = block_indices(steps, resamples=5)
    assert rows.shape == (5, steps)
    assert rows.min() >= 0
    assert rows.max() < steps
    inside = np.arange(1, steps) % block_length(steps) != 0
    assert (np.diff(rows, axis=1)[:, inside] == 1).all()


def test_an_interval_holds_the_mean_and_is_the_same_each_time() -> None:
    series = np.random.default_rng(3).normal(5, 1, 200)
    first, again = mean_estimate(series), mean_estimate(series)
    assert first == again
    assert first.low < series.mean() < first.high
    assert first.high - first.low == pytest.approx(2 * 1.96 / math.sqrt(200), rel=0.35)


def test_few_steps_give_no_interval_and_none_give_no_number() -> None:
    few = mean_estimate(np.arange(MIN_STEPS - 1.0))
    assert few.value == 3
    assert not few.has_interval
    assert math.isnan(mean_estimate(np.array([math.nan])).value)
    assert math.isnan(ratio_estimate(np.array([1.0]), np.array([0.0])).value)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        found = mean_estimate(random.normal(size=12))
        hits += found.low <= 0 <= found.high
    assert hits / 200 > 0.9


def test_seeds_give_students_interval() -> None:
    found = seed_estimate(np.array([1.0, 2.0, 3.0]))
    assert found.value == 2
    assert found.high - found.value == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert not seed_estimate(np.array([1.0])).has_interval


def test_differences_between_seeds_are_welchs() -> None:
    apart = seed_difference(np.array([10.0, 10.1, 9.9]), np.array([1.0, 1.1, 0.9]))
    assert apart.value == pytest.approx(9)
    assert apart.excludes_zero
    assert not seed_difference(np.array([1.0, 5.0]), np.array([2.0, 3.0])).excludes_zero
    assert seed_difference(np.array([1.0]), np.array([2.0, 3.0])) == Estimate(-1.5)
