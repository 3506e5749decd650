"""The columns that follow from the times of a step's rollouts, and the causes of stragglers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sagc_verl.records.causes import classify, median_of_others
from sagc_verl.records.tables import CAUSES, STEPS
from sagc_verl.records.timeline import (
    generation_share_of_longest,
    idle_share,
    most_at_once,
    step_columns,
    tail_seconds,
)


def test_tail_from_ninety_percent_done_to_the_last():
    assert tail_seconds(np.arange(1, 11)) == 1.0  # the ninth of ten is done at 9, the last at 10
    assert tail_seconds([*range(1, 20), 100.0]) == 100 - 18
    assert tail_seconds([5.0]) == 0.0
    assert tail_seconds([np.nan, 1.0, 3.0]) == 0.0
    assert np.isnan(tail_seconds([]))


def test_idle_share_of_the_slots_in_use_at_the_peak():
    assert idle_share([0, 0], [10, 10]) == 0.0
    assert idle_share([0, 0], [10, 5]) == 0.25  # 15 of 20 slot seconds
    assert idle_share([0, 0, 5], [10, 5, 10]) == 0.0  # the third takes the second's slot
    assert most_at_once([0, 0, 5], [10, 5, 10]) == 2
    assert np.isnan(idle_share([1.0], [1.0])) and np.isnan(idle_share([], []))


def test_what_the_longest_cost():
    start, end = np.zeros(100), np.r_[np.full(95, 50.0), 60, 60, 60, 80, 100]
    assert generation_share_of_longest(start, end, 1) == pytest.approx(0.2)
    assert generation_share_of_longest(start, end, 2) == pytest.approx(0.4)
    assert generation_share_of_longest(start, end, 5) == pytest.approx(0.5)
    assert np.isnan(generation_share_of_longest([0.0], [1.0], 1))


def test_step_columns_are_columns_of_the_steps_table():
    rollouts = {
        "start_s": np.zeros(4),
        "end_s": [11.0, 12, 13, np.nan],
        "queue_s": [0.0, 0, 5, np.nan],
        "reward_s": [1.0, 2, 3, np.nan],
        "cause": ["engine_stall", "", "", ""],
    }
    columns = step_columns(rollouts)
    assert set(columns) < {column.name for column in STEPS}
    assert columns["stall"] == 0.25
    assert columns["tail_s"] == 0.0
    assert columns["idle_share"] == pytest.approx(1 - 25 / 30)  # runs 0-10, 0-10, 5-10 in three slots
    empty = step_columns({"start_s": [], "end_s": []})
    assert set(empty) == set(columns) and all(np.isnan(value) for value in empty.values())


times = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(times)
def test_shares_are_shares(spans):
    start = np.array([span[0] for span in spans])
    end = start + np.array([span[1] for span in spans])
    shares = [generation_share_of_longest(start, end, percent) for percent in (1, 2, 5, 20)]
    assert all(np.isnan(share) or 0 <= share <= 1 for share in shares)
    assert all(a <= b for a, b in pairwise(shares) if not np.isnan(b))
    idle = idle_share(start, end)
    assert np.isnan(idle) or -1e-9 <= idle <= 1
    assert 0 <= tail_seconds(end) <= end.max() - end.min()
    moments = [((start <= moment) & (end > moment)).sum() for moment in start]
    assert most_at_once(start, end) == max(moments)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.one_of(st.floats(-50, 50), st.just(float("nan")))), max_size=30))
def test_median_of_others_is_what_it_says(pairs):
    groups = np.array([pair[0] for pair in pairs], dtype=int)
    values = np.array([pair[1] for pair in pairs], dtype=float)
    expected = []
    for place, (group, value) in enumerate(pairs):
        others = [v for i, (g, v) in enumerate(pairs) if g == group and i != place and not np.isnan(v)]
        expected.append(np.median(others) if others and not np.isnan(value) else np.nan)
    np.testing.assert_allclose(median_of_others(values, groups), expected)


def step(rollouts: int = 16, n: int = 8) -> dict[str, np.ndarray]:
    """A step in which nothing is unusual: 100 tokens in 10 s each."""
    return {
        "uid": np.repeat([f"g{group}" for group in range(rollouts // n)], n),
        "exceeds": np.zeros(rollouts, dtype=bool),
        "response_tokens": np.full(rollouts, 100.0),
        "truncated": np.zeros(rollouts, dtype=bool),
        "preempted": np.zeros(rollouts),
        "start_s": np.zeros(rollouts),
        "end_s": np.full(rollouts, 12.0),
        "queue_s": np.zeros(rollouts),
        "generate_s": np.full(rollouts, 10.0),
        "tool_s": np.full(rollouts, 1.0),
        "reward_s": np.full(rollouts, 1.0),
    }


def changed(**values: float) -> dict[str, np.ndarray]:
    """That step, with values of rollout 3 replaced and its end moved by as much as its times grew."""
    rows = step()
    before = sum(rows[name][3] for name in ("queue_s", "generate_s", "tool_s", "reward_s"))
    for name, value in values.items():
        rows[name][3] = value
    after = sum(rows[name][3] for name in ("queue_s", "generate_s", "tool_s", "reward_s"))
    rows["end_s"][3] += after - before
    return rows


@pytest.mark.parametrize(
    ("values", "signal", "cause"),
    [
        ({}, "tokens", ""),
        ({"exceeds": True, "response_tokens": 400, "generate_s": 40}, "tokens", "long_response"),
        ({"exceeds": True, "response_tokens": 400, "generate_s": 40, "truncated": True}, "tokens", "truncated"),
        ({"exceeds": True, "response_tokens": 400, "generate_s": 40, "preempted": 1}, "tokens", "long_response"),
        ({"generate_s": 40}, "tokens", "engine_stall"),
        ({"generate_s": 40, "preempted": 2}, "tokens", "preempted"),
        ({"tool_s": 40}, "tokens", "slow_tool"),
        ({"reward_s": 40}, "tokens", "slow_reward"),
        ({"queue_s": 40}, "tokens", ""),
        ({"exceeds": True, "tool_s": 40}, "seconds", "slow_tool"),
        ({"exceeds": True, "generate_s": 40}, "seconds", "engine_stall"),
        ({"exceeds": True, "generate_s": 40, "response_tokens": 400}, "seconds", "long_response"),
        ({"exceeds": True, "generate_s": 40, "response_tokens": 400, "truncated": True}, "seconds", "truncated"),
    ],
)
def test_causes(values, signal, cause):
    causes = classify(changed(**values), signal=signal)
    assert causes.tolist() == [""] * 3 + [cause] + [""] * 12
    assert cause == "" or cause in CAUSES


def test_an_engine_that_stalls_a_whole_group_is_seen_against_the_step():
    rows = step(24)
    rows["generate_s"][:8] = 40.0
    rows["end_s"][:8] = 42.0
    assert classify(rows).tolist() == ["engine_stall"] * 8 + [""] * 16


def test_causes_with_lengths_alone():
    rows = {name: step()[name] for name in ("uid", "exceeds", "response_tokens")}
    rows["exceeds"][[3, 9]] = True
    expected = np.full(16, "", dtype=object)
    expected[[3, 9]] = "long_response"
    assert classify(rows).tolist() == expected.tolist()
    nowhere = {name: values[:0] for name, values in step().items()}
    assert classify(nowhere).tolist() == []


def test_failed_rollouts_have_no_cause():
    rows = changed(generate_s=np.nan, end_s=np.nan, response_tokens=0)
    assert classify(rows).tolist() == [""] * 16


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_only_stragglers_have_causes_whatever_the_data(seed):
    rng = np.random.default_rng(seed)
    rows = {name: np.where(rng.random(16) < 0.1, np.nan, values) for name, values in list(step().items())[5:]}
    rows = {name: values * rng.lognormal(0, 1, 16) for name, values in rows.items()}
    rows |= {"uid": step()["uid"], "response_tokens": rng.integers(0, 1000, 16), "exceeds": rng.random(16) < 0.2}
    causes = classify(rows)
    assert set(causes) <= {"", *CAUSES}
    assert (causes[rows["exceeds"]] == "long_response").all()
