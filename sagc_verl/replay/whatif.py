"""A replay: the workload is played step by step to a player's controller; sums are kept, steps are not.

Memory does not depend on the number of steps: what plots need is kept in at most TRACE_BINS averages over equal spells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sagc_verl.control import EventModel, StepReport
from sagc_verl.replay.players import Collected, Player
from sagc_verl.replay.steptime import StepTime
from sagc_verl.replay.workloads import Workload

TRACE_BINS = 1024
MOVES_KEPT = 64
TRACED = ("size", "cost", "queue", "step_s", "generation_s", "longest")


class Trace:
    """Averages over spells of steps; when all bins are full, neighbours are merged and spells become twice as long."""

    def __init__(self, bins: int = TRACE_BINS):
        self._sums = np.zeros((bins, len(TRACED)))
        self._counts = np.zeros(bins, np.int64)
        self._spell = 1
        self._steps = 0

    def add(self, values: tuple[float, ...]) -> None:
        at = self._steps // self._spell
        if at == len(self._counts):
            half = at // 2
            self._sums[:half] = self._sums[0::2] + self._sums[1::2]
            self._counts[:half] = self._counts[0::2] + self._counts[1::2]
            self._sums[half:] = 0
            self._counts[half:] = 0
            self._spell *= 2
            at = half
        self._sums[at] += np.nan_to_num(values)
        self._counts[at] += 1
        self._steps += 1

    def columns(self) -> dict[str, np.ndarray]:
        """``step`` (last of each spell, from 1), ``count`` and each of TRACED, float64 (B,)."""
        used = self._counts > 0
        means = self._sums[used] / self._counts[used, None]
        steps = np.cumsum(self._counts[used])
        return {
            "step": steps.astype(np.float64),
            "count": self._counts[used].astype(np.float64),
            **{name: means[:, i] for i, name in enumerate(TRACED)},
        }


@dataclass
class Outcome:
    """What became of one player. Means are over steps unless said otherwise."""

    name: str
    kind: str
    budget: float
    steps: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    """Size -> steps it was played."""
    moves: int = 0
    first_moves: list[tuple[int, int, int]] = field(default_factory=list)
    """(step after which, from, to) of the first moves."""
    largest_excess: float = 0.0
    """The largest sum of (cost - budget) so far, in steps."""
    groups: int = 0
    """Groups that the controller counted."""
    rollouts: int = 0
    tokens: float = 0.0
    generation_s: float = 0.0
    step_s: float = 0.0
    trained: int = 0
    modelled: int = 0
    refills: int = 0
    gave_up: int = 0
    infeasible: int = 0
    faults: int = 0
    trace: Trace = field(default_factory=Trace, repr=False)
    _means: dict[str, list[float]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, player: Player) -> Outcome:
        """An empty one."""
        return cls(player.name, player.kind, player.controller.config.budget)

    def _add_mean(self, name: str, value: float) -> None:
        if math.isfinite(value):
            entry = self._means.setdefault(name, [0.0, 0.0])
            entry[0] += value
            entry[1] += 1

    def mean(self, name: str) -> float:
        """Mean over steps of: cost, rate, yardstick, waiting, silent, bias, truncated, blind, ratio; NaN where never
        known."""
        total, count = self._means.get(name, (0.0, 0.0))
        return total / count if count else math.nan

    @property
    def mean_n(self) -> float:
        return sum(size * count for size, count in self.sizes.items()) / max(1, self.steps)

    @property
    def cost(self) -> float:
        """Mean of what the budget limits (``control.CONSTRAINTS``)."""
        return self.mean("cost")

    @property
    def rate(self) -> float:
        """Straggler rate: mean share of groups with an event."""
        return self.mean("rate")

    @property
    def rollouts_per_step(self) -> float:
        """Trained on."""
        return self.trained / max(1, self.steps)

    @property
    def seconds_per_step(self) -> float:
        return self.step_s / max(1, self.steps)

    @property
    def generation_per_step(self) -> float:
        return self.generation_s / max(1, self.steps)

    @property
    def rollouts_per_second(self) -> float:
        return self.trained / self.step_s if self.step_s > 0 else math.nan

    @property
    def modelled_share(self) -> float:
        return self.modelled / max(1, self.rollouts)

    def take(self, report: StepReport, got: Collected, step_s: float, yardstick: float) -> None:
        """Add one step."""
        self.steps += 1
        size = got.batch.num_rollouts // got.batch.num_groups
        self.sizes[size] = self.sizes.get(size, 0) + 1
        if report.next_size != report.size:
            self.moves += 1
            if len(self.first_moves) < MOVES_KEPT:
                self.first_moves.append((self.steps, report.size, report.next_size))
        self.largest_excess = max(self.largest_excess, report.cumulative_excess)
        self.groups += report.groups
        self.rollouts += got.made
        self.tokens += got.tokens
        self.generation_s += got.generation_s
        self.step_s += step_s
        self.trained += got.trained
        self.modelled += got.modelled
        self.refills += got.refills
        self.gave_up += got.gave_up
        self.infeasible += report.infeasible
        self.faults = report.faults
        longest = math.nan
        if report.events is not None:
            longest = float(np.nanmax(report.events.max))
        for name, value in (
            ("cost", report.cost),
            ("rate", report.straggler_rate),
            ("waiting", report.waiting_share),
            ("yardstick", yardstick),
            ("silent", got.silent),
            ("bias", got.bias),
            ("truncated", report.truncated_share),
            ("blind", report.blind_share),
            ("ratio", report.ratio_mean),
        ):
            self._add_mean(name, value)
        self.trace.add((size, report.cost, report.queue, step_s, got.generation_s, longest))

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "steps": self.steps,
            "mean_n": self.mean_n,
            "steps_at_size": {str(size): count for size, count in sorted(self.sizes.items())},
            "cost": self.cost,
            "straggler_rate": self.rate,
            "budget": self.budget,
            "largest_excess": self.largest_excess,
            "moves": self.moves,
            "first_moves": [list(move) for move in self.first_moves],
            "infeasible_steps": self.infeasible,
            "rollouts_trained_per_step": self.rollouts_per_step,
            "rollouts_generated": self.rollouts,
            "tokens": self.tokens,
            "generation_s_per_step": self.generation_per_step,
            "step_s": self.seconds_per_step,
            "rollouts_per_second": self.rollouts_per_second,
            "waiting_share": self.mean("waiting"),
            "silent_share": self.mean("silent"),
            "length_bias": self.mean("bias"),
            "truncated_share": self.mean("truncated"),
            "blind_share": self.mean("blind"),
            "yardstick_rate": self.mean("yardstick"),
            "modelled_share": self.modelled_share,
            "refill_rounds_per_step": self.refills / max(1, self.steps),
            "steps_without_full_batch": self.gave_up,
        }


def play_steps(
    workload: Workload,
    player: Player,
    time: StepTime,
    outcome: Outcome,
    *,
    steps: int,
    prompts: int,
    seed: int,
    yardstick: EventModel | None = None,
) -> Iterator[None]:
    """Play a workload to one player, filling ``outcome``; yields after every step.

    Args:
        steps: training steps, at least 1.
        prompts: prompts per step, at least 1.
        seed: the same seed gives the same replay to the bit, and every player the same prompts at the same step.
        yardstick: judges the same groups by an event of its own, for comparing players whose thresholds differ.
    """
    for step in range(1, steps + 1):
        size = player.controller.size
        got = player.collector.collect(workload, step, prompts, size, seed, time)
        report = player.controller.observe(got.batch)
        step_s = got.generation_s + time.rest(got.trained_tokens, got.trained)
        measured = math.nan if yardstick is None else yardstick.observe(got.batch).rate
        outcome.take(report, got, step_s, measured)
        yield


def play(workload: Workload, player: Player, time: StepTime, *, steps: int, prompts: int, seed: int) -> Outcome:
    """``play_steps`` to its end."""
    outcome = Outcome.of(player)
    for _ in play_steps(workload, player, time, outcome, steps=steps, prompts=prompts, seed=seed):
        pass
    return outcome
