"""The session with a real controller and real records: what it adds to a step, and what it survives."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainer_rollouts import failed, played, step_of, trajectory

from sagc_verl.control.config import parse_config
from sagc_verl.control.controller import StateError
from sagc_verl.control.sizes import resolve_sizes
from sagc_verl.records.reader import load_run
from sagc_verl.records.tables import SAGC_SCALARS
from sagc_verl.records.writer import RecordWriter
from sagc_verl.trainer import session as session_module
from sagc_verl.trainer.controller_state import FILE_NAME, read_state, write_state
from sagc_verl.trainer.session import SagcSession
from sagc_verl.trainer.step_rollouts import StepRollouts, from_tags

SIZES = [4, 6, 8]
open_sessions: list[SagcSession] = []


@pytest.fixture(autouse=True)
def closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(RecordWriter, "FIRST_WAIT_S", 0.02)
    yield
    while open_sessions:
        open_sessions.pop().close()


def session(records: Path | None = None, resume_step: int = 0, **sagc: Any) -> SagcSession:
    raw = {"warmup": 2, "dwell": 2, "sizes": SIZES, **sagc}
    config = parse_config(raw, 8)
    info = {"name": "project/run", "config": {"actor_rollout_ref": {"rollout": {"n": 8}}, "sagc": raw}}
    made = SagcSession(config, resolve_sizes(config, 8), 100_000, records, info)
    made.open_records(resume_step)
    open_sessions.append(made)
    return made


def train(
    made: SagcSession, step: int, rollouts: StepRollouts | None, trained: set[str] | None = None
) -> dict[str, Any]:
    """One step as the trainer drives it; returns the metrics that go to the loggers."""
    metrics: dict[str, Any] = {"critic/score/mean": 0.5, "words": "left out"}
    if trained is None:
        trained = set() if rollouts is None else set(rollouts.columns["uid"])
    made.observe(rollouts, trained, padding_rows=3, refills=2, metrics=metrics)
    made.record(step, metrics, wall_s=4.0)
    return metrics


def documented(name: str) -> bool:
    patterns = [re.sub(r"<\w+>", r"\\d+", column.name) for column in SAGC_SCALARS]
    return any(re.fullmatch(pattern, name) for pattern in patterns)


# ---- metrics


def test_every_scalar_is_documented_finite_and_there() -> None:
    made = session()
    metrics = train(made, 1, played(8, long=2, preempted=0))
    ours = {name: value for name, value in metrics.items() if name.startswith("sagc/")}
    assert [name for name in ours if not documented(name)] == []
    assert [name for name, value in ours.items() if not math.isfinite(value)] == []
    families = {"sagc/p_hat/<n>", "sagc/gen_share_top<percent>"}
    assert {column.name for column in SAGC_SCALARS} - families - set(ours) == set()
    assert {f"sagc/p_hat/{size}" for size in SIZES} <= set(ours)


def test_the_numbers_are_those_of_the_step() -> None:
    metrics = train(session(), 1, played(8, groups=8, long=2))
    assert metrics["sagc/size"] == 8
    assert metrics["sagc/straggler_rate"] == 0.25
    assert metrics["sagc/groups"] == 8
    assert metrics["sagc/rollouts"] == 64
    assert metrics["sagc/advantage_scale"] == 1 - 1 / 8
    assert (metrics["sagc/padding_rows"], metrics["sagc/refills"], metrics["sagc/faults"]) == (3, 2, 0)
    assert metrics["sagc/silent_share"] == 0.0
    assert metrics["critic/score/mean"] == 0.5


def test_the_size_falls_when_groups_straggle_and_is_the_next_steps() -> None:
    made = session()
    sizes = []
    for step in range(1, 8):
        metrics = train(made, step, played(made.size, long=8))
        sizes.append(metrics["sagc/size"])
        assert metrics["sagc/next_size"] == made.size
        assert made.sizes_for(3) == [made.size] * 3
    assert sizes[:2] == [8, 8]  # warm-up
    assert sizes[-1] == 4


# ---- static


def test_a_static_policy_never_moves() -> None:
    made = session(policy="static")
    for step in range(1, 30):
        metrics = train(made, step, played(8, long=8))
        assert (made.size, metrics["sagc/moved"]) == (8, 0.0)
    assert metrics["sagc/straggler_rate_mean"] == 1.0


# ---- faults


class Broken:
    """Rollouts of which nothing can be read."""

    stamped = True

    def __len__(self) -> int:
        return 4

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(f"{name} cannot be read")


def test_broken_rollouts_hold_the_size_and_are_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    made = session()
    first = train(made, 1, Broken(), trained=set())  # type: ignore[arg-type]
    second = train(made, 2, Broken(), trained=set())  # type: ignore[arg-type]
    assert made.size == 8
    assert 0 < first["sagc/faults"] < second["sagc/faults"]
    assert (second["sagc/size"], second["sagc/next_size"]) == (8, 8)
    assert len([record for record in caplog.records if "cannot be read" in record.getMessage()]) <= 2
    assert "the size is held" in caplog.text


def test_a_step_without_rollouts_counts_and_its_row_still_tells_the_size(tmp_path: Path) -> None:
    made = session(tmp_path / "sagc")
    train(made, 1, played(8))
    metrics = train(made, 2, None)
    assert metrics["sagc/faults"] == 1
    train(made, 3, played(8))
    made.close()
    steps = load_run(tmp_path).steps.set_index("step")
    assert steps["n"].tolist() == [8, 8, 8]
    assert steps["reason"].tolist()[1] == "no_observation"
    assert steps["wall_s"].tolist() == [4.0] * 3


@pytest.mark.parametrize(
    "rollouts",
    [
        step_of([]),
        step_of([failed("a", 0), failed("a", 1)]),
        step_of([trajectory("a", 0, response_tokens=0), trajectory("a", 1, response_tokens=0)]),
        step_of([trajectory("a", 0)]),
    ],
    ids=["empty", "all failed", "all of length zero", "one rollout"],
)
def test_steps_that_tell_nothing_hold_the_size(rollouts: StepRollouts, caplog: pytest.LogCaptureFixture) -> None:
    made = session()
    metrics = train(made, 1, rollouts)
    assert (made.size, metrics["sagc/faults"]) == (8, 1)
    assert made.faults == 0, caplog.text  # the controller's count, and no error of our code beside it
    assert metrics["sagc/rollouts"] == len(rollouts)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_no_numbers_do_no_harm(tmp_path: Path, reward: float) -> None:
    made = session(tmp_path / "sagc")
    rows = [trajectory(f"u{g}", s, reward=reward if s == 0 else 1.0) for g in range(4) for s in range(4)]
    metrics = train(made, 1, step_of(rows))
    assert (made.faults, metrics["sagc/faults"]) == (0, 0)
    assert metrics["sagc/groups"] == 4
    assert all(math.isfinite(value) for name, value in metrics.items() if name.startswith("sagc/"))
    made.close()
    assert len(load_run(tmp_path).rollouts) == 16


def test_times_that_make_no_sense_do_no_harm() -> None:
    made = session(signal="seconds")
    rows = [trajectory(f"u{g}", s, end=-5.0, generate_s=math.nan) for g in range(4) for s in range(4)]
    assert train(made, 1, step_of(rows))["sagc/faults"] == 1
    assert (made.size, made.faults) == (8, 0)


def test_an_error_in_our_own_code_is_counted_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("a bug")

    made = session(tmp_path / "sagc")
    for name in ("group_columns", "step_columns", "report_metrics"):
        with monkeypatch.context() as patch:
            patch.setattr(session_module, name, fails)
            before = made.faults
            train(made, 1, played(8))
            assert made.faults == before + 1, name
    assert "a bug" in caplog.text
    assert train(made, 2, played(8))["sagc/groups"] == 8


def test_what_happened_is_learnt_even_when_it_cannot_go_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(session_module, "rollout_columns", fails)
    made = session()
    for step in range(1, 5):
        metrics = train(made, step, played(made.size, long=8))
    assert metrics["sagc/straggler_rate"] == 1.0
    assert made.size < 8


def test_a_file_where_the_records_should_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sagc").write_text("a file")
    made = session(tmp_path / "sagc")
    metrics = train(made, 1, played(8))
    assert metrics["sagc/straggler_rate"] == 0.0
    assert metrics["sagc/faults"] > 0
    assert "training goes on" in caplog.text


def test_a_records_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As root no folder is read-only, so the disk says no instead.
    from sagc_verl.records import writer

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    made = session(tmp_path / "sagc")
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_file", full)
        train(made, 1, played(8))
        for _ in range(200):
            if train(made, 2, None)["sagc/faults"] > 1:
                break
            time.sleep(0.01)
        else:
            pytest.fail("a full disk is not seen in sagc/faults")
    made.close()


def test_a_state_that_cannot_be_saved_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "global_step_1").write_text("a file where the folder should be")
    made = session()
    made.save(str(tmp_path / "global_step_1"))
    assert made.faults == 1
    assert "could not be saved" in caplog.text
    assert train(made, 1, played(8))["sagc/faults"] == 1


def test_a_state_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(tmp_path, {"old": 1})
    with pytest.raises(ValueError):
        write_state(tmp_path, {"value": math.nan})
    monkeypatch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError):
        write_state(tmp_path, {"new": 2})
    assert read_state(tmp_path) == {"old": 1}


# ---- resume


def trained_session(steps: int = 6, **sagc: Any) -> SagcSession:
    made = session(**sagc)
    for step in range(1, steps + 1):
        train(made, step, played(made.size, long=4))
    return made


def test_a_resumed_run_decides_as_the_uninterrupted_one(tmp_path: Path) -> None:
    made = trained_session()
    made.save(str(tmp_path / "global_step_6"))
    resumed = session()
    resumed.restore(str(tmp_path / "global_step_6"), 6)
    assert resumed.size == made.size
    for step in range(7, 20):
        long = step % 3
        first, second = (train(each, step, played(each.size, long=long)) for each in (made, resumed))
        assert first == second
    assert made.controller.state_dict() == resumed.controller.state_dict()


def test_no_state_in_the_checkpoint_is_said_and_starts_afresh(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = session()
    made.restore(str(tmp_path), 40)
    assert (made.size, made.faults) == (8, 0)
    assert "no controller state" in caplog.text and "starts afresh at step 40" in caplog.text


def test_a_schedule_goes_by_the_trainers_steps_whatever_the_checkpoint_holds(tmp_path: Path) -> None:
    schedule = {"policy": "schedule", "schedule": {1: 8, 10: 6, 20: 4}, "sizes": None}
    made = session(**schedule)
    made.restore(str(tmp_path), 12)
    assert made.size == 6
    for step in range(13, 20):
        train(made, step, None)
    assert made.size == 4


def saved(tmp_path: Path, change: Any) -> str:
    """A checkpoint whose state went through `change`."""
    made = trained_session()
    made.save(str(tmp_path))
    file = tmp_path / FILE_NAME
    file.write_text(change(file.read_text()))
    return str(tmp_path)


def without(key: str) -> Any:
    def change(text: str) -> str:
        state = json.loads(text)
        del state["controller"][key]
        return json.dumps(state)

    return change


DAMAGE: dict[str, Any] = {
    "cut short": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "not an object": lambda text: "[1, 2]",
    "no controller": lambda text: "{}",
    "controller is a list": lambda text: '{"controller": [1]}',
    "controller is a text": lambda text: '{"controller": "x"}',
    "another version": lambda text: text.replace('"version": 1', '"version": 99'),
    "no risk": without("risk"),
    "no account": without("account"),
    "a size that is no number": lambda text: re.sub(r'"size": \d+', '"size": "eight"', text),
    "NaN": lambda text: re.sub(r'"queue": [-\d.e]+', '"queue": NaN', text),
    "binary": lambda text: "\x00\x01" + text,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_state_that_cannot_be_used_is_said_counted_and_starts_afresh(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved(tmp_path, DAMAGE[damage])
    made = session()
    fresh = made.controller.state_dict()
    caplog.clear()
    made.restore(folder, 6)
    assert made.controller.state_dict() == {**fresh, "step": 6}
    assert made.faults == 1
    assert "it starts afresh" in caplog.text
    assert "Traceback" not in caplog.text
    if damage == "another version":
        assert "version 99" in caplog.text


def test_a_state_of_other_sizes_keeps_what_was_learnt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = trained_session()
    made.save(str(tmp_path))
    with caplog.at_level(logging.INFO):
        resumed = session(sizes=[3, 5, 9])
        resumed.restore(str(tmp_path), 6)
    assert resumed.faults == 0
    assert resumed.size in (3, 5, 9) and resumed.size <= made.size
    assert "sizes changed: the queue" in caplog.text
    assert f"resumed at step 6: next size {resumed.size}" in caplog.text
    assert resumed.controller.risk.state_dict() == made.controller.risk.state_dict()
    assert train(resumed, 7, played(resumed.size))["sagc/faults"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget": 0.4}, "budget changed: the queue"),
        ({"threshold": 4.0}, "threshold changed: what was learnt is about another event"),
        ({"rule": "drift_penalty"}, "rule changed: the queue"),
        ({"risk": "hazard"}, "the posterior restarts"),
    ],
)
def test_a_state_of_another_setting_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], words: str
) -> None:
    trained_session().save(str(tmp_path))
    resumed = session(**change)
    resumed.restore(str(tmp_path), 6)
    assert f"resumed, but {words}" in caplog.text or words in caplog.text
    assert resumed.faults == 0


def test_a_static_run_resumed_as_sagc_goes_on_with_its_size(tmp_path: Path) -> None:
    trained_session(policy="static").save(str(tmp_path))
    resumed = session()
    resumed.restore(str(tmp_path), 6)
    assert resumed.size == 8


# ---- warm start


def test_a_warm_start_takes_what_was_learnt_and_not_the_size(tmp_path: Path) -> None:
    made = trained_session(steps=12)
    made.save(str(tmp_path))
    warm = session(init_from=str(tmp_path))
    assert (warm.size, warm.controller.step) == (8, 0)
    cold, started = (train(each, 1, None)["sagc/p_hat/8"] for each in (session(), warm))
    assert started == pytest.approx(made.controller.risk.predict(np.array([8]))[0])
    assert started != pytest.approx(cold)


def test_a_warm_start_that_is_named_must_be_right(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        session(init_from=str(tmp_path / "nowhere"))
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ValueError, match=f"{FILE_NAME} is damaged"):
        session(init_from=str(tmp_path))
    (tmp_path / FILE_NAME).write_text('{"controller": {"version": 99}}')
    with pytest.raises(StateError, match="version 99"):
        session(init_from=str(tmp_path))


# ---- what is said


def test_a_budget_no_size_can_meet_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    made = session(budget=0.05)
    for step in range(1, 30):
        metrics = train(made, step, played(made.size, long=8))
    assert (made.size, metrics["sagc/infeasible"]) == (4, 1.0)
    assert caplog.text.count("no size meets the budget 0.05") == 1
    assert "n=4 is kept" in caplog.text


def test_a_limit_that_hides_stragglers_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    made = session()
    for step in range(1, 4):
        metrics = train(made, step, played(8, length=60_000))
    assert metrics["sagc/blind_share"] == 1.0
    assert caplog.text.count("hides any straggler") == 1


def test_prompts_keep_their_names_over_a_step_that_was_read_from_tags() -> None:
    made = session()
    train(made, 1, played(8))
    keys = [f"u{group}_{row}_0" for group in range(8) for row in range(8)]
    train(made, 2, from_tags(keys, [{"response_len": 100}] * 64, cap=100_000))
    assert made._prompts_are_known(played(8)) is True


def test_an_index_that_stops_telling_prompts_apart_is_said_and_given_up(caplog: pytest.LogCaptureFixture) -> None:
    made = session()
    train(made, 1, played(8))
    train(made, 2, played(8, prompt_index="0"))
    assert "no longer tells prompts apart" in caplog.text
    assert made._prompts_are_known(played(8)) is False


# ---- statuses and records


def test_statuses() -> None:
    rows = [trajectory("trained", s, filter_value=1.0) for s in range(3)]
    rows += [trajectory("same", s, filter_value=1.0, reward=1.0 - s / 10) for s in range(3)]  # rewards were shaped
    rows += [trajectory("late", s, filter_value=float(s), reward=1.0) for s in range(3)]
    rows += [trajectory("lost", 0, filter_value=1.0), failed("lost", 1), trajectory("lost", 2, filter_value=1.0)]
    rows += [failed("gone", s) for s in range(2)]
    rollouts = step_of(rows)
    statuses = session_module._statuses(rollouts, trained={"trained"})
    of_group = {uid: statuses[rows].tolist() for uid, rows in rollouts.groups()}
    assert of_group == {
        "trained": ["trained"] * 3,
        "same": ["filtered"] * 3,
        "late": ["surplus"] * 3,
        "lost": ["surplus", "failed", "surplus"],
        "gone": ["failed"] * 2,
    }


def test_what_was_thrown_away_is_counted_apart() -> None:
    rows = [trajectory(f"u{g}", s, filter_value=1.0 if g == 0 else float(s)) for g in range(3) for s in range(4)]
    rows += [failed("u3", s) for s in range(4)]
    metrics = train(session(), 1, step_of(rows), trained={"u1"})
    assert metrics["sagc/rollouts"] == 16
    assert metrics["sagc/rollouts_filtered"] == 4
    assert metrics["sagc/rollouts_surplus"] == 4
    assert metrics["sagc/rollouts_failed"] == 4
    assert metrics["sagc/tokens"] == 1200
    assert metrics["sagc/groups"] == 3  # the controller sees every group that came back


def test_records_hold_what_the_step_was(tmp_path: Path) -> None:
    made = session(tmp_path / "sagc")
    rows = [
        trajectory("a", s, response_tokens=1000 if s == 0 else 100 + s, end=20.0 if s == 0 else 2.0) for s in range(4)
    ]
    rows += [trajectory("b", s, reward=1.0, filter_value=1.0) for s in range(4)]
    rows += [failed("c", s) for s in range(2)]
    train(made, 1, step_of(rows), trained={"a"})
    train(made, 2, played(8))
    made.close()

    run = load_run(tmp_path)
    assert run.name == "project/run"
    assert run.warnings == []
    rollouts = run.rollouts[run.rollouts["step"] == 1].set_index(["uid", "session"])
    assert len(rollouts) == 10
    assert rollouts["exceeds"].tolist() == [True] + [False] * 9
    assert rollouts.loc[("a", 0), "cause"] == "long_response"
    assert rollouts["status"].tolist() == ["trained"] * 4 + ["filtered"] * 4 + ["failed"] * 2
    assert rollouts.loc[("a", 0), "end_s"] == 20.0
    assert rollouts["preempted"].isna().all()  # veRL says -1 where it does not know
    assert rollouts.loc[("a", 1), "generate_s"] == 1.5

    groups = run.groups[run.groups["step"] == 1].set_index("uid")
    assert groups["status"].tolist() == ["trained", "filtered", "failed"]
    assert groups["straggler"].tolist()[:2] == [True, False]
    assert groups.loc["a", "max"] == 1000
    assert groups.loc["a", "reward_mean"] == 0.5
    assert groups.loc["a", "reward_std"] == 0.5
    assert groups["silent"].tolist()[:2] == [False, True]
    assert groups.loc["c"].isna()[["max", "ratio", "reward_mean", "silent", "straggler"]].all()

    steps = run.steps.set_index("step")
    assert steps["n"].tolist() == [8, 8]
    assert steps.loc[1, "straggler_rate"] == 0.5
    assert steps.loc[1, "rollouts"] == 10
    assert steps.loc[1, "padding_rows"] == 3
    assert steps.loc[1, "critic/score/mean"] == 0.5
    assert steps.loc[1, "sagc/straggler_rate"] == 0.5
    assert steps.loc[1, "p_hat/8"] == pytest.approx(steps.loc[1, "sagc/p_hat/8"])
    assert "words" not in steps


def test_a_resumed_run_writes_a_new_attempt(tmp_path: Path) -> None:
    for resume_step, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        made = session(tmp_path / "sagc", resume_step)
        for step in steps:
            train(made, step, played(8))
        made.close()
    steps = load_run(tmp_path).steps
    assert steps["step"].tolist() == [1, 2, 3, 4]
    assert steps["attempt"].tolist() == [1, 1, 2, 2]


def test_no_records_are_no_fault(tmp_path: Path) -> None:
    made = session(None)
    assert train(made, 1, played(8))["sagc/faults"] == 0
    made.close()
    assert list(tmp_path.iterdir()) == []
