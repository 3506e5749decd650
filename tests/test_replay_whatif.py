"""Replays drive the controller of training and keep their promises."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sagc_verl.control import Controller, parse_config
from sagc_verl.records.writer import RecordWriter
from sagc_verl.replay import request
from sagc_verl.replay.advice import verdict
from sagc_verl.replay.comparison import Comparison, Plan, compare
from sagc_verl.replay.costs import Blended, cost_player, spread_player
from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.players import (
    dynamic_player,
    first_finishers_player,
    longest_first_player,
    oracle_player,
    sagc_player,
    static_player,
)
from sagc_verl.replay.source import choose_step_time, open_sources
from sagc_verl.replay.steptime import StepTime
from sagc_verl.replay.truth import true_risk
from sagc_verl.replay.tune import tune_steps
from sagc_verl.replay.whatif import Trace, play

TIME = StepTime()
SIZES = (4, 6, 8, 11, 16)


def replayed(name: str = "runaways", steps: int = 120, baselines: bool = True, **raw: object) -> Comparison:
    workload = open_sources([name])
    plan = Plan(parse_config(raw, 16), SIZES, None, steps=steps, prompts=48, seed=3, baselines=baselines)
    return compare(workload, plan, TIME)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return replayed()


def test_a_replay_makes_the_decisions_of_training():
    workload, config = open_sources(["shift:at=40"]), parse_config({}, 16)
    outcome = play(workload, sagc_player(config, SIZES), TIME, steps=100, prompts=32, seed=5)
    controller, sizes, rates = Controller(config, SIZES), [], []
    for step in range(1, 101):
        sizes.append(controller.size)
        rates.append(controller.observe(workload.draw(step, 32, controller.size, 5).batch()).straggler_rate)
    assert outcome.sizes == {n: sizes.count(n) for n in sizes}
    assert outcome.rate == pytest.approx(np.mean(rates))
    assert outcome.moves > 0


def test_the_same_seed_gives_the_same_numbers_to_the_bit(comparison: Comparison):
    again = replayed(baselines=False).as_dict()
    lines = {line["name"]: line for line in comparison.as_dict()["lines"]}
    assert all(line == lines[line["name"]] for line in again["lines"])


def test_the_budget_is_kept_and_the_oracle_is_near(comparison: Comparison):
    sagc, oracle, largest = comparison.sagc, comparison.of("oracle"), comparison.largest
    assert largest.rate > 0.25
    assert sagc.rate <= 0.2 + 0.01
    assert oracle.rate <= 0.2 + 0.01
    assert abs(sagc.mean_n - oracle.mean_n) < 2.5
    risk = [comparison.true_risk[n] for n in SIZES]
    assert risk == sorted(risk)
    assert risk[-1] == pytest.approx(largest.rate, abs=0.04)


def test_static_sizes_around_the_mean_are_beside_it(comparison: Comparison):
    mean = comparison.sagc.mean_n
    sizes = {round(outcome.mean_n) for outcome in comparison.statics()}
    assert {*SIZES, math.floor(mean), math.ceil(mean)} == sizes
    assert comparison.largest.seconds_per_step > comparison.of("static 4").seconds_per_step
    assert any("budget is kept" in line for line in verdict(comparison))


def test_it_says_when_it_is_not_worth_it():
    calm = replayed("calm", steps=40, baselines=False)
    assert calm.sagc.mean_n == 16
    assert verdict(calm)[0].startswith("Not worth turning on")
    hopeless = replayed("lognormal:within=1,cap=100000", steps=40, baselines=False, budget=0.02)
    assert any(line.startswith("The budget cannot be met") for line in verdict(hopeless))


def test_first_finishers_are_fast_and_biased(comparison: Comparison):
    first, largest = comparison.of("first 13 of 16"), comparison.largest
    assert first.mean_n == 13
    assert first.generation_per_step < 0.8 * largest.generation_per_step
    assert first.mean("bias") < 0.95
    assert largest.mean("bias") == 1.0


def test_dynamic_sampling_fills_the_batch_and_pays_for_it(comparison: Comparison):
    dynamic, largest = comparison.of("static 16 + dynamic"), comparison.largest
    assert dynamic.rollouts_per_step == largest.rollouts_per_step
    assert dynamic.rollouts > largest.rollouts
    assert dynamic.gave_up == 0


def test_dynamic_sampling_gives_up_when_no_group_can_pass(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_id,length,score\n" + "".join(f"{p},{100 + i},0\n" for p in range(9) for i in range(4)))
    config = parse_config({"max_refills": 2}, 4)
    outcome = play(open_sources([str(path)]), dynamic_player(config, 4), TIME, steps=2, prompts=4, seed=0)
    assert (outcome.gave_up, outcome.trained, outcome.refills) == (2, 0, 4)


def test_longest_first_orders_by_what_prompts_needed_before():
    workload, config = open_sources(["lognormal:within=.1,between=1,prompts=64"]), parse_config({}, 8)
    time = StepTime(a=1.0, b=0.0, engines=1, slots=64)
    kept = {"steps": 20, "prompts": 64, "seed": 0}
    plain = play(workload, static_player(config, 8), time, **kept)
    ordered = play(workload, longest_first_player(config, 8), time, **kept)
    assert ordered.rate == plain.rate
    assert ordered.generation_s < 0.97 * plain.generation_s


def test_the_oracle_follows_a_shift():
    workload, config = open_sources(["shift:at=60,back=0"]), parse_config({}, 16)
    first, risk = true_risk(workload, config, SIZES, 120, 32, 0, groups=512)
    assert list(first) == [1, 60]
    assert (risk[1] > risk[0]).all()
    outcome = play(workload, oracle_player(config, SIZES, None, first, risk), TIME, steps=120, prompts=32, seed=0)
    columns = outcome.trace.columns()
    assert columns["size"][:55].mean() > 15
    assert columns["size"][70:].mean() < 11


def test_a_trace_stays_small_and_keeps_the_means():
    trace = Trace(bins=8)
    for step in range(1000):
        trace.add((step, 0.5, 0.0, 1.0, 1.0, 1.0))
    columns = trace.columns()
    assert len(columns["step"]) <= 8
    assert columns["step"][-1] == columns["count"].sum() == 1000
    assert (columns["size"] * columns["count"]).sum() == pytest.approx(sum(range(1000)))


def write_run(folder: Path, steps: int = 12, prompts: int = 6, n: int = 4, **sagc: object) -> np.ndarray:
    """A recorded run; returns its lengths (steps, prompts, n)."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 1000, (steps, prompts, n))
    writer = RecordWriter(folder / "sagc", {"config": {"data": {"max_response_length": 1000}, "sagc": sagc}})
    for step in range(1, steps + 1):
        rows = lengths[step - 1].ravel()
        group = np.repeat(np.arange(prompts), n)
        writer.write_step(
            step,
            {
                "uid": [f"{step}-{g}" for g in group],
                "prompt_index": group,
                "data_source": ["math"] * len(rows),
                "session": np.tile(np.arange(n), prompts),
                "n": np.full(len(rows), n),
                "response_tokens": rows,
                "truncated": rows >= 1000,
                "reward": rng.integers(0, 2, len(rows)).astype(float),
                "status": ["trained"] * (len(rows) - 1) + ["failed"] if step == 1 else ["trained"] * len(rows),
            },
            {},
            {"n": n, "tokens": int(rows.sum()), "rollouts": len(rows), "timing_s/gen": 1 + 0.01 * rows.max(),
             "response_length/max": float(rows.max())},
        )  # fmt: skip
    writer.close()
    return lengths


