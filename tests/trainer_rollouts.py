"""Rollouts of a step as the workers hand them over, for the trainer's tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sagc_verl.trainer.step_rollouts import FIELDS, StepRollouts, from_workers


def trajectory(uid: str, session: int, **values: Any) -> list[Any]:
    """One row of `FIELDS`: a rollout of 100 tokens that came back in 2 s."""
    row: dict[str, Any] = {
        "uid": uid,
        "session": session,
        "worker": "w0",
        "prompt_index": uid,
        "data_source": "math",
        "start": 0.0,
        "end": 2.0,
        "prompt_tokens": 10,
        "response_tokens": 100,
        "truncated": False,
        "generate_s": 1.5,
        "queue_s": math.nan,
        "tool_s": 0.0,
        "reward_s": 0.1,
        "turns": 2,
        "preempted": -1,
        "reward": float(session % 2),
        "filter_value": math.nan,
        "failed": False,
    }
    return list({**row, **values}.values())


def failed(uid: str, session: int, **values: Any) -> list[Any]:
    """A rollout of which nothing came back: as the worker's stamp begins."""
    nothing = dict.fromkeys(("generate_s", "tool_s", "reward_s", "reward", "filter_value"), math.nan)
    return trajectory(
        uid, session, **{**nothing, "prompt_tokens": 0, "response_tokens": 0, "turns": 0, "failed": True, **values}
    )


def step_of(rows: Sequence[list[Any]]) -> StepRollouts:
    """The step of these rows, drained from one worker on the driver's clock."""
    return from_workers([(0.0, rows, 0.0)], 0.0)


def played(n: int, *, groups: int = 8, long: int = 0, length: int = 100, **values: Any) -> StepRollouts:
    """A step of `groups` groups of n, of which `long` hold one rollout ten times as long."""
    rows = []
    for group in range(groups):
        for session in range(n):
            tokens = length * 10 if group < long and session == 0 else length + session
            rows.append(trajectory(f"u{group}", session, response_tokens=tokens, **values))
    return step_of(rows)


assert len(trajectory("u", 0)) == len(FIELDS)
