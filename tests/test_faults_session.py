"""Faults in flight, on a real controller and a real writer: each is visible in a metric, and none moves the group size.

Where a fault leaves the lengths alone, a twin that never had it decides the same to the last bit.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_rollouts import failed, step_of, trajectory

from sagc_verl.control.config import parse_config
from sagc_verl.control.sizes import resolve_sizes
from sagc_verl.records import writer
from sagc_verl.records.reader import load_run
from sagc_verl.records.writer import RecordWriter
from sagc_verl.trainer.session import SagcSession
from sagc_verl.trainer.step_rollouts import FIELDS, StepRollouts

SIZES = [4, 6, 8]
GROUPS = 8
open_sessions: list[SagcSession] = []

Row = list[Any]


@pytest.fixture(autouse=True)
def closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(RecordWriter, "FIRST_WAIT_S", 0.02)
    yield
    while open_sessions:
        open_sessions.pop().close()


def session(records: Path | None = None, **sagc: Any) -> SagcSession:
    raw = {"constraint": "straggler", "budget": 0.2, "warmup": 2, "dwell": 2, "sizes": SIZES, **sagc}
    config = parse_config(raw, 8)
    made = SagcSession(config, resolve_sizes(config, 8), 100_000, records, {"name": "p/r", "config": {"sagc": raw}})
    made.open_records(0)
    open_sessions.append(made)
    return made


def train(made: SagcSession, step: int, rollouts: StepRollouts | None) -> dict[str, Any]:
    """One step as the trainer drives it; returns its metrics."""
    metrics: dict[str, Any] = {"critic/score/mean": 0.5}
    made.observe(rollouts, set() if rollouts is None else set(rollouts.columns["uid"]), 0, 0, metrics)
    made.record(step, metrics, wall_s=4.0)
    assert all(math.isfinite(value) for name, value in metrics.items() if name.startswith("sagc/"))
    assert made.size in SIZES
    return metrics


def rows_of(step: int, n: int, hazard: float = 0.0) -> list[Row]:
    """A step in which every rollout takes 1 s per 100 tokens; the same for the same arguments."""
    rng = np.random.default_rng([step, n])
    rows = []
    for group in range(GROUPS):
        for number in range(n):
            tokens = int(rng.integers(90, 111)) * (10 if rng.random() < hazard else 1)
            seconds = tokens / 100
            rows.append(
                trajectory(
                    f"u{group}",
                    number,
                    response_tokens=tokens,
                    generate_s=seconds,
                    end=seconds,
                    queue_s=0.0,
                    preempted=0,
                    reward=float(rng.random() < 0.5),
                )
            )
    return rows


def with_values(row: Row, **values: Any) -> Row:
    return [values.get(name, value) for name, value in zip(FIELDS, row, strict=True)]


def state_of(made: SagcSession) -> str:
    return json.dumps(made.controller.state_dict())


Damage = Callable[[int, list[Row]], list[Row]]


def play_beside_a_twin(
    damage: Damage, *, steps: int = 40, hazard: float = 0.04, records: Path | None = None, **sagc: Any
) -> tuple[SagcSession, SagcSession, list[dict[str, Any]]]:
    """The same steps with and without the damage; returns both sessions and the metrics of the damaged one."""
    hurt, whole = session(records, **sagc), session(**sagc)
    metrics = []
    for step in range(1, steps + 1):
        metrics.append(train(hurt, step, step_of(damage(step, rows_of(step, hurt.size, hazard)))))
        train(whole, step, step_of(rows_of(step, whole.size, hazard)))
    return hurt, whole, metrics


# ---- rollouts that fail


def test_failed_rollouts_are_counted_and_not_observed() -> None:
    """One of each group fails, after any time and with any length on its stamp."""

    def damage(step: int, rows: list[Row]) -> list[Row]:
        return [failed(row[0], row[1], response_tokens=90_000, end=600.0) if row[1] == 0 else row for row in rows]

    hurt, _, metrics = play_beside_a_twin(damage, hazard=0.0)
    assert {one["sagc/rollouts_failed"] for one in metrics} == {GROUPS}
    assert {one["sagc/faults"] for one in metrics} == {0}
    assert {one["sagc/straggler_rate"] for one in metrics} == {0.0}
    assert hurt.size == 8


def test_whole_groups_that_fail_are_as_if_they_had_never_been() -> None:
    def damage(step: int, rows: list[Row]) -> list[Row]:
        return [*rows, *(failed(f"gone{group}", number) for group in range(3) for number in range(4))]

    hurt, whole, metrics = play_beside_a_twin(damage)
    assert state_of(hurt) == state_of(whole)
    assert {one["sagc/rollouts_failed"] for one in metrics} == {12}
    assert {one["sagc/groups"] for one in metrics} == {GROUPS}


def test_steps_of_which_nothing_comes_back_hold_the_size_and_change_nothing_learnt(tmp_path: Path) -> None:
    """Every third step fails as a whole: on record and counted; the others decide as if it had not been there."""
    hurt, whole = session(tmp_path / "sagc", dwell=1), session(dwell=1)
    lost = played = 0
    for step in range(1, 91):
        if step % 3 == 0:
            before = (hurt.size, hurt.controller.risk.state_dict(), hurt.controller.rule.queue)
            metrics = train(hurt, step, step_of([failed(f"u{group}", 0) for group in range(GROUPS)]))
            assert (hurt.size, hurt.controller.risk.state_dict(), hurt.controller.rule.queue) == before
            lost += 1
            assert (metrics["sagc/faults"], metrics["sagc/moved"]) == (lost, 0)
        else:
            played += 1
            assert hurt.size == whole.size
            train(hurt, step, step_of(rows_of(played, hurt.size, 0.04)))
            train(whole, played, step_of(rows_of(played, whole.size, 0.04)))
    hurt.close()
    steps = load_run(tmp_path).steps
    assert (steps["reason"] == "no_observation").sum() == 30
    assert steps["n"].nunique() > 1


# ---- rewards


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 0.5], ids=["nan", "inf", "-inf", "all equal"])
def test_no_reward_whatever_moves_the_size(reward: float, tmp_path: Path) -> None:
    hurt, whole, metrics = play_beside_a_twin(
        lambda step, rows: [with_values(row, reward=reward) for row in rows], records=tmp_path / "sagc"
    )
    assert state_of(hurt) == state_of(whole)
    assert hurt.faults == 0
    if reward == 0.5:
        assert {one["sagc/silent_share"] for one in metrics} == {1.0}
    hurt.close()
    assert len(load_run(tmp_path).steps) == 40


# ---- the engine


def test_an_engine_stall_is_named_and_does_not_move_the_size(tmp_path: Path) -> None:
    """Three of eight groups wait a minute for nothing, at lengths as ever."""
    slow = {"u0", "u1", "u2"}

    def damage(step: int, rows: list[Row]) -> list[Row]:
        if step % 2:
            return rows
        return [with_values(row, generate_s=61.0, end=61.0) if row[0] in slow else row for row in rows]

    hurt, whole, metrics = play_beside_a_twin(damage, hazard=0.0, steps=20, records=tmp_path / "sagc")
    assert state_of(hurt) == state_of(whole)
    assert [one["sagc/stall"] for one in metrics] == [0.0, 3 / 8] * 10
    hurt.close()
    rollouts = load_run(tmp_path).rollouts
    stalled = rollouts[(rollouts["step"] % 2 == 0) & rollouts["uid"].isin(slow)]
    assert set(stalled["cause"]) == {"engine_stall"}
    assert set(rollouts.drop(stalled.index)["cause"]) == {""}
    assert not rollouts["exceeds"].any()


def test_one_rollout_that_stalls_is_named(tmp_path: Path) -> None:
    def damage(step: int, rows: list[Row]) -> list[Row]:
        return [with_values(rows[0], generate_s=61.0, end=61.0), *rows[1:]]

    hurt, whole, metrics = play_beside_a_twin(damage, hazard=0.0, steps=5, records=tmp_path / "sagc")
    assert state_of(hurt) == state_of(whole)
    assert {one["sagc/stall"] for one in metrics} == {1 / (GROUPS * 8)}
    hurt.close()
    assert (load_run(tmp_path).rollouts["cause"] == "engine_stall").sum() == 5


def test_measured_in_seconds_a_single_stalled_step_does_not_move_the_size() -> None:
    """With signal=seconds a stall is what is counted; one bad step after a quiet spell is no trend."""

    def damage(step: int, rows: list[Row]) -> list[Row]:
        return [with_values(row, generate_s=61.0, end=61.0) if step == 30 and row[1] == 0 else row for row in rows]

    hurt, _, metrics = play_beside_a_twin(damage, hazard=0.0, steps=45, signal="seconds")
    assert metrics[29]["sagc/straggler_rate"] == 1.0
    assert {one["sagc/size"] for one in metrics} == {8}
    assert hurt.size == 8


def test_preemption_is_counted_named_and_does_not_move_the_size(tmp_path: Path) -> None:
    def damage(step: int, rows: list[Row]) -> list[Row]:
        return [with_values(row, preempted=2, generate_s=9.0, end=9.0) if row[1] == 0 else row for row in rows]

    hurt, whole, metrics = play_beside_a_twin(damage, hazard=0.0, steps=10, records=tmp_path / "sagc")
    assert state_of(hurt) == state_of(whole)
    assert {one["sagc/rollouts_preempted"] for one in metrics} == {GROUPS}
    hurt.close()
    rollouts = load_run(tmp_path).rollouts
    assert set(rollouts.loc[rollouts["session"] == 0, "cause"]) == {"preempted"}
    assert set(rollouts.loc[rollouts["session"] > 0, "cause"]) == {""}


def test_an_engine_that_does_not_tell_of_preemption_is_not_said_to_have_none() -> None:
    metrics = train(session(), 1, step_of([with_values(row, preempted=-1) for row in rows_of(1, 8)]))
    assert "sagc/rollouts_preempted" not in metrics


# ---- the disk


def test_a_disk_that_fills_and_is_freed_costs_neither_a_decision_nor_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = False
    write_file = writer.write_file

    def maybe(*args: Any, **kwargs: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(*args, **kwargs)

    monkeypatch.setattr(writer, "write_file", maybe)
    hurt, whole = session(tmp_path / "sagc"), session()
    faults = []
    for step in range(1, 31):
        full = 10 <= step < 25
        faults.append(train(hurt, step, step_of(rows_of(step, hurt.size, 0.04)))["sagc/faults"])
        train(whole, step, step_of(rows_of(step, whole.size, 0.04)))
        if full:
            time.sleep(0.03)
    hurt.close()
    assert faults[8] == 0 and faults[24] > 0
    assert state_of(hurt) == state_of(whole)
    run = load_run(tmp_path)
    assert run.steps["step"].tolist() == list(range(1, 31))
    assert run.rollouts.groupby("step").size().tolist() == [GROUPS * n for n in run.steps["n"]]


def test_a_checkpoint_on_a_full_disk_leaves_the_older_state_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session()
    train(made, 1, step_of(rows_of(1, 8)))
    made.save(str(tmp_path))
    before = state_of(made)
    train(made, 2, step_of(rows_of(2, 8)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        made.save(str(tmp_path))
    assert train(made, 3, None)["sagc/faults"] == 2  # the state that was not saved, and this step
    again = session()
    again.restore(str(tmp_path), 1)
    assert state_of(again) == before


# ---- all of it, for long, and much of it


def test_two_hundred_steps_of_everything_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    write_file = writer.write_file

    def moody(*args: Any, **kwargs: Any) -> None:
        if rng.random() < 0.1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_file(*args, **kwargs)

    monkeypatch.setattr(writer, "write_file", moody)
    made = session(tmp_path / "sagc")
    chance = np.random.default_rng(2)
    faults = [0.0]
    for step in range(1, 201):
        rows: list[Row] = []
        for row in rows_of(step, made.size, 0.04):
            if chance.random() < 0.05:
                row = failed(row[0], row[1])
            elif chance.random() < 0.05:
                row = with_values(row, generate_s=61.0, end=61.0, preempted=int(chance.integers(-1, 3)))
            elif chance.random() < 0.05:
                row = with_values(row, reward=chance.choice([math.nan, math.inf, -math.inf]))
            elif chance.random() < 0.02:
                row = with_values(row, response_tokens=0)
            rows.append(row)
        lost = chance.random() < 0.05
        metrics = train(made, step, None if lost else step_of(rows))
        assert metrics["sagc/next_size"] == made.size
        if lost:
            assert metrics["sagc/moved"] == 0
        faults.append(metrics["sagc/faults"])
    made.close()
    assert np.diff(faults).min() >= 0 and made.faults == 0
    run = load_run(tmp_path)
    assert run.steps["step"].tolist() == list(range(1, 201))
    assert run.steps["n"].tolist()[1:] == run.steps["next_n"].tolist()[:-1]
    assert run.steps["straggler_rate_mean"].iloc[-1] <= 0.2 + 0.05


def test_a_step_of_many_groups_takes_time_in_proportion(tmp_path: Path) -> None:
    """100,000 groups: seconds, not the square of a thousand times fewer."""

    def seconds(groups: int) -> float:
        rollouts = step_of([trajectory(f"u{g:06d}", s, preempted=0) for g in range(groups) for s in range(2)])
        began = time.process_time()
        metrics: dict[str, Any] = {}
        made.observe(rollouts, {"u000000"}, 0, 0, metrics)
        assert metrics["sagc/groups"] == groups and metrics["sagc/faults"] == 0
        return time.process_time() - began

    made = session()
    few = seconds(5_000)
    assert seconds(100_000) < 20 * few * 3 + 1