def test_a_recorded_run_is_replayed_as_it_was(tmp_path: Path):
    lengths = write_run(tmp_path)
    workload = open_sources([str(tmp_path)])
    assert (workload.steps_on_record, workload.prompts_per_step, workload.played_n) == (12, 6, 4)
    for step in (2, 12):
        draw = workload.draw(step, 6, 4, seed=0)
        assert (np.sort(draw.lengths, axis=1) == np.sort(lengths[step - 1], axis=1)).all()
        assert draw.modelled == 0
        assert set(draw.sources) == {"math"}
        assert draw.cap == 1000
    assert workload.draw(1, 6, 4, seed=0).modelled == 1  # a failed rollout is not on record
    assert (workload.draw(14, 6, 3, 0).keys == workload.draw(2, 6, 3, 0).keys).all()  # repeats after its last step
    assert workload.draw(3, 20, 2, 0).lengths.shape == (20, 2)
    assert workload.draw(3, 2, 2, 0).lengths.shape == (2, 2)
    time, lines = choose_step_time([str(tmp_path)], None, "tokens", None, None)
    assert time.a == pytest.approx(0.01, rel=1e-3)
    assert "held-back" in lines[0]


def test_a_recorded_run_is_replayed_with_its_own_settings(tmp_path: Path):
    own = {"constraint": "waiting", "budget": 0.3, "sizes": [2, 3, 4], "gamma": 0.9, "rule": None, "records": True}
    write_run(tmp_path, **own)
    recorded = request.recorded_settings([str(tmp_path)])
    assert recorded == {"sizes": [2, 3, 4], "constraint": "waiting", "budget": 0.3, "gamma": 0.9}
    used = request.over_recorded(recorded, {"gamma": 0.95, "rule": None})
    assert request.taken_line(recorded, used) == [
        "settings of the recorded run: sizes=[2, 3, 4], constraint=waiting, budget=0.3 (options override them)"
    ]
    config, plan = request.controller_settings(used, 4)
    assert (config.constraint, config.budget, config.gamma, plan.sizes) == ("waiting", 0.3, 0.95, (2, 3, 4))
    assert "budget" not in request.over_recorded(recorded, {"constraint": "straggler"})
    assert "sizes" not in request.over_recorded(recorded, {}, n=3)
    workload = open_sources([str(tmp_path)])
    nothing = {"lists": [], "thresholds": None, "budgets": None, "waiting_budgets": None}
    grid = request.tuning_grid(workload, recorded, {}, n=None, **nothing)
    assert (grid.config.gamma, grid.rollout_n, grid.waiting_budgets) == (0.9, 4, [0.3, 0.4, 0.5])
    assert (2, 3, 4) in grid.lists
    assert request.recorded_settings(["runaways"]) == request.recorded_settings([str(tmp_path), "runaways"]) == {}


