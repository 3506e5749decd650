"""The true cost of each size (by default its straggler risk), for the oracle.

Measured on many more groups than any run would see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sagc_verl.control import CONSTRAINTS, EventModel, GroupBatch, GroupEvents, SagcConfig
from sagc_verl.replay.workloads import Workload

GROUPS = 4096
"""Groups per spell and size: a rate of .2 is known to .006."""
SEED_SHIFT = 104_729


def true_risk(
    workload: Workload,
    config: SagcConfig,
    sizes: Sequence[int],
    steps: int,
    prompts: int,
    seed: int,
    groups: int = GROUPS,
) -> tuple[np.ndarray, np.ndarray]:
    """First steps int (K,) of the workload's spells and the mean cost of a group of n in each (P(it straggles), unless
    the configuration constrains something else), float64 (K, S).

    Each size is played on its own with an event model that has settled, at steps spread over the spell.
    """
    breaks = workload.breaks(steps)
    ends = [*breaks[1:], steps + 1]
    risk = np.zeros((len(breaks), len(sizes)))
    cost = CONSTRAINTS[config.constraint].cost
    rounds = max(4, -(-min(groups, 8 * steps * prompts) // prompts))
    settle = max(8, rounds)  # until prompts that come back have their history
    for k, (first, end) in enumerate(zip(breaks, ends, strict=True)):
        for s, n in enumerate(sizes):
            events = EventModel(config.threshold, config.reference, config.count_truncated, config.gamma)
            spent, seen = 0.0, 0
            for i in range(-settle, rounds):
                step = first + (i % rounds) * (end - first) // rounds
                found = events.observe(workload.draw(step, prompts, n, seed + SEED_SHIFT + i + settle).batch())
                if i >= 0:
                    spent += float(cost(found)[found.counted].sum())
                    seen += int(found.counted.sum())
            risk[k, s] = spent / seen if seen else 0.0
    return np.array(breaks), np.maximum.accumulate(risk, axis=1)


class KnownRisk:
    """A risk model that is told the truth (``control.RiskModel``)."""

    def __init__(self, first_steps: np.ndarray, sizes: Sequence[int], risk: np.ndarray):
        """first_steps int (K,), risk float64 (K, S) for sizes (S,)."""
        self._first_steps, self._sizes, self._risk = first_steps, np.asarray(sizes), risk
        self._coming = 1

    def learn(self, batch: GroupBatch, events: GroupEvents) -> None:
        self._coming += 1

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        spell = int(np.searchsorted(self._first_steps, self._coming, side="right")) - 1
        return np.interp(sizes, self._sizes, self._risk[max(0, spell)])

    def state_dict(self) -> dict[str, Any]:
        return {"coming": self._coming}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._coming = int(state["coming"])
