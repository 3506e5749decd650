"""What a user may set, and how a wrong setting is refused."""

from __future__ import annotations

import itertools
import re

import pytest

from sagc_verl.control import (
    ConfigError,
    Controller,
    SagcConfig,
    config_hash,
    config_table,
    default_settings,
    parse_config,
    resolve_sizes,
)


def test_defaults():
    config = parse_config(None, 16)
    assert config == SagcConfig() == parse_config({}, 16)
    assert (config.policy, config.threshold, config.budget, config.rule) == ("sagc", 2.5, 0.2, "feasible")
    assert resolve_sizes(config, 16).sizes == (4, 6, 8, 11, 16)


def test_values_come_in_their_types():
    raw = {"sizes": [16, 4, 8], "budget": 0.1, "threshold": 3, "policy": "schedule", "schedule": {"1": 16, 50: 8}}
    config = parse_config(raw, 16)
    assert config.sizes == (4, 8, 16)
    assert isinstance(config.threshold, float)
    assert config.schedule == {1: 16, 50: 8}


REFUSED = [
    ({"bugdet": 0.1}, "sagc.bugdet=0.1: there is no such key, did you mean sagc.budget?; legal: policy, sizes"),
    ({"xyzzy": 1}, "sagc.xyzzy=1: there is no such key; legal: policy"),
    ({"budget": 1.5}, "sagc.budget=1.5: must be above 0 and below 1; legal: number above 0 and below 1"),
    ({"budget": 0}, "sagc.budget=0: must be above 0 and below 1"),
    ({"budget": 1.0}, "sagc.budget=1.0: must be above 0 and below 1"),
    ({"budget": "0.1"}, "sagc.budget=0.1: must be a number"),
    ({"constraint": "idle"}, "sagc.constraint=idle: is not known; legal: straggler, waiting"),
    ({"stall_seconds": 5}, "sagc.stall_seconds=5: there is no such key"),
    ({"budget": True}, "sagc.budget=true: must be a number"),
    ({"budget": float("nan")}, "sagc.budget=nan: must be above 0"),
    ({"threshold": 1.0}, "sagc.threshold=1.0: must be above 1; legal: number above 1"),
    ({"threshold": "auto"}, "sagc.threshold=auto: must be a number"),
    ({"gamma": 1.01}, "sagc.gamma=1.01: must be above 0 and at most 1"),
    ({"dwell": 0}, "sagc.dwell=0: must be at least 1"),
    ({"dwell": 2.5}, "sagc.dwell=2.5: must be a whole number"),
    ({"dwell": True}, "sagc.dwell=true: must be a whole number"),
    ({"warmup": -1}, "sagc.warmup=-1: must be at least 0"),
    ({"sizes": []}, "sagc.sizes=[]: the list is empty"),
    ({"sizes": [1, 4]}, "sagc.sizes=[1, 4]: a group of 1 has no group to compare with"),
    ({"sizes": [0, 4]}, "sagc.sizes=[0, 4]: size 0 is below 2"),
    ({"sizes": [4, 8, 4]}, "sagc.sizes=[4, 8, 4]: 4 is in the list twice"),
    ({"sizes": [4, "8"]}, "sagc.sizes=[4, '8']: size '8' must be a whole number"),
    ({"sizes": 8}, "sagc.sizes=8: must be a list of whole numbers"),
    ({"sizes": "4,8"}, "sagc.sizes=4,8: must be a list of whole numbers"),
    ({"n_max": 32}, "sagc.n_max=32: is above rollout.n=16"),
    ({"n_min": 12, "n_max": 8}, "sagc.n_min=12: is above n_max=8"),
    ({"n_max": 8, "sizes": [4, 8]}, "sagc.n_max=8: cannot be combined with sagc.sizes=[4, 8]"),
    ({"start": 5, "sizes": [4, 8]}, "sagc.start=5: 5 is not in sagc.sizes=[4, 8]"),
    ({"start": 32}, "sagc.start=32: 32 is outside 2 .. 16"),
    ({"policy": "sacg"}, "sagc.policy=sacg: is not known; did you mean sagc?; legal: sagc, static, schedule"),
    ({"rule": "greedy"}, "sagc.rule=greedy: is not known; legal: feasible, drift_penalty"),
    ({"risk": ["hazard"]}, "sagc.risk=['hazard']: is not known"),
    ({"policy": "schedule"}, "sagc.schedule=null: policy=schedule needs one"),
    ({"schedule": {1: 8}}, "sagc.schedule={1: 8}: policy=sagc does not follow a schedule"),
    ({"policy": "schedule", "schedule": {1: 64}}, "sagc.schedule={1: 64}: 64 is outside 2 .. 16"),
    ({"policy": "schedule", "schedule": {1: 1}}, "sagc.schedule={1: 1}: a group of 1"),
    ({"policy": "schedule", "schedule": {-1: 8}}, "sagc.schedule={-1: 8}: first step -1 must be"),
    ({"policy": "schedule", "schedule": {1: 8}, "sizes": [4]}, "sagc.schedule={1: 8}: 8 is not in sagc.sizes=[4]"),
    ({"reference": "max_median", "sizes": [2, 8]}, "sagc.threshold=2.5: a group of 2 can never straggle"),
    ({"count_truncated": "yes"}, "sagc.count_truncated=yes: must be true or false"),
    ({"records": 3}, "sagc.records=3: must be true, false or a directory"),
    ({"init_from": ""}, "sagc.init_from=: must be a path"),
    ({"max_refills": 0}, "sagc.max_refills=0: must be at least 1"),
]


