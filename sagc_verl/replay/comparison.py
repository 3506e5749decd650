"""SAGC beside static sizes, an oracle and the usual cures for stragglers, all on the same lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sagc_verl.control import SagcConfig
from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.players import (
    Player,
    dynamic_player,
    dynamic_sagc_player,
    first_finishers_player,
    longest_first_player,
    oracle_player,
    sagc_player,
    static_player,
)
from sagc_verl.replay.steptime import StepTime
from sagc_verl.replay.truth import true_risk
from sagc_verl.replay.whatif import Outcome, play_steps
from sagc_verl.replay.workloads import Workload

OVERSAMPLING = 1.25
"""Rollouts started per rollout kept, for over-sampling."""


@dataclass(frozen=True)
class Plan:
    """What to replay."""

    config: SagcConfig
    sizes: tuple[int, ...]
    start: int | None
    steps: int
    prompts: int
    seed: int = 0
    baselines: bool = True
    """False: only sagc and static sizes."""
    oversampling: float = OVERSAMPLING

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("prompts", self.prompts)):
            if value < 1:
                raise SourceError(f"{name}={value}: must be at least 1")
        if not self.oversampling > 1:
            raise SourceError(f"oversampling={self.oversampling:g}: must be above 1")


@dataclass
class Comparison:
    """Outcomes by line, in the order shown."""

    workload: Workload
    plan: Plan
    time: StepTime
    outcomes: list[Outcome] = field(default_factory=list)
    true_risk: dict[int, float] = field(default_factory=dict)
    """Size -> true cost (by default straggler risk), the mean over the steps replayed."""
    notes: list[str] = field(default_factory=list)

    def of(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.name == name)

    @property
    def sagc(self) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.kind == "sagc")

    @property
    def largest(self) -> Outcome:
        """Static at the largest size."""
        return self.of(f"static {self.plan.sizes[-1]}")

    def statics(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.kind == "static"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "workload": self.workload.name,
            "unit": self.workload.unit,
            "recorded_n": self.workload.recorded,
            "steps": self.plan.steps,
            "prompts_per_step": self.plan.prompts,
            "seed": self.plan.seed,
            "constraint": self.plan.config.constraint,
            "threshold": self.plan.config.threshold,
            "budget": self.plan.config.budget,
            "sizes": list(self.plan.sizes),
            "step_time": self.time.origin,
            "true_risk": {str(size): risk for size, risk in self.true_risk.items()},
            "lines": [outcome.as_dict() for outcome in self.outcomes],
            "notes": self.notes,
        }


def compare_steps(workload: Workload, plan: Plan, time: StepTime) -> tuple[Comparison, Iterator[None], int]:
    """A comparison, the iterator that fills it (yields after every step of every line), and about how often."""
    comparison = Comparison(workload, plan, time, notes=list(workload.notes))
    lines = 3 + len(plan.sizes) + (4 if plan.baselines else 0)
    return comparison, _run(comparison), lines * plan.steps


def compare(workload: Workload, plan: Plan, time: StepTime) -> Comparison:
    """``compare_steps`` to its end."""
    comparison, steps, _ = compare_steps(workload, plan, time)
    for _ in steps:
        pass
    return comparison


def _run(comparison: Comparison) -> Iterator[None]:
    workload, plan, config = comparison.workload, comparison.plan, comparison.plan.config
    largest = plan.sizes[-1]
    everyone: list[Callable[[], Player]] = [lambda: sagc_player(config, plan.sizes, plan.start)]
    yield from _play_all(comparison, everyone)
    mean = comparison.sagc.mean_n
    static = sorted({*plan.sizes, math.floor(mean), math.ceil(mean)}, reverse=True)
    statics = [_of(static_player, replace(config, policy="static", schedule=None), n) for n in static]
    yield from _play_all(comparison, statics)
    if not plan.baselines:
        return
    first_steps, risk = true_risk(workload, config, plan.sizes, plan.steps, plan.prompts, plan.seed)
    spell = np.diff([*first_steps, plan.steps + 1])
    comparison.true_risk = dict(zip(plan.sizes, (spell @ risk / plan.steps).tolist(), strict=True))
    yield from _play_all(comparison, [lambda: oracle_player(config, plan.sizes, plan.start, first_steps, risk)])
    others: list[Callable[[], Player]] = []
    if workload.has_scores:
        others.append(lambda: dynamic_player(config, largest))
        others.append(lambda: dynamic_sagc_player(config, plan.sizes, plan.start))
    else:
        comparison.notes.append("no scores on record: dynamic sampling is left out")
    keep = max(2, round(largest / plan.oversampling))
    if keep < largest:
        others.append(lambda: first_finishers_player(config, largest, keep))
    if comparison.time.queues(plan.prompts * largest):
        others.append(lambda: longest_first_player(config, largest))
    else:
        comparison.notes.append("every rollout has a slot at once: the order of submission changes nothing (--slots)")
    yield from _play_all(comparison, others)


def _of(make: Callable[..., Player], *arguments: Any) -> Callable[[], Player]:
    return lambda: make(*arguments)


def _play_all(comparison: Comparison, makers: Sequence[Callable[[], Player]]) -> Iterator[None]:
    plan = comparison.plan
    for make in makers:
        player = make()
        outcome = Outcome.of(player)
        yield from play_steps(
            comparison.workload,
            player,
            comparison.time,
            outcome,
            steps=plan.steps,
            prompts=plan.prompts,
            seed=plan.seed,
        )
        comparison.outcomes.append(outcome)
