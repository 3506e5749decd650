"""When the group size moves, what a run promises, and what survives a restart."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from control_worlds import World, batch_of, play
from hypothesis import given, settings
from hypothesis import strategies as st

from sagc_verl.control import RISKS, RULES, Controller, GroupBatch, StateError, parse_config
from sagc_verl.control.risk import Hazard
from sagc_verl.control.rules import Feasible

ODD_SIZES = (3, 5, 7, 11, 13, 19)


def controller_of(sizes=ODD_SIZES, start=None, **settings) -> Controller:
    return Controller(parse_config({"sizes": list(sizes), **settings}, max(sizes)), sizes, start)


def test_one_size_for_all_prompts():
    controller = controller_of()
    assert controller.sizes_for(4).tolist() == [19] * 4
    assert controller.sizes_for(4).dtype == np.int64
    assert controller.sizes_for(0).shape == (0,)


@pytest.mark.parametrize(("sizes", "start"), [([], None), ([1, 4], None), ([4, 8], 5)])
def test_sizes_that_cannot_be_are_refused(sizes, start):
    with pytest.raises(ValueError, match="size"):
        Controller(parse_config({}, 8), sizes, start)


# long-run promises


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.2, 0.35, 0.5])
@pytest.mark.parametrize("rule", list(RULES))
def test_rate_stays_within_the_budget_and_groups_stay_large(rule, budget):
    world = World(hazard=0.014 if budget < 0.2 else 0.045, seed=int(100 * budget))
    controller = controller_of(rule=rule, budget=budget)
    reports = play(controller, world.batch, 600)
    assert reports[-1].debt_forgiven == 0
    assert reports[-1].straggler_rate_mean <= budget + 0.006
    # the mix of two neighbouring sizes that meets the budget exactly
    best = np.interp(budget, [world.risk(n) for n in ODD_SIZES], ODD_SIZES)
    assert np.mean([report.size for report in reports]) >= 0.85 * best


@pytest.mark.parametrize("risk", ["beta_binomial", "hazard"])
@pytest.mark.parametrize("signal", ["tokens", "seconds"])
def test_either_risk_model_and_signal_keeps_the_budget(risk, signal):
    reports = play(controller_of(risk=risk, signal=signal), World(hazard=0.05).batch, 300)
    assert reports[-1].straggler_rate_mean <= 0.2 + 0.01
    assert np.mean([report.size for report in reports]) > 3.5


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("groups", [1, 8, 64])
@pytest.mark.parametrize("budget", [0.05, 0.2])
def test_no_stragglers_never_cost_a_sample(rule, groups, budget):
    world = World(groups=groups, hazard=0.0, within=0.1)
    reports = play(controller_of(rule=rule, budget=budget), world.batch, 150)
    assert {report.next_size for report in reports} == {19}


def wild_batches(seed: int):
    """Groups of any number, shape and straggling, good data and bad, changing from step to step."""
    rng = np.random.default_rng(seed)

    def batch(n: int) -> GroupBatch | None:
        if rng.random() < 0.1:
            return None
        lengths = np.exp(rng.normal(5, rng.uniform(0, 2), (rng.integers(1, 30), n)))
        lengths *= np.where(rng.random(lengths.shape) < rng.uniform(0, 0.5), 20, 1)
        lengths[rng.random(lengths.shape) < 0.05] = rng.choice([0, -1, np.nan, np.inf])
        return batch_of(lengths, [("a", "b", None)[i] for i in rng.integers(0, 3, len(lengths))])

    return batch


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    rule=st.sampled_from(list(RULES)),
    seed=st.integers(0, 10_000),
    budget=st.floats(0.02, 0.9),
    dwell=st.integers(1, 12),
    warmup=st.integers(0, 8),
    sizes=st.sets(st.integers(2, 40), min_size=1, max_size=7),
)
def test_bound_limits_and_dwell_hold_whatever_happens(rule, seed, budget, dwell, warmup, sizes):
    controller = controller_of(tuple(sizes), rule=rule, budget=budget, dwell=dwell, warmup=warmup)
    reports = play(controller, wild_batches(seed), 60)
    ladder = sorted(sizes)
    moved = [step for step, report in enumerate(reports) if report.size != report.next_size]
    assert moved == [step for step, report in enumerate(reports) if report.reason in ("first_jump", "up", "down")]
    assert all(second - first >= dwell for first, second in itertools.pairwise(moved))
    observed = 0
    for step, report in enumerate(reports):
        observed += report.events is not None
        assert report.next_size in sizes
        assert report.size == (reports[step - 1].next_size if step else ladder[-1])
        assert report.cumulative_excess <= report.queue * controller.rule.unit + report.debt_forgiven + 1e-9
        if report.reason in ("up", "down"):
            away = ladder.index(report.next_size) - ladder.index(report.size)
            assert away == (1 if report.reason == "up" else -1)
        if observed < warmup:
            assert report.next_size == ladder[-1]
        assert list(report.risk) == ladder
        assert list(report.risk.values()) == sorted(report.risk.values())
    assert sum(report.reason == "first_jump" for report in reports) <= 1
    json.dumps(controller.state_dict(), allow_nan=False)


def test_first_jump_goes_anywhere_and_comes_after_the_warmup():
    reports = play(controller_of(), World(hazard=0.2).batch, 40)
    assert [report.reason for report in reports[:4]] == ["warmup"] * 4
    assert (reports[4].reason, reports[4].size, reports[4].next_size) == ("first_jump", 19, 3)


def test_warmup_lasts_until_groups_enough_for_the_budget_were_seen():
    reports = play(controller_of(budget=0.05), World(groups=2, hazard=0.2).batch, 30)
    assert [report.reason for report in reports].index("first_jump") == 2 / 0.05 / 2 - 1


@pytest.mark.parametrize("rule", list(RULES))
def test_recovers_after_a_shift_either_way(rule):
    controller = controller_of(rule=rule)
    calm, rough = World(hazard=0.005), World(hazard=0.05, seed=1)
    play(controller, calm.batch, 100)
    assert controller.size == 19
    rough_spell = play(controller, rough.batch, 200)
    assert np.mean([report.straggler_rate for report in rough_spell[80:]]) <= 0.2 + 0.02
    assert controller.size <= 7
    play(controller, calm.batch, 150)
    assert controller.size == 19


@pytest.mark.parametrize("rule", list(RULES))
def test_recovers_after_a_spell_in_which_no_size_was_feasible(rule):
    controller = controller_of(rule=rule)
    spell = play(controller, World(hazard=0.3).batch, 300)
    assert controller.size == 3
    assert spell[-1].infeasible
    assert spell[-1].reason == "infeasible"
    assert spell[-1].debt_forgiven > 50
    after = play(controller, World(hazard=0.005, seed=1).batch, 250)
    assert not after[-1].infeasible
    back = next(step for step, report in enumerate(after) if report.next_size == 19)
    assert back < 150, "debt must not hold the size down long after the spell"


def test_infeasible_is_not_said_of_a_feasible_workload():
    assert not any(report.infeasible for report in play(controller_of(), World(hazard=0.02).batch, 200))


@pytest.mark.parametrize("labelled", [True, False])
def test_sources_of_very_different_length_in_one_batch_cost_nothing(labelled):
    short, long = World(groups=32, hazard=0.0, source="short"), World(groups=32, hazard=0.0, source="long", seed=1)

    def mixed(n: int) -> GroupBatch:
        lengths = np.concatenate([short.batch(n).lengths, 8 * long.batch(n).lengths]).reshape(64, n)
        return batch_of(lengths, ["short"] * 32 + ["long"] * 32 if labelled else None)

    reports = play(controller_of(sizes=(2, 3, 5, 9), budget=0.05), mixed, 120)
    assert {report.next_size for report in reports} == {9}


# reports and bad data


def test_a_step_without_observation_holds_the_size_and_is_counted():
    controller = controller_of()
    play(controller, World(hazard=0.1).batch, 30)
    size, before = controller.size, controller.state_dict()
    report = controller.observe(None)
    assert (report.reason, report.next_size, report.faults, report.fault) == (
        "no_observation",
        size,
        1,
        "no observation",
    )
    assert math.isnan(report.straggler_rate)
    assert report.events is None
    after = controller.state_dict()
    assert after["risk"] == before["risk"]
    assert after["queue"] == before["queue"]
    assert controller.step == 31


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(np.full((5, 4), np.nan)),
        batch_of(np.zeros((5, 4))),
        batch_of(np.ones((5, 1))),
        GroupBatch.from_rows([], []),
        replace(batch_of(np.ones((5, 4))), offsets=np.array([0, 3])),
        replace(batch_of(np.ones((5, 4))), offsets=None),
        "not a batch",
    ],
    ids=["nan", "zeros", "groups of one", "empty", "bad offsets", "no offsets", "no batch"],
)
@pytest.mark.parametrize("policy", ["sagc", "static"])
def test_bad_data_never_raises(batch, policy):
    controller = controller_of(policy=policy)
    report = controller.observe(batch)
    assert report.reason == ("fault" if policy == "sagc" else "static")
    assert report.fault
    assert (report.next_size, report.faults, controller.step) == (19, 1, 1)
    assert controller.observe(World().batch(19)).fault == ""


def test_report_tells_what_the_step_told():
    lengths = np.full((10, 4), 100.0)
    lengths[0, 0], lengths[1, 0] = 1000, np.nan
    truncated = lengths == 1000
    report = controller_of(sizes=(4, 8)).observe(batch_of(lengths, truncated=truncated, cap=2000))
    assert report.straggler_rate == report.straggler_rate_mean == report.cost == report.cost_mean == 0.1
    assert report.waiting_share == pytest.approx((1 - 1300 / 4000) / 10)
    assert report.cumulative_excess == pytest.approx(-0.1)
    assert (report.groups, report.rollouts, report.left_out) == (10, 39, 1)
    assert report.truncated_share == pytest.approx(1 / 39)
    assert report.ratio_mean == pytest.approx(1.9)
    assert report.blind_share == 0
    assert report.step_straggler


# the other policies


def test_static_holds_its_size_and_learns_all_the_same():
    reports = play(controller_of(policy="static", start=11), World(hazard=0.2).batch, 40)
    assert {(report.size, report.next_size, report.reason) for report in reports} == {(11, 11, "static")}
    assert reports[-1].risk[11] == pytest.approx(1 - 0.8**11, abs=0.03)
    assert reports[-1].straggler_rate_mean > 0.8


def test_schedule_is_followed_by_step_even_without_observation():
    config = parse_config({"policy": "schedule", "schedule": {1: 8, 4: 16, 6: 4}}, 16)
    controller = Controller(config, (4, 8, 16))
    played = []
    for step in range(7):
        played.append(controller.size)
        controller.observe(None if step % 2 else World().batch(controller.size))
    assert played == [8, 8, 8, 16, 16, 4, 4]


@pytest.mark.parametrize(("step", "size"), [(0, 8), (2, 8), (3, 16), (40, 4)])
def test_a_schedule_resumed_without_a_state_goes_on_at_its_place(step, size):
    controller = Controller(parse_config({"policy": "schedule", "schedule": {1: 8, 4: 16, 6: 4}}, 16), (4, 8, 16))
    controller.skip_to(step)
    assert (controller.size, controller.step) == (size, step)
    assert controller.observe(None).size == size


def test_a_controller_resumed_without_a_state_begins_anew():
    controller = controller_of()
    controller.skip_to(40)
    assert controller.step == 40
    reports = play(controller, World(hazard=0.2).batch, 5)
    assert [report.reason for report in reports] == ["warmup"] * 4 + ["first_jump"]


# state


def through_json(controller: Controller) -> dict:
    return json.loads(json.dumps(controller.state_dict(), allow_nan=False))


def decisions(reports):
    return [(r.size, r.next_size, r.reason, r.queue, r.risk, r.straggler_rate, r.straggler_rate_mean) for r in reports]


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("risk", ["beta_binomial", "hazard"])
@pytest.mark.parametrize("steps", [0, 3, 5, 37])
def test_a_resumed_run_decides_as_if_it_had_never_stopped(rule, risk, steps):
    world = World(hazard=0.04)
    first = controller_of(rule=rule, risk=risk)
    play(first, world.batch, steps)
    second = controller_of(rule=rule, risk=risk)
    assert second.load_state_dict(through_json(first)) == []
    assert through_json(second) == through_json(first)
    recorded = {n: [World(hazard=0.04, seed=100 + i).batch(n) for i in range(40)] for n in ODD_SIZES}
    runs = []
    for controller in (first, second):
        steps_left = iter(range(40))
        runs.append(decisions(play(controller, lambda n, left=steps_left: recorded[n][next(left)], 40)))
    assert runs[0] == runs[1]


def played_controller(**settings) -> Controller:
    controller = controller_of(**settings)
    play(controller, World(hazard=0.04).batch, 40)
    return controller


def test_other_sizes_keep_what_was_learnt_and_restart_the_queue():
    first, second = played_controller(), controller_of(sizes=(4, 8, 16))
    messages = second.load_state_dict(through_json(first))
    assert any("sizes changed: the queue" in message for message in messages)
    assert second.rule.queue == 0
    assert second.size in second.sizes
    assert second.step == 40
    assert (first.risk.predict(np.arange(2, 20)) == second.risk.predict(np.arange(2, 20))).all()
    report = second.observe(World(hazard=0.04).batch(second.size))
    assert report.cumulative_excess <= report.queue + report.debt_forgiven + 1e-9


@pytest.mark.parametrize(("size", "continued"), [(3, 4), (5, 4), (19, 16)])
def test_a_size_no_longer_played_falls_to_the_next_below(size, continued):
    second = controller_of(sizes=(4, 8, 16))
    messages = second.load_state_dict(through_json(controller_of(start=size)))
    assert second.size == continued
    assert any(f"size {size} " in message for message in messages)


@pytest.mark.parametrize(
    "changed",
    [
        {"threshold": 3.0},
        {"signal": "seconds"},
        {"reference": "max_median"},
        {"count_truncated": True},
        {"constraint": "waiting", "budget": 0.2},
    ],
)
def test_another_event_restarts_what_was_learnt_and_says_so(changed):
    first, second = played_controller(), controller_of(**changed)
    messages = second.load_state_dict(through_json(first))
    assert any(f"{next(iter(changed))} changed" in message and "posterior" in message for message in messages)
    assert second.risk.state_dict() == controller_of(**changed).risk.state_dict()
    assert (second.size, second.step, second.rule.queue) == (first.size, 40, 0)
    kept = second.state_dict()["events"] == first.state_dict()["events"]
    assert kept == ("signal" not in changed)
    assert second.observe(World().batch(second.size)).reason == "warmup"


def test_another_budget_restarts_the_queue_and_another_risk_the_posterior():
    first = played_controller()
    second = controller_of(budget=0.1)
    assert any("budget changed: the queue" in message for message in second.load_state_dict(through_json(first)))
    assert second.risk.state_dict() == first.risk.state_dict()
    second = controller_of(risk="hazard")
    assert any("risk changed" in message for message in second.load_state_dict(through_json(first)))
    assert second.rule.queue == first.rule.queue


def test_a_static_run_can_go_on_under_the_controller_and_back():
    first, second = played_controller(policy="static"), controller_of()
    assert second.load_state_dict(through_json(first)) == []
    assert second.observe(World(hazard=0.04).batch(19)).reason == "first_jump"
    third = controller_of(policy="static", start=19)
    third.load_state_dict(through_json(second))
    assert third.size == 19


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: {**s, "version": 99}, "version 99"),
        (lambda s: {}, "holds no version"),
        (lambda s: [], "holds no version"),
        (lambda s: {k: v for k, v in s.items() if k != "queue"}, "'queue' is missing"),
        (lambda s: {**s, "queue": float("nan")}, "nan must be a finite number"),
        (lambda s: {**s, "size": "8"}, "'8' must be a whole number"),
        (lambda s: {**s, "size": 0}, "0 must be a whole number of at least 2"),
        (lambda s: {**s, "account": [1]}, "damaged"),
        (lambda s: {**s, "account": [*s["account"], 1.0]}, "account holds 6 numbers"),
        (lambda s: {**s, "risk": {"log_posterior": [0.0]}}, "log_posterior must hold 864 finite numbers"),
        (lambda s: {**s, "risk": None}, "damaged"),
        (lambda s: {**s, "events": {}}, "'sources' is missing"),
        (lambda s: {**s, "events": {**s["events"], "sources": [["a", [1.0]]]}}, "damaged"),
        (lambda s: {**s, "config": {}}, "'constraint' is missing"),
    ],
)
def test_a_damaged_state_is_refused_in_one_line_and_changes_nothing(damage, message):
    controller = played_controller()
    state, before = through_json(controller), through_json(controller)
    for load in (controller.load_state_dict, controller.load_warm_start):
        with pytest.raises(StateError) as caught:
            load(damage(state))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    assert through_json(controller) == before


def test_warm_start_takes_what_was_learnt_and_nothing_else():
    first, second = played_controller(), controller_of(sizes=(4, 8, 16))
    assert second.load_warm_start(through_json(first)) == []
    assert second.risk.state_dict() == first.risk.state_dict()
    assert second.events.state_dict() == first.events.state_dict()
    assert (second.size, second.step, second.rule.queue) == (16, 0, 0)
    assert second.observe(World().batch(16)).reason == "warmup"
    assert "threshold changed" in controller_of(threshold=4).load_warm_start(through_json(first))[0]


def test_a_rule_and_a_risk_model_of_ones_own_need_one_registry_line(monkeypatch):
    class Smallest(Feasible):
        def choose(self, sizes, risk):
            return 0

    class Certain(Hazard):
        def predict(self, sizes):
            return np.ones(len(sizes))

    monkeypatch.setitem(RULES, "smallest", Smallest)
    monkeypatch.setitem(RISKS, "certain", Certain)
    reports = play(controller_of(rule="smallest", risk="certain"), World().batch, 10)
    assert reports[-1].size == 3
    assert set(reports[-1].risk.values()) == {1.0}
