"""The `sagc/*` scalars that go with veRL's own metrics to every logger. Their meaning is in docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sagc_verl.control.controller import StepReport


def report_metrics(report: StepReport) -> dict[str, float]:
    """What the controller saw and decided."""
    metrics: dict[str, float] = {
        "sagc/size": report.size,
        "sagc/next_size": report.next_size,
        "sagc/moved": float(report.next_size != report.size),
        "sagc/cost": report.cost,
        "sagc/cost_mean": report.cost_mean,
        "sagc/straggler_rate": report.straggler_rate,
        "sagc/straggler_rate_mean": report.straggler_rate_mean,
        "sagc/waiting_share": report.waiting_share,
        "sagc/budget": report.budget,
        "sagc/queue": report.queue,
        "sagc/cumulative_excess": report.cumulative_excess,
        "sagc/debt_forgiven": report.debt_forgiven,
        "sagc/infeasible": float(report.infeasible),
        "sagc/ratio_mean": report.ratio_mean,
        "sagc/truncated_share": report.truncated_share,
        "sagc/blind_share": report.blind_share,
        "sagc/step_straggler": float(report.step_straggler),
        "sagc/groups": report.groups,
        # Centred advantages shrink with n: their variance is (1 - 1/n) of the reward's.
        "sagc/advantage_scale": 1 - 1 / report.size,
    }
    metrics.update({f"sagc/p_hat/{size}": risk for size, risk in report.risk.items()})
    return {name: float(value) for name, value in metrics.items() if not math.isnan(value)}


def rollout_metrics(rows: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, float]:
    """What the rollouts of the step looked like, thrown away ones included.

    Args:
        rows: columns of the rollouts table (record_rows.py).
        groups: columns of the groups table.
    """
    from sagc_verl.records import timeline

    status = rows["status"]
    tokens, reward, came_back = rows["response_tokens"], rows["reward"], status != "failed"
    metrics: dict[str, float] = {
        "sagc/rollouts": len(status),
        "sagc/rollouts_failed": int(np.sum(status == "failed")),
        "sagc/rollouts_filtered": int(np.sum(status == "filtered")),
        "sagc/rollouts_surplus": int(np.sum(status == "surplus")),
        "sagc/tokens": int(np.sum(tokens[came_back])),
    }
    preempted = np.asarray(rows["preempted"], dtype=float)
    if not np.all(np.isnan(preempted)):
        metrics["sagc/rollouts_preempted"] = int(np.sum(preempted > 0))
    silent = np.asarray(groups["silent"], dtype=float)
    if len(silent):
        metrics["sagc/silent_share"] = float(np.nanmean(silent)) if not np.all(np.isnan(silent)) else math.nan
    known = came_back & np.isfinite(reward)
    if known.any():
        # A shift to short answers as n falls must be visible: length by outcome, split at the step's mean reward.
        better = reward >= np.mean(reward[known])
        for name, chosen in (("better", known & better), ("worse", known & ~better)):
            if chosen.any():
                metrics[f"sagc/response_tokens_{name}"] = float(np.mean(tokens[chosen]))
    metrics.update({f"sagc/{name}": value for name, value in timeline.step_columns(rows).items()})
    return {name: float(value) for name, value in metrics.items() if not math.isnan(value)}