@pytest.mark.parametrize(("raw", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_in_one_line_with_key_value_and_what_is_legal(raw, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, 16)
    text = str(caught.value)
    assert text.startswith(message)
    assert re.fullmatch(r"sagc\.\S+=.*: .+; legal: .+", text)


def test_sizes_above_rollout_n_when_named():
    assert resolve_sizes(parse_config({"sizes": [8, 32]}, 16), 16).sizes == (8, 32)


def test_rollout_n_of_one_is_refused_unless_sizes_are_named():
    with pytest.raises(ConfigError, match=r"rollout.n=1: .*legal: at least 2"):
        parse_config({}, 1)
    assert resolve_sizes(parse_config({"sizes": [4]}, 1), 1).sizes == (4,)


@pytest.mark.parametrize(
    ("rollout_n", "sizes"),
    [(2, (2,)), (3, (3,)), (4, (3, 4)), (5, (3, 4, 5)), (8, (3, 4, 6, 8)), (16, (4, 6, 8, 11, 16)), (6, (3, 4, 6))],
)
def test_default_ladder(rollout_n, sizes):
    assert resolve_sizes(parse_config({}, rollout_n), rollout_n).sizes == sizes


@pytest.mark.parametrize("rollout_n", range(2, 513, 7))
def test_default_ladder_reaches_from_a_quarter_to_the_top_in_even_steps(rollout_n):
    sizes = resolve_sizes(parse_config({}, rollout_n), rollout_n).sizes
    assert sizes[-1] == rollout_n
    assert 2 <= sizes[0] <= max(3, rollout_n / 4 + 0.5)
    assert all(1 < high / low < 1.7 for low, high in itertools.pairwise(sizes))


def even_only(size: int) -> str | None:
    return None if size % 2 == 0 else "mini-batch 4 * n does not divide by 8 workers"


def test_default_sizes_that_verl_cannot_split_are_left_out_with_the_reason():
    plan = resolve_sizes(parse_config({}, 16), 16, even_only)
    assert plan.sizes == (4, 6, 8, 16)
    assert plan.start == 16
    assert len(plan.messages) == 1
    assert "11 (mini-batch 4 * n does not divide by 8 workers)" in plan.messages[0]


@pytest.mark.parametrize(
    "raw",
    [{"sizes": [4, 11]}, {"start": 11}, {"policy": "schedule", "schedule": {1: 11}}, {"policy": "static", "start": 11}],
)
def test_sizes_named_by_the_user_that_verl_cannot_split_are_refused(raw):
    with pytest.raises(ConfigError, match=r"sagc\.\w+=.*11 cannot be run: mini-batch .*; legal: "):
        resolve_sizes(parse_config(raw, 16), 16, even_only)


def test_no_size_left_is_refused():
    with pytest.raises(ConfigError, match="none of the default sizes"):
        resolve_sizes(parse_config({}, 16), 16, lambda size: "no")


def test_a_single_size_is_said():
    assert "will not move" in resolve_sizes(parse_config({"sizes": [8]}, 8), 8).messages[0]


def test_static_needs_only_its_own_size():
    plan = resolve_sizes(parse_config({"policy": "static"}, 15), 15, lambda size: None if size == 15 else "no")
    assert (plan.sizes, plan.start) == ((15,), 15)
    plan = resolve_sizes(parse_config({"policy": "static", "start": 7}, 16), 16)
    assert plan.start == 7
    assert 7 in plan.sizes


@pytest.mark.parametrize(
    ("raw", "start"),
    [
        ({"policy": "schedule", "schedule": {1: 12, 9: 4}}, 12),
        ({"policy": "schedule", "schedule": {0: 12, 9: 4}}, 12),
        ({"policy": "schedule", "schedule": {9: 4}}, 16),
        ({"policy": "schedule", "schedule": {9: 4}, "start": 6}, 6),
        ({"start": 6}, 6),
        ({"start": 7}, 7),
    ],
)
def test_first_size_and_a_controller_that_takes_the_plan(raw, start):
    config = parse_config(raw, 16)
    plan = resolve_sizes(config, 16)
    assert plan.start == start
    assert Controller(config, plan.sizes, plan.start).size == start


def test_table_documents_every_key():
    rows = config_table()
    assert [row[0] for row in rows] == list(SagcConfig.__dataclass_fields__)
    assert all(isinstance(text, str) and text for row in rows for text in row)
    assert ("budget", "null") in [row[:2] for row in rows]
    assert "default: 0.2 (straggler), 0.4 (waiting)" in next(row[3] for row in rows if row[0] == "budget")


def test_every_default_is_legal():
    defaults = {name: item.default for name, item in SagcConfig.__dataclass_fields__.items()}
    assert parse_config(defaults, 16) == SagcConfig()
    assert default_settings() == defaults


@pytest.mark.parametrize(
    ("raw", "budget"),
    [
        ({}, 0.2),
        ({"budget": None}, 0.2),
        ({"constraint": "waiting"}, 0.4),
        ({"constraint": "waiting", "budget": 0.3}, 0.3),
        ({**default_settings(), "constraint": "waiting"}, 0.4),
    ],
)
def test_a_budget_that_is_not_given_is_that_of_the_constraint(raw, budget):
    assert parse_config(raw, 16).budget == budget


def test_pairs_may_wait_whatever_the_reference():
    assert parse_config({"constraint": "waiting", "reference": "max_median", "sizes": [2, 8]}, 16).sizes == (2, 8)


def test_hash_tells_configurations_apart():
    assert config_hash(parse_config({}, 8)) == config_hash(parse_config({}, 8))
    assert config_hash(parse_config({}, 8)) != config_hash(parse_config({"budget": 0.1}, 8))
