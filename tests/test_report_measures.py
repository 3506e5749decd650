from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import write_run

from sagc_verl.records.reader import Run
from sagc_verl.records.writer import RecordWriter
from sagc_verl.report.measures import measure_run, moves, tenth


def record(directory: Path, *steps: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> Run:
    writer = RecordWriter(directory / "sagc", {"config": {}})
    for number, (rollouts, groups, row) in enumerate(steps, start=1):
        writer.write_step(number, rollouts, groups, row)
    writer.close()
    return Run(directory / "sagc")


def test_a_run_becomes_one_row_per_step(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path, policy="sagc", sizes=(4, 8), steps=13) / "sagc")
    found = measure_run(run)
    assert found.column("step").tolist() == list(range(1, 14))
    assert found.column("rollouts").sum() == len(run.rollouts)
    assert found.column("tokens").sum() == run.rollouts["response_tokens"].sum()
    assert found.column("rollouts_done")[-1] == len(run.rollouts)
    assert found.column("seconds_done")[-1] == pytest.approx(run.steps["wall_s"].sum())
    by_hand = np.array([rows["reward"].mean() for _, rows in run.rollouts.groupby("step")])
    assert found.column("reward") == pytest.approx(by_hand, abs=1e-6)
    assert found.right.sum() + found.wrong.sum() == len(run.rollouts)
    assert sum(found.causes.values()) == int(run.rollouts["exceeds"].sum())
    assert moves(found) == 2
    assert found.has_rollouts


def test_reward_is_of_everything_generated_and_failed_rollouts_do_not_count(tmp_path: Path) -> None:
    rollouts = {
        "uid": ["a", "a", "b", "c"],
        "response_tokens": [10, 20, 30, 40],
        "reward": [1.0, 0.0, 1.0, 1.0],
        "status": ["trained", "trained", "filtered", "failed"],
    }
    run = record(tmp_path, (rollouts, {}, {"n": 2, "wall_s": 1.0, "critic/score/mean": 0.5}))
    found = measure_run(run)
    assert found.column("reward")[0] == pytest.approx(2 / 3)
    assert found.column("rollouts")[0] == 3
    assert found.column("length_right")[0] == 20
    assert found.column("length_wrong")[0] == 20
    assert measure_run(run, right_above=2).right.sum() == 0


def test_a_run_without_rollouts_has_what_its_log_tells(tmp_path: Path) -> None:
    row = {
        "critic/score/mean": 0.4,
        "response_length/mean": 90.0,
        "prompt_length/mean": 10.0,
        "perf/total_num_tokens": 6400.0,
        "timing_s/step": 12.0,
    }
    found = measure_run(record(tmp_path, ({}, {}, row)))
    assert found.column("reward")[0] == 0.4
    assert found.column("rollouts")[0] == 64
    assert found.column("tokens")[0] == 64 * 90
    assert found.column("wall_s")[0] == 12
    assert math.isnan(found.column("straggler_rate")[0])
    assert not found.has_rollouts


@pytest.mark.parametrize("step_seconds", [pytest.param(10.0, id="outside"), pytest.param(14.0, id="inside")])
def test_the_rest_of_a_step_leaves_validation_out(tmp_path: Path, step_seconds: float) -> None:
    row = {"timing_s/gen": 6.0, "timing_s/update_actor": 3.0, "timing_s/testing": 4.0, "timing_s/step": step_seconds}
    found = measure_run(record(tmp_path, ({}, {}, row)))
    assert found.phases.iloc[0].to_dict() == {"gen": 6, "update_actor": 3, "testing": 4, "other": 1}


def test_prompts_with_most_stragglers_come_first(tmp_path: Path) -> None:
    def step(stragglers: list[bool]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        groups = {
            "uid": ["x", "y", "z"],
            "prompt_index": [3, 4, 5],
            "data_source": ["s", "s", "s"],
            "straggler": stragglers,
            "max": [100.0, 200.0, 50.0],
            "reference": [10.0, 20.0, 25.0],
        }
        return {}, groups, {"wall_s": 1.0}

    found = measure_run(record(tmp_path, step([True, True, False]), step([False, True, False])))
    assert [(prompt.name, prompt.stragglers) for prompt in found.prompts] == [
        ("prompt 4 of s", 2),
        ("prompt 3 of s", 1),
    ]
    assert found.prompts[0].largest_ratio == 10


def test_an_empty_run_is_refused_plainly(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished step"):
        measure_run(record(tmp_path))


def test_a_tenth_is_at_least_one_step(tmp_path: Path) -> None:
    found = measure_run(Run(write_run(tmp_path, steps=12) / "sagc"))
    assert len(tenth(found, "reward", last=True)) == 2
    assert np.array_equal(tenth(found, "n", last=False), [8, 8])


def test_waste_and_silence_are_counted_per_step(tmp_path: Path) -> None:
    rollouts = {"uid": ["a", "b", "c", "d"], "status": ["trained", "filtered", "surplus", "trained"]}
    groups = {"uid": ["a", "b", "c", "d"], "silent": [True, False, True, None]}
    found = measure_run(record(tmp_path, (rollouts, groups, {"wall_s": 1.0, "refills": 2})))
    assert found.column("thrown_away_share")[0] == 0.5
    assert found.column("silent_share")[0] == pytest.approx(2 / 3)
    assert found.column("refills")[0] == 2
    assert math.isnan(found.column("tokens")[0])  # no lengths are on record, which is not zero
