"""The step-time model from recorded timings: a run's steps table or an imported veRL log.

    generation_t  ~  overhead + a * longest_t + (b / engines) * tokens_t
    log-prob_t    ~  logprob * total tokens_t;    update_t alike
    sync, other      medians of what is recorded

Least absolute deviations (a slow step or two must not bend the line), no constant below zero. Every fifth step is held
back: the error is what the fit says of those.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.steptime import StepTime

if TYPE_CHECKING:
    import pandas as pd

HELD_BACK_EVERY = 5
MIN_STEPS = 10
STEADY = 0.02
"""Longest rollouts that vary by less than this share over the steps say nothing of what they cost."""
_LONGEST = ("response_length/max",)
_GENERATION = ("timing_s/gen", "timing_s/generate_sequences")
_LOGPROB = ("timing_s/old_log_prob", "timing_s/ref", "timing_s/values", "timing_s/compute_log_prob")
_UPDATE = ("timing_s/update_actor", "timing_s/update_critic")
_SYNC = ("timing_s/update_weights", "timing_s/sync", "timing_s/reshard", "timing_s/wake_up", "timing_s/sleep")
_STEP = ("timing_s/step", "wall_s", "perf/time_per_step", "time_per_step")
_NOT_TRAINING = ("timing_s/testing", "timing_s/save_checkpoint", "timing_s/validate")
_TOTAL_TOKENS = ("perf/total_num_tokens", "total_num_tokens")


@dataclass(frozen=True)
class Fit:
    """A fitted model and how far off it is on steps it has not seen."""

    model: StepTime
    steps: int
    held_back: int
    generation_error: float
    """Median of |predicted - recorded| / recorded over held-back steps, generation."""
    step_error: float
    """The same for whole steps; NaN where whole steps are not recorded."""
    constant_error: float
    """The error in generation of always predicting the median: what a fit must beat."""
    notes: list[str]

    def line(self) -> str:
        step = "" if np.isnan(self.step_error) else f", whole step {100 * self.step_error:.1f}%"
        return (
            f"generation = {self.model.overhead:.3g} + {self.model.a:.3g} * longest + "
            f"{self.model.b / self.model.engines:.3g} "
            f"* tokens; median error on {self.held_back} held-back steps {100 * self.generation_error:.1f}%{step} "
            f"(a constant: {100 * self.constant_error:.1f}%)"
        )


def _first(frame: pd.DataFrame, names: tuple[str, ...]) -> np.ndarray | None:
    for name in names:
        if name in frame.columns:
            values = frame[name].to_numpy(np.float64, na_value=np.nan)
            if np.isfinite(values).any():
                return values
    return None


def _sum(frame: pd.DataFrame, names: tuple[str, ...]) -> np.ndarray | None:
    found = [frame[name].to_numpy(np.float64, na_value=np.nan) for name in names if name in frame.columns]
    return np.nansum(found, axis=0) if found else None


def rollouts_of(frame: pd.DataFrame) -> np.ndarray | None:
    """Rollouts of each step, float64 (T,): recorded, or from token counts; None where neither is there."""
    recorded = _first(frame, ("rollouts",))
    if recorded is not None:
        return recorded
    total = _first(frame, _TOTAL_TOKENS)
    response, prompt = _first(frame, ("response_length/mean",)), _first(frame, ("prompt_length/mean",))
    if total is None or response is None or prompt is None:
        return None
    return np.rint(total / (response + prompt))


def fit_step_time(frame: pd.DataFrame, name: str, engines: int = 1, slots: int = 0) -> Fit:
    """Fit the model to a steps table.

    Args:
        frame: one row per step, veRL's metrics under their own names.
        name: what errors call it.
        engines: rollout engines of that run (scales b only).
        slots: rollouts an engine ran at once; 0: no limit known. A queue in the recorded run ends up in ``a``.

    Raises:
        SourceError: the timings needed are not there, or of too few steps.
    """
    generation, longest = _first(frame, _GENERATION), _first(frame, _LONGEST)
    rollouts = rollouts_of(frame)
    mean = _first(frame, ("response_length/mean",))
    tokens = _first(frame, ("tokens",))
    if tokens is None and mean is not None and rollouts is not None:
        tokens = mean * rollouts
    needed = {
        "timing_s/gen": generation,
        "response_length/max": longest,
        "tokens (or rollouts and mean length)": tokens,
    }
    missing = [key for key, values in needed.items() if values is None]
    if missing or generation is None or longest is None or tokens is None:
        raise SourceError(f"{name}: no step time can be fitted: it does not record {', '.join(missing)}")
    good = np.isfinite(generation) & np.isfinite(longest) & np.isfinite(tokens) & (generation > 0)
    if good.sum() < MIN_STEPS:
        raise SourceError(
            f"{name}: no step time can be fitted: timings of {good.sum()} steps, at least {MIN_STEPS} needed"
        )
    frame, generation, longest, tokens = frame.loc[good], generation[good], longest[good], tokens[good]
    held = np.arange(len(generation)) % HELD_BACK_EVERY == HELD_BACK_EVERY - 1

    notes = []
    features = np.column_stack([np.ones(len(longest)), longest, tokens])
    if longest[~held].std() < STEADY * longest.mean():
        features[:, 1] = 0.0
        notes.append(
            "the longest rollout is the same at every step (the cap): what it costs cannot be told from a constant"
        )
    overhead, a, per_token = least_absolute(features[~held], generation[~held])
    predicted = features @ np.array([overhead, a, per_token])

    total = _first(frame, _TOTAL_TOKENS)
    prompt_mean = _first(frame, ("prompt_length/mean",))
    prompt_tokens = float(np.nanmedian(prompt_mean)) if prompt_mean is not None else 0.0
    if total is None:
        count = rollouts_of(frame)
        total = tokens + (prompt_tokens * count if count is not None else 0.0)
    logprob, update = (_per_token(_sum(frame, names), total, ~held) for names in (_LOGPROB, _UPDATE))
    sync_times = _sum(frame, _SYNC)
    sync = float(np.nanmedian(sync_times)) if sync_times is not None else 0.0
    step = _first(frame, _STEP)
    other, step_error = 0.0, np.nan
    if step is not None:
        aside = _sum(frame, _NOT_TRAINING)
        step = step - (aside if aside is not None else 0.0)
        partly = predicted + (logprob + update) * total + sync
        other = max(0.0, float(np.nanmedian((step - partly)[~held])))
        step_error = _median_error(partly[held] + other, step[held])
    else:
        notes.append("whole steps are not recorded: only generation, log-prob and update count")
    model = replace(
        StepTime(),
        a=a,
        b=per_token * engines,
        overhead=overhead,
        logprob=logprob,
        update=update,
        sync=sync,
        other=other,
        prompt_tokens=prompt_tokens,
        engines=engines,
        slots=slots,
        origin=f"fitted to {int((~held).sum())} steps of {name}",
    )
    return Fit(
        model,
        steps=len(generation),
        held_back=int(held.sum()),
        generation_error=_median_error(predicted[held], generation[held]),
        step_error=step_error,
        constant_error=_median_error(np.full(held.sum(), np.median(generation[~held])), generation[held]),
        notes=notes,
    )


def _median_error(predicted: np.ndarray, recorded: np.ndarray) -> float:
    return float(np.nanmedian(np.abs(predicted - recorded) / recorded))


def _per_token(seconds: np.ndarray | None, tokens: np.ndarray, used: np.ndarray) -> float:
    if seconds is None:
        return 0.0
    return float(np.nanmedian(seconds[used] / tokens[used]))


def least_absolute(features: np.ndarray, target: np.ndarray, rounds: int = 30) -> np.ndarray:
    """Coefficients float64 (K,) >= 0 of features (T, K) with small sum of absolute residuals."""
    weights = np.ones(len(target))
    found = np.zeros(features.shape[1])
    for _ in range(rounds):
        found = _non_negative(features * weights[:, None], target * weights)
        residual = np.abs(target - features @ found)
        weights = 1 / np.sqrt(np.maximum(residual, 1e-3 * np.median(np.abs(target)) + 1e-12))
    return found


def _non_negative(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares with coefficients >= 0: of every subset of so few columns, the best that is."""
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    count = features.shape[1]
    best, best_cost = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for subset in map(list, itertools.combinations(range(count), size)):
            part = np.linalg.lstsq(features[:, subset] / scale[subset], target, rcond=None)[0] / scale[subset]
            if (part < 0).any():
                continue
            cost = float(((target - features[:, subset] @ part) ** 2).sum())
            if cost < best_cost * (1 - 1e-12):
                best, best_cost = np.zeros(count), cost
                best[subset] = part
    return best
