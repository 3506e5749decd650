"""What the budget is spent on: a cost of each group, in [0, 1], whose long-run mean is to stay within the budget.

    constraint=straggler (default)   c_g = 1 where the group has an event, else 0        (event.py; expected: risk.py)
    constraint=waiting               c_g = 1 - mean / longest                            (expected: waiting.py)

    s_t = mean of c_g over the groups of step t:  the share of groups with an event,
                                                  the share of slot time spent waiting for a group's longest rollout

``waiting`` has no threshold, so that one budget means the same whatever the spread of lengths.

To add one: a cost and a model of what a group of n costs (``RiskModel``), named in ``CONSTRAINTS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sagc_verl.control.risk import RISKS, RiskModel
from sagc_verl.control.waiting import WaitingShare

if TYPE_CHECKING:
    from sagc_verl.control.config import SagcConfig
    from sagc_verl.control.event import GroupEvents


@dataclass(frozen=True)
class Constraint:
    """A cost of groups and how to foresee it."""

    label: str
    """What s_t is called."""
    budget: float
    """The budget where the user gives none."""
    cost: Callable[[GroupEvents], np.ndarray]
    """c_g, float64 (G,); only of groups that count."""
    model: Callable[[SagcConfig], RiskModel]
    """Makes the model of what a group of any size is expected to cost."""

    def step_cost(self, events: GroupEvents) -> float:
        """s_t; at least one group must count."""
        return float(self.cost(events)[events.counted].mean())


CONSTRAINTS: dict[str, Constraint] = {
    "straggler": Constraint(
        label="straggler rate",
        budget=0.2,
        cost=lambda events: events.straggler.astype(np.float64),
        model=lambda config: RISKS[config.risk](config.gamma),
    ),
    "waiting": Constraint(
        label="waiting share",
        budget=0.4,
        cost=lambda events: events.waiting,
        model=lambda config: WaitingShare(config.gamma),
    ),
}
