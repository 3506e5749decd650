"""The comparison itself: settings, their numbers, and how two of them differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sagc_verl.report.evals import scores_dict
from sagc_verl.report.measures import RunMeasures
from sagc_verl.report.metrics import Metric
from sagc_verl.report.settings import UNKNOWN, Difference
from sagc_verl.report.statistics import Estimate, finite_mean, mean_estimate, seed_difference

# Kinds of difference that spoil some of the numbers only; the line of that kind says which.
_PARTLY = ("steps", "straggler event")


@dataclass(frozen=True)
class Setting:
    """One line of the comparison: one run, or several that differ in nothing but their seed.

    Attributes:
        label: a short name that no other setting of the comparison has.
        runs: its runs.
        values: per metric key the number; over steps for one run, over seeds for several.
        reached: per cost ("steps", "seconds", "rollouts", "tokens") what it took to the target reward.
        budget: the budget that its cost was held against, nan where unknown.
    """

    label: str
    runs: tuple[RunMeasures, ...]
    values: dict[str, Estimate]
    reached: dict[str, Estimate]
    budget: float

    @property
    def cost_key(self) -> str:
        """The metric that the budget limits."""
        return "waiting_share" if self.runs[0].settings.constraint == "waiting" else "straggler_rate"

    @property
    def over_budget(self) -> bool:
        return self.values[self.cost_key].value > self.budget

    @property
    def policy(self) -> str | None:
        return self.runs[0].settings.policy

    @property
    def static_size(self) -> int | None:
        """The one group size of a run whose size never moved; None for any other."""
        if self.policy in ("sagc", "schedule"):
            return None
        sizes = {int(size) for run in self.runs for size in run.column("n") if math.isfinite(size)}
        if not sizes and self.runs[0].settings.rollout_n is not None:
            return self.runs[0].settings.rollout_n
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def largest_size(self) -> int | None:
        """The largest size that the controller could have played."""
        settings = self.runs[0].settings
        return max([*settings.sizes, settings.rollout_n or 0]) or None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        settings: in the order given.
        target: the highest smoothed reward that every run reaches; nan where rewards are unknown.
        target_run: the run whose best that is; "" where there is one run or none.
        window: steps of the smoothing behind `target`.
        right_above: a rollout counted as a right answer where its reward was above this.
        differences: configuration keys on which settings differ, those that spoil the comparison first.
        incomparable: what makes the runs incomparable, one line per kind.
        missing: plain sentences on the fair comparators that are not among the runs.
        warnings: what could not be read.
        sentences: what the numbers support and what they do not.
    """

    settings: tuple[Setting, ...]
    target: float
    target_run: str
    window: int
    right_above: float
    differences: tuple[Difference, ...]
    incomparable: tuple[str, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON."""
        return {
            "target_reward": self.target,
            "smoothing_steps": self.window,
            "right_above": self.right_above,
            "settings": [_setting_dict(setting) for setting in self.settings],
            "incomparable": list(self.incomparable),
            "missing_comparators": list(self.missing),
            "differences": [
                {"kind": difference.kind or "other", "key": difference.key, "values": list(difference.values)}
                for difference in self.differences
            ],
            "verdicts": list(self.sentences),
            "warnings": list(self.warnings),
        }


def difference(first: Setting, second: Setting, metric: Metric, relative: bool = False) -> Estimate:
    """`first` less `second` in one metric; as a share of `second` where `relative`.

    With several seeds on both sides: between seeds. Else, for a mean over steps of two runs: step by step over the
    steps that both have. Else the plain difference, without an interval.
    """
    base = second.values[metric.key].value
    seeds = (len(first.runs), len(second.runs))
    if min(seeds) > 1:
        change = seed_difference(_per_run(first, metric), _per_run(second, metric))
    elif metric.per_step is not None and max(seeds) == 1:
        one, other = _common_steps(first.runs[0], second.runs[0], metric.per_step)
        if metric.last_tenth:
            last = -max(1, math.ceil(len(one) / 10))
            one, other = one[last:], other[last:]
        change, base = mean_estimate(one - other), finite_mean(other)
    else:
        change = Estimate(first.values[metric.key].value - base)
    if not relative:
        return change
    return change.scaled(1 / base) if base > 0 else Estimate(math.nan)


def differences_between(comparison: Comparison, first: Setting, second: Setting) -> list[Difference]:
    """The configuration keys on which two settings are known to differ."""
    places = [comparison.settings.index(first), comparison.settings.index(second)]
    return [entry for entry in comparison.differences if len({entry.values[place] for place in places} - {UNKNOWN}) > 1]


def spoiled_by(comparison: Comparison, first: Setting, second: Setting) -> list[str]:
    """What makes two settings incomparable ("data", "seed", ...); empty where nothing does."""
    kinds = dict.fromkeys(entry.kind for entry in differences_between(comparison, first, second) if entry.kind)
    return [kind for kind in kinds if kind not in _PARTLY]


def _per_run(setting: Setting, metric: Metric) -> np.ndarray:
    return np.array([metric.estimate(run).value for run in setting.runs])


def _common_steps(first: RunMeasures, second: RunMeasures, column: str) -> tuple[np.ndarray, np.ndarray]:
    _, rows, others = np.intersect1d(first.column("step"), second.column("step"), return_indices=True)
    return first.column(column)[rows], second.column(column)[others]


def _setting_dict(setting: Setting) -> dict[str, Any]:
    return {
        "label": setting.label,
        "runs": [run.name for run in setting.runs],
        "seeds": [run.settings.seed_text for run in setting.runs],
        "policy": setting.policy,
        "constrained": setting.cost_key,
        "budget": setting.budget,
        "values": {key: vars(value) for key, value in setting.values.items()},
        "to_target_reward": {key: vars(value) for key, value in setting.reached.items()},
        "evaluation": scores_dict(setting),
        "validation": {
            str(name): [run.validation[name].dropna().iloc[-1] for run in setting.runs if name in run.validation]
            for name in dict.fromkeys(name for run in setting.runs for name in run.validation.columns)
        },
    }