def test_the_size_of_a_static_run_is_not_taken_for_a_list(tmp_path: Path):
    write_run(tmp_path, policy="static", start=4, threshold=3.0)
    assert request.recorded_settings([str(tmp_path)]) == {"threshold": 3.0}


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(SourceError, match="no records here"):
        open_sources([str(tmp_path)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("runaways:runaway=x", "runaway=x: must be a number"),
        ("runaways:ruanway=.1", "did you mean runaway"),
        ("runaways:median=-5", "must be above zero"),
        ("runawyas", "no such file or run, nor a named workload"),
    ],
)
def test_named_workloads_say_what_is_wrong(text: str, says: str):
    with pytest.raises(SourceError, match=says):
        open_sources([text])


def test_tuning_recommends_and_says_why():
    config = parse_config({}, 16)
    kept = {"rollout_n": 16, "thresholds": [2.5], "budgets": [0.1, 0.3], "lists": [SIZES], "prompts": 32, "seed": 0}
    tail = StepTime(a=0.05, b=0.0, logprob=0, update=2e-5)
    tuning, steps, total = tune_steps(open_sources(["runaways"]), config, tail, steps=60, utility="baseline", **kept)
    assert sum(1 for _ in steps) == total == 60 * (5 + 2)
    assert tuning.recommended is not None and tuning.front and tuning.reasons
    assert "+sagc.threshold=2.5" in tuning.recommended.line(16)
    waiting, steps, _ = tune_steps(
        open_sources(["runaways"]), config, tail, steps=60, utility="baseline",
        **{**kept, "thresholds": [], "waiting_budgets": [0.4, 0.5]},
    )  # fmt: skip
    list(steps)
    candidates = [one for one in waiting.candidates if not one.is_static]
    assert [one.name for one in candidates] == ["waiting, budget 0.4", "waiting, budget 0.5"]
    assert "+sagc.constraint=waiting +sagc.budget=0.4" in candidates[0].line(16)
    assert candidates[0].outcome.cost <= 0.4 + 0.01
    calm, steps, _ = tune_steps(open_sources(["calm"]), config, TIME, steps=20, **kept)
    list(steps)
    assert calm.recommended is not None
    assert calm.recommended.line(16) == "actor_rollout_ref.rollout.n=16"
    assert "not worth turning on" in calm.reasons[0]


def test_trials_without_a_threshold_run_in_the_very_controller():
    workload, config = open_sources(["runaways"]), parse_config({"budget": 0.45}, 16)
    kept = {"steps": 150, "prompts": 48, "seed": 0}
    overrun = play(workload, cost_player("overrun", config, SIZES), TIME, **kept)
    assert overrun.cost <= 0.45 + 0.01
    assert 4 < overrun.mean_n < 16
    stall = play(workload, cost_player("stall", replace(config, budget=0.1), SIZES), TIME, **kept)
    assert stall.cost > 0.2  # it falls as groups grow: smaller groups cannot keep it
    auto = play(workload, spread_player(3.0, replace(config, budget=0.2), SIZES), TIME, **kept)
    assert auto.rate <= 0.2 + 0.01
    blended = Blended(0.98)
    blended.update(np.array([1] * 30 + [0] * 70), np.full(100, 8))
    assert blended.predict(np.array([4, 8, 16])).tolist() == sorted(blended.predict(np.array([4, 8, 16])))


def test_the_waiting_share_is_what_is_compared_with_its_budget():
    waiting = replayed(steps=150, constraint="waiting")
    sagc, oracle = waiting.sagc, waiting.of("oracle")
    assert sagc.budget == 0.4
    assert sagc.cost == sagc.mean("waiting") <= 0.4 + 0.01
    assert sagc.cost != sagc.rate
    assert abs(sagc.mean_n - oracle.mean_n) < 1
    assert waiting.true_risk[16] == pytest.approx(waiting.largest.cost, abs=0.03)
    assert any("The budget is kept: waiting share" in line for line in verdict(waiting))
    assert waiting.as_dict()["constraint"] == "waiting"


def test_first_finishers_never_keep_more_than_there_are():
    outcome = play(
        open_sources(["lognormal"]), first_finishers_player(parse_config({}, 4), 4, 9), TIME, steps=2, prompts=4, seed=0
    )
    assert outcome.mean_n == 4
