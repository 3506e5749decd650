"""On trial: other threshold-free costs, and a threshold of its own accord. Judged by scripts/study_risk.py; not part of
training. What won is ``control.CONSTRAINTS["waiting"]``.

Each trial is an event model, a constraint and a risk model that the very ``Controller`` works with.

    spread threshold   tau_t = exp(k * sigma_t),  sigma_t: running robust spread of log (L / reference) within groups
                       ("longer than k usual spreads")

    cost of a group, in [0, 1], in place of its event; the budget is the mean cost allowed
        stall          (longest - second longest) / longest       only the longest rollout is still running
        overrun        max(0, 1 - reference / longest)            time past the usual length

    expected cost      as for the waiting share (control/waiting.py): independent draws from the histogram of
    of a group of n    z = log (L / reference), mended by one factor

``Blended`` is a risk model for events: the beta-binomial risk is the prior of each size, worth PRIOR_GROUPS groups, and
what the size itself has shown fades by gamma as everything does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sagc_verl.control import RISKS, Constraint, Controller, EventModel, GroupBatch, GroupEvents, RiskModel, SagcConfig
from sagc_verl.control.risk import BetaBinomial
from sagc_verl.control.waiting import WaitingShare
from sagc_verl.replay.players import Plain, Player

PRIOR_GROUPS = 200.0
COSTS = ("stall", "overrun")
GAPS = np.tril(1 - np.exp(WaitingShare.Z[None, :] - WaitingShare.Z[:, None]), -1)
"""What the stall costs when the longest is in bin k and the second longest in bin j < k."""


@dataclass(frozen=True)
class CostedEvents(GroupEvents):
    """Events with a cost of each group beside them."""

    cost: np.ndarray
    """float64 (G,), in [0, 1]; NaN for groups that do not count."""


class CostModel(EventModel):
    """Judges groups by one of COSTS."""

    def __init__(self, cost: str, config: SagcConfig):
        super().__init__(config.threshold, config.reference, config.count_truncated, config.gamma)
        self.cost = cost

    def observe(self, batch: GroupBatch) -> CostedEvents:
        found = super().observe(batch)
        if self.cost == "stall":
            n = batch.num_rollouts // batch.num_groups  # a replay's groups are of one size
            top = np.partition(batch.lengths.reshape(-1, n), n - 2, axis=1)
            cost = 1 - top[:, -2] / top[:, -1]
        else:
            cost = np.maximum(0.0, 1 - found.reference / found.max)
        return CostedEvents(**{item.name: getattr(found, item.name) for item in fields(found)}, cost=cost)


class CostRisk(WaitingShare):
    """Expected cost of any size, one of COSTS in place of the waiting share."""

    def __init__(self, cost: str, gamma: float):
        self.cost = cost
        super().__init__(gamma)

    def learn(self, batch: GroupBatch, events: GroupEvents) -> None:
        assert isinstance(events, CostedEvents)
        super().learn(batch, replace(events, waiting=events.cost))

    def _independent(self, sizes: np.ndarray) -> np.ndarray:
        share = self._histogram / self._histogram.sum()
        below, n = np.cumsum(share), np.asarray(sizes)[:, None]
        if self.cost == "stall":
            second = np.diff(below ** (n - 1), axis=1, prepend=0.0)
            return n[:, 0] * (second @ (share @ GAPS))
        return np.diff(below**n, axis=1, prepend=0.0) @ np.maximum(0.0, 1 - np.exp(-self.Z))


class SpreadThreshold(EventModel):
    """Events at a threshold that follows the spread of lengths."""

    SLOWEST, FASTEST = 1.2, 20.0
    PRIOR_ROLLOUTS = 64.0

    def __init__(self, k: float, config: SagcConfig):
        super().__init__(config.threshold, config.reference, config.count_truncated, config.gamma)
        self.k = k
        self._weight = self.PRIOR_ROLLOUTS
        self._spread = np.log(config.threshold) / k

    def observe(self, batch: GroupBatch) -> GroupEvents:
        self.threshold = float(np.clip(np.exp(self.k * self._spread), self.SLOWEST, self.FASTEST))
        found = super().observe(batch)
        z = np.log(batch.lengths / np.repeat(found.reference, np.diff(batch.offsets)))
        spread = 1.4826 * float(np.nanmedian(np.abs(z)))
        self._weight = self.gamma * self._weight + len(z)
        self._spread += len(z) / self._weight * (spread - self._spread)
        return found


class Blended:
    """Beta-binomial risk, corrected at each size by what that size has shown (``control.RiskModel``)."""

    def __init__(self, gamma: float):
        self._pooled = BetaBinomial(gamma)
        self._gamma = gamma
        self._own: dict[int, list[float]] = {}

    def learn(self, batch: GroupBatch, events: GroupEvents) -> None:
        self.update(events.exceeding[events.counted], events.usable[events.counted])

    def update(self, exceeding: np.ndarray, sizes: np.ndarray) -> None:
        self._pooled.update(exceeding, sizes)
        for entry in self._own.values():
            entry[0] *= self._gamma
            entry[1] *= self._gamma
        for n in np.unique(sizes).tolist():
            entry = self._own.setdefault(n, [0.0, 0.0])
            entry[0] += float(np.count_nonzero(exceeding[sizes == n]))
            entry[1] += float(np.count_nonzero(sizes == n))

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        shown = np.array([self._own.get(int(n), [0.0, 0.0]) for n in sizes])
        risk = (shown[:, 0] + PRIOR_GROUPS * self._pooled.predict(sizes)) / (shown[:, 1] + PRIOR_GROUPS)
        return np.maximum.accumulate(risk)

    def state_dict(self) -> dict[str, Any]:
        return {"pooled": self._pooled.state_dict(), "own": {str(n): list(entry) for n, entry in self._own.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pooled.load_state_dict(state["pooled"])
        self._own = {int(n): [float(value) for value in entry] for n, entry in state["own"].items()}


def _with(config: SagcConfig, sizes: Sequence[int], events: EventModel, risk: RiskModel, name: str) -> Player:
    controller = Controller(config, sizes)
    controller.events, controller.risk = events, risk
    return Player(name, "sagc", controller, Plain())


def cost_player(cost: str, config: SagcConfig, sizes: Sequence[int]) -> Player:
    """cost: one of COSTS; config.budget is the mean cost allowed."""
    risk = CostRisk(cost, config.gamma)
    name = f"{cost} share {config.budget:g}"
    player = _with(config, sizes, CostModel(cost, config), risk, name)
    player.controller.constraint = Constraint(name, config.budget, lambda events: events.cost, lambda _: risk)  # type: ignore[attr-defined]
    return player


def spread_player(k: float, config: SagcConfig, sizes: Sequence[int]) -> Player:
    risk = RISKS[config.risk](config.gamma)
    return _with(config, sizes, SpreadThreshold(k, config), risk, f"threshold auto, k={k:g}")
