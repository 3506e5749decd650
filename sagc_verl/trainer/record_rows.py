"""One step as columns of the three tables (records/tables.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sagc_verl.control.config import SagcConfig
from sagc_verl.control.controller import StepReport
from sagc_verl.trainer.step_rollouts import StepRollouts


def rollout_columns(
    rollouts: StepRollouts, report: StepReport, statuses: np.ndarray, config: SagcConfig
) -> dict[str, Any]:
    """Columns of the rollouts table, R rows in the order of `rollouts`."""
    from sagc_verl.records import causes

    columns = rollouts.columns
    came_back = rollouts.counted
    exceeds = np.zeros(len(rollouts), dtype=bool)
    if report.events is not None:
        exceeds[came_back] = report.events.exceeds
    rows: dict[str, Any] = {
        "uid": columns["uid"],
        "prompt_index": columns["prompt_index"],
        "data_source": columns["data_source"],
        "session": columns["session"],
        "n": np.full(len(rollouts), report.size),
        "prompt_tokens": columns["prompt_tokens"],
        "response_tokens": columns["response_tokens"],
        "truncated": columns["truncated"],
        "start_s": columns["start"],
        "end_s": columns["end"],
        "queue_s": columns["queue_s"],
        "generate_s": columns["generate_s"] - np.nan_to_num(columns["queue_s"]),
        "tool_s": columns["tool_s"],
        "reward_s": columns["reward_s"],
        "turns": columns["turns"],
        "preempted": np.where(columns["preempted"] < 0, np.nan, columns["preempted"]),  # veRL: -1 where not known
        "reward": columns["reward"],
        "exceeds": exceeds,
        "status": statuses,
        "worker": columns["worker"],
    }
    rows["cause"] = causes.classify(rows, config.threshold, "seconds" if config.signal == "seconds" else "tokens")
    return rows


def group_columns(rollouts: StepRollouts, report: StepReport, statuses: np.ndarray) -> dict[str, Any]:
    """Columns of the groups table, one row per group in the order of `rollouts`."""
    columns = rollouts.columns
    uids, first, group_of = np.unique(columns["uid"], return_index=True, return_inverse=True)
    count = len(uids)
    groups: dict[str, Any] = {
        "uid": uids,
        "prompt_index": columns["prompt_index"][first],
        "data_source": columns["data_source"][first],
        "n": np.full(count, report.size),
        "status": _group_statuses(statuses, group_of, count),
    }
    rewards = columns["reward"]
    known = rollouts.counted & ~np.isnan(rewards)
    rows = np.bincount(group_of[known], minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group_of[known], rewards[known], minlength=count) / rows
        deviation = rewards[known] - mean[group_of[known]]
        std = np.sqrt(np.bincount(group_of[known], deviation**2, minlength=count) / rows)
    spread = np.full(count, -np.inf)
    np.maximum.at(spread, group_of[known], rewards[known])
    low = np.full(count, np.inf)
    np.minimum.at(low, group_of[known], rewards[known])
    groups.update(reward_mean=mean, reward_std=std)
    groups["silent"] = np.where(rows > 0, (spread == low).astype(float), np.nan)

    events = report.events
    if events is not None:
        # The controller saw the groups of which something came back, in the same order.
        seen = np.unique(group_of[rollouts.counted])
        for name in ("max", "median", "ratio", "reference", "exceeding", "straggler", "blind"):
            values = np.full(count, np.nan)
            values[seen] = getattr(events, name)
            groups[name] = values
    return groups


def _group_statuses(statuses: np.ndarray, group_of: np.ndarray, count: int) -> np.ndarray:
    """A group is what its rollouts are; failed only when all of them are."""
    came_back = np.flatnonzero(statuses != "failed")
    seen, first = np.unique(group_of[came_back], return_index=True)
    of_group = np.full(count, "failed", dtype=object)
    of_group[seen] = statuses[came_back[first]]
    return of_group


def step_columns(report: StepReport, metrics: Mapping[str, Any], padding_rows: int, refills: int) -> dict[str, Any]:
    """The fixed columns of the steps table."""
    row = {
        "n": report.size,
        "next_n": report.next_size,
        "reason": report.reason,
        "queue": report.queue,
        "cost": report.cost,
        "cost_mean": report.cost_mean,
        "straggler_rate": report.straggler_rate,
        "straggler_rate_mean": report.straggler_rate_mean,
        "waiting_share": report.waiting_share,
        "budget": report.budget,
        "cumulative_excess": report.cumulative_excess,
        "debt_forgiven": report.debt_forgiven,
        "padding_rows": padding_rows,
        "refills": refills,
    }
    row.update({f"p_hat/{size}": risk for size, risk in report.risk.items()})
    names = (
        "tail_s",
        "idle_share",
        "stall",
        "gen_share_top1",
        "gen_share_top2",
        "gen_share_top5",
        "tokens",
        "rollouts",
    )
    row.update({name: metrics[f"sagc/{name}"] for name in names if f"sagc/{name}" in metrics})
    return row
