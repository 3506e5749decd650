"""The few statistics the reports use: trailing means, block bootstrap intervals, spread between seeds.

A run's steps are neither independent (the policy changes slowly) nor exchangeable (it changes). So intervals come from
a moving-block bootstrap (Kuensch, Annals of Statistics 17(3), 1989): blocks of consecutive steps are drawn with
replacement, block length ceil(T^(1/3)) for T steps. Two runs are compared step by step (step 7 against step 7), which
takes the common trend of training out of the comparison. Percentile intervals of few blocks are too narrow; theirs are
widened as Student's t would be (the expanded interval of Hesterberg, The American Statistician 69(4), 2015), and below
MIN_STEPS steps there is none. Every draw uses the same fixed seed, so a report is the same
each time it is made. Such an interval speaks about the steps of the runs at hand; it cannot say what another seed
would have done. Where several seeds are there, the spread between them is used instead (Welch's t interval).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
SEED = 20260601
MIN_STEPS = 8
LEVEL = 0.95  # coverage of every interval

# Two-sided 95% quantiles of Student's t for 1..30 degrees of freedom; beyond, the normal's is close enough.
_T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL_QUANTILE = 1.960


@dataclass(frozen=True)
class Estimate:
    """A number with its interval. `low` and `high` are nan where there is too little data for an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def excludes_zero(self) -> bool:
        return self.has_interval and (self.low > 0 or self.high < 0)

    def scaled(self, factor: float) -> Estimate:
        """The same estimate in another unit; `factor` > 0."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


def finite_mean(values: np.ndarray) -> float:
    """Mean of the finite entries; nan where there is none."""
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else math.nan


def finite_sum(values: np.ndarray) -> float:
    """Sum of the finite entries; nan where there is none."""
    values = values[np.isfinite(values)]
    return float(values.sum()) if values.size else math.nan


def last_finite(values: np.ndarray) -> float:
    """The last finite entry; nan where there is none."""
    values = values[np.isfinite(values)]
    return float(values[-1]) if values.size else math.nan


def block_length(steps: int) -> int:
    """Steps per block for a series of `steps` steps."""
    return max(1, math.ceil(steps ** (1 / 3)))


def block_indices(steps: int, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
    """Row numbers of bootstrap series: int64 (resamples, steps), built from blocks of consecutive rows."""
    size = block_length(steps)
    blocks = math.ceil(steps / size)
    starts = np.random.default_rng(seed).integers(0, steps - size + 1, size=(resamples, blocks))
    rows = starts[:, :, None] + np.arange(size)
    return rows.reshape(resamples, -1)[:, :steps]


def bootstrap(statistic: Callable[[np.ndarray], np.ndarray], value: float, steps: int) -> Estimate:
    """A statistic with its interval.

    Args:
        statistic: maps row numbers (resamples, steps) to values (resamples,).
        value: the statistic of the series itself.
        steps: length of the series the row numbers point into.
    """
    if steps < MIN_STEPS:
        return Estimate(value)
    values = statistic(block_indices(steps))
    values = values[np.isfinite(values)]
    if values.size == 0:
        return Estimate(value)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    blocks = steps // block_length(steps)
    wider = t_quantile(blocks - 1) / _NORMAL_QUANTILE * math.sqrt(blocks / (blocks - 1))
    return Estimate(value, value - wider * max(value - float(low), 0.0), value + wider * max(float(high) - value, 0.0))


def mean_estimate(series: np.ndarray) -> Estimate:
    """Mean of a series (steps,) with its block-bootstrap interval; nan entries are left out."""
    series = series[np.isfinite(series)]
    if series.size == 0:
        return Estimate(math.nan)
    return bootstrap(lambda rows: series[rows].mean(axis=1), float(series.mean()), series.size)


def ratio_estimate(top: np.ndarray, bottom: np.ndarray) -> Estimate:
    """sum(top) / sum(bottom) of two series (steps,) drawn together, e.g. rollouts per second."""
    there = np.isfinite(top) & np.isfinite(bottom)
    top, bottom = top[there], bottom[there]
    if top.size == 0 or bottom.sum() == 0:
        return Estimate(math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return bootstrap(
            lambda rows: top[rows].sum(axis=1) / bottom[rows].sum(axis=1), float(top.sum() / bottom.sum()), top.size
        )


def trailing_mean(series: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values at each step, fewer at the start; nan entries are left out. Shape kept."""
    there = np.isfinite(series)
    sums = np.cumsum(np.where(there, series, 0.0))
    counts = np.cumsum(there)
    sums[window:] = sums[window:] - sums[:-window]
    counts[window:] = counts[window:] - counts[:-window]
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def smoothing_window(steps: int) -> int:
    """Steps that the reports average over before they read a reward off a curve: a twentieth of the run, at least 3."""
    return max(3, round(steps / 20))


def seed_estimate(values: np.ndarray) -> Estimate:
    """Mean over seeds (seeds,) with Student's t interval; no interval for one seed."""
    values = values[np.isfinite(values)]
    if values.size == 0:
        return Estimate(math.nan)
    mean = float(values.mean())
    if values.size < 2:
        return Estimate(mean)
    half = t_quantile(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(mean, mean - half, mean + half)


def seed_difference(first: np.ndarray, second: np.ndarray) -> Estimate:
    """Difference of two means over seeds, first less second, with Welch's interval."""
    first, second = first[np.isfinite(first)], second[np.isfinite(second)]
    if first.size == 0 or second.size == 0:
        return Estimate(math.nan)
    value = float(first.mean() - second.mean())
    if first.size < 2 or second.size < 2:
        return Estimate(value)
    parts = np.array([first.var(ddof=1) / first.size, second.var(ddof=1) / second.size])
    total = float(parts.sum())
    if total == 0:
        return Estimate(value, value, value)
    freedom = total**2 / float(parts[0] ** 2 / (first.size - 1) + parts[1] ** 2 / (second.size - 1))
    half = t_quantile(int(freedom)) * math.sqrt(total)
    return Estimate(value, value - half, value + half)


def t_quantile(freedom: int) -> float:
    """Two-sided 95% quantile of Student's t."""
    return _T_QUANTILES[max(freedom, 1) - 1] if freedom <= len(_T_QUANTILES) else _NORMAL_QUANTILE
