"""The numbers that runs are compared by: one entry each, used by the table, the verdicts and the HTML report."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sagc_verl.report import numbers
from sagc_verl.report.measures import RunMeasures, tenth
from sagc_verl.report.statistics import (
    MIN_STEPS,
    SEED,
    Estimate,
    block_indices,
    bootstrap,
    finite_mean,
    finite_sum,
    mean_estimate,
    ratio_estimate,
    trailing_mean,
)


@dataclass(frozen=True)
class Metric:
    """One number of a run.

    Attributes:
        key: its name in JSON.
        label: its name for readers, with the unit.
        meaning: one sentence.
        form: value -> text.
        estimate: the number of one run, with an interval over its steps where that makes sense.
        per_step: the column of `RunMeasures.steps` that the number is the mean of: two runs are then compared step by
            step. None for totals and for what is read off a curve.
        last_tenth: the mean is over the last tenth of the steps only.
    """

    key: str
    label: str
    meaning: str
    form: Callable[[float], str]
    estimate: Callable[[RunMeasures], Estimate]
    per_step: str | None = None
    last_tenth: bool = False


def _mean_of(column: str) -> Callable[[RunMeasures], Estimate]:
    return lambda measures: mean_estimate(measures.column(column))


def _sum_of(column: str) -> Callable[[RunMeasures], Estimate]:
    return lambda measures: Estimate(finite_sum(measures.column(column)))


def _last_tenth(measures: RunMeasures) -> Estimate:
    return mean_estimate(tenth(measures, "reward", last=True))


def reward_gain(measures: RunMeasures) -> Estimate:
    """Reward of the last tenth of the steps less reward of the first tenth, with the interval of both."""
    first, last = tenth(measures, "reward", last=False), tenth(measures, "reward", last=True)
    first, last = first[np.isfinite(first)], last[np.isfinite(last)]
    value = finite_mean(last) - finite_mean(first)
    if min(first.size, last.size) < MIN_STEPS:
        return Estimate(value)
    # Two ends of a run are far apart, so each is drawn on its own.
    first_means = first[block_indices(first.size, seed=SEED + 1)].mean(axis=1)
    return bootstrap(lambda rows: last[rows].mean(axis=1) - first_means, value, last.size)


def _gain_per(column: str, unit: float = 1.0) -> Callable[[RunMeasures], Estimate]:
    def estimate(measures: RunMeasures) -> Estimate:
        spent = finite_sum(measures.column(column))
        return reward_gain(measures).scaled(unit / spent) if spent > 0 else Estimate(math.nan)

    return estimate


def _per_second(column: str) -> Callable[[RunMeasures], Estimate]:
    return lambda measures: ratio_estimate(measures.column(column), measures.column("wall_s"))


METRICS: tuple[Metric, ...] = (
    Metric("steps", "steps", "Finished steps on record.", numbers.count, lambda run: Estimate(float(len(run.steps)))),
    Metric("wall_seconds", "wall seconds", "Wall time of the steps, summed.", numbers.seconds, _sum_of("wall_s")),
    Metric(
        "step_seconds", "seconds per step", "Mean wall time of a step.", numbers.plain, _mean_of("wall_s"), "wall_s"
    ),
    Metric(
        "straggler_rate",
        "straggler rate",
        "Mean share of groups with a straggler.",
        numbers.share,
        _mean_of("straggler_rate"),
        "straggler_rate",
    ),
    Metric(
        "waiting_share",
        "waiting share",
        "Mean share of a group's slot time spent waiting for its longest rollout: 1 - mean length / longest length.",
        numbers.share,
        _mean_of("waiting_share"),
        "waiting_share",
    ),
    Metric("mean_n", "mean n", "Mean group size over steps.", numbers.plain, _mean_of("n"), "n"),
    Metric(
        "rollouts",
        "rollouts",
        "Rollouts generated, filtered and surplus ones included.",
        numbers.count,
        _sum_of("rollouts"),
    ),
    Metric("tokens", "response tokens", "Response tokens generated.", numbers.count, _sum_of("tokens")),
    Metric(
        "tokens_per_second",
        "response tokens per second",
        "Response tokens generated per second of wall time.",
        numbers.plain,
        _per_second("tokens"),
    ),
    Metric(
        "tail_seconds",
        "tail seconds",
        "From 90% of a step's rollouts done to the last.",
        numbers.plain,
        _mean_of("tail_s"),
        "tail_s",
    ),
    Metric(
        "idle_share",
        "idle share",
        "Idle share of the rollout phase.",
        numbers.share,
        _mean_of("idle_share"),
        "idle_share",
    ),
    Metric(
        "length_mean",
        "response length",
        "Mean response length in tokens.",
        numbers.plain,
        _mean_of("length_mean"),
        "length_mean",
    ),
    Metric(
        "truncated_share",
        "truncated",
        "Share of responses stopped by the length limit.",
        numbers.share,
        _mean_of("truncated_share"),
        "truncated_share",
    ),
    Metric(
        "thrown_away_share",
        "thrown away",
        "Share of rollouts that were filtered (DAPO) or came too late.",
        numbers.share,
        _mean_of("thrown_away_share"),
        "thrown_away_share",
    ),
    Metric(
        "silent_share",
        "silent groups",
        "Share of groups whose rewards are all equal: they teach nothing, and small groups have more of them.",
        numbers.share,
        _mean_of("silent_share"),
        "silent_share",
    ),
    Metric("refills", "refills", "Prompts sent again to fill the batch (DAPO).", numbers.count, _sum_of("refills")),
    Metric(
        "reward",
        "reward",
        "Mean reward of the last tenth of the steps.",
        numbers.plain,
        _last_tenth,
        "reward",
        last_tenth=True,
    ),
    Metric(
        "reward_mean", "reward, whole run", "Mean reward over all steps.", numbers.plain, _mean_of("reward"), "reward"
    ),
    Metric(
        "reward_gain",
        "reward gained",
        "Reward of the last tenth less that of the first tenth.",
        numbers.plain,
        reward_gain,
    ),
    Metric(
        "reward_per_second",
        "reward per second",
        "Reward gained, per second of wall time.",
        numbers.plain,
        _gain_per("wall_s"),
    ),
    Metric(
        "reward_per_1000_rollouts",
        "reward per 1,000 rollouts",
        "Reward gained, per 1,000 rollouts generated.",
        numbers.plain,
        _gain_per("rollouts", 1000.0),
    ),
)
BY_KEY = {metric.key: metric for metric in METRICS}


@dataclass(frozen=True)
class Reach:
    """What it took a run to get its smoothed reward to the target.

    `steps`, `seconds`, `rollouts`, `tokens` are nan where the target was never reached or the cost is unknown.
    """

    steps: Estimate
    seconds: Estimate
    rollouts: Estimate
    tokens: Estimate


REACH_COSTS = (("steps", "step"), ("seconds", "seconds_done"), ("rollouts", "rollouts_done"), ("tokens", "tokens_done"))


def best_smoothed(measures: RunMeasures, window: int) -> float:
    """The highest trailing mean of the reward over `window` steps; nan where no reward is known."""
    smooth = _smooth_reward(measures, window)
    return float(np.nanmax(smooth)) if np.isfinite(smooth).any() else math.nan


def reach(measures: RunMeasures, target: float, window: int) -> Reach:
    """Steps, seconds, rollouts and tokens until the trailing mean of the reward over `window` steps is at `target`.

    The interval redraws the step-to-step noise around the smoothed curve in blocks. It is left out where a twentieth or
    more of the redrawn curves never get there.
    """
    smooth = _smooth_reward(measures, window)
    row = _first_at(smooth[None, :], target)[0]
    nothing = Estimate(math.nan)
    if row < 0:
        return Reach(nothing, nothing, nothing, nothing)
    rows = _redrawn_rows(measures, smooth, target, window)
    found: dict[str, Estimate] = {}
    for name, column in REACH_COSTS:
        done = measures.column(column)
        if name == "steps":
            done = np.arange(1, len(done) + 1, dtype=float)
        if rows is None or not np.isfinite(done).all():
            found[name] = Estimate(float(done[row]))
        else:
            low, high = np.quantile(done[rows], [0.025, 0.975])
            found[name] = Estimate(float(done[row]), float(low), float(high))
    return Reach(**found)


def _smooth_reward(measures: RunMeasures, window: int) -> np.ndarray:
    smooth = trailing_mean(measures.column("reward"), window)
    smooth[: window - 1] = np.nan  # a mean over fewer steps would win by luck
    return smooth


def _redrawn_rows(measures: RunMeasures, smooth: np.ndarray, target: float, window: int) -> np.ndarray | None:
    noise = measures.column("reward") - smooth
    start = window - 1
    noise = noise[start:]
    if noise.size < 8 or not np.isfinite(noise).all():
        return None
    noise = noise - noise.mean()
    drawn = noise[block_indices(noise.size, resamples=400)]
    sums = np.cumsum(drawn, axis=1)
    sums[:, window:] -= sums[:, :-window].copy()
    counts = np.minimum(np.arange(1, noise.size + 1), window)
    rows = _first_at(smooth[None, start:] + sums / counts, target)
    if (rows < 0).mean() >= 0.05:
        return None
    return rows[rows >= 0] + start


def _first_at(curves: np.ndarray, target: float) -> np.ndarray:
    """First column at which each row (curves, steps) is at or above the target; -1 for never."""
    there = np.nan_to_num(curves, nan=-np.inf) >= target - 1e-12
    return np.where(there.any(axis=1), there.argmax(axis=1), -1)
