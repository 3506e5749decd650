"""On trial: doing without a hand-set threshold. Judged by scripts/study_risk.py; not part of training.

Each trial is a pair of an event model and a risk model that the very ``Controller`` works with.

    spread threshold   tau_t = exp(k * sigma_t),  sigma_t: running robust spread of log (L / reference) within groups
                       ("longer than k usual spreads")

    cost of a group, in [0, 1], in place of its event; the budget is the mean cost allowed
        stall          (longest - second longest) / longest       only the longest rollout is still running
        wait           max(0, 1 - reference / longest)            time past the usual length
        idle           1 - mean / longest                         slot time lost to waiting for the longest

    expected cost      from a fading histogram of z = log (L / reference) over all rollouts, as if those of a group
    of size n          were independent draws from it, corrected by what the size itself has shown as in ``Blended``

``Blended`` is a risk model for events: the beta-binomial risk is the prior of each size, worth PRIOR_GROUPS groups, and
what the size itself has shown fades by gamma as everything does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sagc_verl.control import RISKS, Controller, EventModel, GroupBatch, GroupEvents, RiskModel, SagcConfig
from sagc_verl.replay.players import Plain, Player

PRIOR_GROUPS = 200.0
BINS = np.linspace(-4.0, 4.0, 129)
CENTRES = (BINS[:-1] + BINS[1:]) / 2
GAPS = np.tril(1 - np.exp(CENTRES[None, :] - CENTRES[:, None]), -1)
"""What the stall costs when the longest is in bin k and the second longest in bin j < k."""


@dataclass(frozen=True)
class CostedEvents(GroupEvents):
    """Events whose rate is a mean cost."""

    cost: np.ndarray
    """float64 (G,), in [0, 1]; NaN for groups that do not count."""

    @property
    def rate(self) -> float:
        return float(self.cost[self.counted].mean()) if self.counted.any() else float("nan")


class CostModel(EventModel):
    """Judges groups by one of the costs; remembers what its risk model needs of the last step."""

    def __init__(self, cost: str, config: SagcConfig):
        super().__init__(config.threshold, config.reference, config.count_truncated, config.gamma)
        self.cost = cost
        self.z = np.zeros(0)
        self.costs = np.zeros(0)

    def observe(self, batch: GroupBatch) -> GroupEvents:
        found = super().observe(batch)
        groups = len(batch.offsets) - 1
        n = len(batch.lengths) // groups  # a replay's groups are of one size
        lengths = batch.lengths.reshape(groups, n)
        top = np.partition(lengths, n - 2, axis=1)
        longest, second = top[:, -1], top[:, -2]
        if self.cost == "stall":
            cost = 1 - second / longest
        elif self.cost == "wait":
            cost = np.maximum(0.0, 1 - found.reference / longest)
        else:
            cost = 1 - lengths.mean(axis=1) / longest
        self.z = np.log(lengths / found.reference[:, None]).ravel()
        self.costs = cost
        return CostedEvents(**{item.name: getattr(found, item.name) for item in fields(found)}, cost=cost)


class CostRisk:
    """Expected cost of any size, learnt from a ``CostModel`` (``control.RiskModel``)."""

    def __init__(self, events: CostModel, gamma: float):
        self._events = events
        self._gamma = gamma
        self._histogram = np.zeros(len(BINS) - 1)
        self._own: dict[int, list[float]] = {}

    def update(self, exceeding: np.ndarray, sizes: np.ndarray) -> None:
        self._histogram *= self._gamma
        self._histogram += np.histogram(np.clip(self._events.z, BINS[0], BINS[-1]), BINS)[0]
        for entry in self._own.values():
            entry[0] *= self._gamma
            entry[1] *= self._gamma
        entry = self._own.setdefault(int(sizes[0]), [0.0, 0.0])
        entry[0] += float(self._events.costs.sum())
        entry[1] += len(sizes)

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        if not self._histogram.sum():
            return np.full(len(sizes), 0.5)
        expected = np.array([self._expected(int(n)) for n in sizes])
        shown = np.array([self._own.get(int(n), [0.0, 0.0]) for n in sizes])
        return (shown[:, 0] + PRIOR_GROUPS * expected) / (shown[:, 1] + PRIOR_GROUPS)

    def _expected(self, n: int) -> float:
        z = CENTRES
        f = self._histogram / self._histogram.sum()
        cdf = np.cumsum(f)
        longest = np.diff(cdf**n, prepend=0.0)
        if self._events.cost == "wait":
            return float(longest @ np.maximum(0.0, 1 - np.exp(-z)))
        if self._events.cost == "idle":
            below = np.cumsum(f * np.exp(z)) / np.maximum(cdf, 1e-12)
            return float(longest @ (1 - (1 + (n - 1) * below * np.exp(-z)) / n))
        second = np.diff(cdf ** (n - 1), prepend=0.0)
        return float(n * f @ GAPS @ second)

    def state_dict(self) -> dict[str, Any]:
        return {"histogram": self._histogram.tolist(), "own": {str(n): list(entry) for n, entry in self._own.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._histogram = np.array(state["histogram"], dtype=np.float64)
        self._own = {int(n): [float(value) for value in entry] for n, entry in state["own"].items()}


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
        self._pooled: RiskModel = RISKS["beta_binomial"](gamma)
        self._gamma = gamma
        self._own: dict[int, list[float]] = {}

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
    """config.budget is the mean cost allowed."""
    events = CostModel(cost, config)
    return _with(config, sizes, events, CostRisk(events, config.gamma), f"{cost} share {config.budget:g}")


def spread_player(k: float, config: SagcConfig, sizes: Sequence[int]) -> Player:
    risk: Callable[[float], RiskModel] = RISKS[config.risk]
    return _with(config, sizes, SpreadThreshold(k, config), risk(config.gamma), f"threshold auto, k={k:g}")


def blended_player(config: SagcConfig, sizes: Sequence[int]) -> Player:
    events = EventModel(config.threshold, config.reference, config.count_truncated, config.gamma)
    return _with(config, sizes, events, Blended(config.gamma), "blended")
