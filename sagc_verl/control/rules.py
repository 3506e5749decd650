"""Which size to play, given the risk of each and what the run has overspent so far.

Constraint: the long-run mean of s_t stays at most the budget b. s_t is the step's mean cost of a group, by default the
share of groups with an event, and p_t(n) what a group of n is expected to cost (constraint.py).
Objective: groups as large as possible.

``rule=feasible`` (default; V = gain = 20, cap = queue_cap = 3): the largest size whose risk fits the corrected budget

    n_t     = max { n : p_t(n) <= b - Q_t / V },  else n_min
    Q_{t+1} = clip(Q_t + s_t - b, -cap, cap)

``rule=drift_penalty`` (V = 10, cap = 30): Neely's drift plus penalty, the queue in units of the budget

    n_t     = argmax_n  V * U(n) - Q_t * p_t(n) / b                     (ties go to the larger size)
    Q_{t+1} = clip(Q_t + s_t / b - 1, 0, cap)

For both and for any data at all, with u the unit of the queue (1 and b) and ``forgiven`` what the upper clip cut off:

    sum_t (s_t - b)  <=  u * (Q_T - Q_0) + forgiven

The cap keeps a spell in which no size is feasible from holding n down long after it has passed. Rates under adversarial
change are not promised; slow drift is tracked.

To add one: write a class with the members of ``Rule`` here and name it in ``RULES``.
Sources: Neely (J. Appl. Math. 2012, 831909); Yu and Neely, arXiv 1604.02218; Yu, Neely and Wei (NeurIPS 2017); POND,
arXiv 2010.09995; Liu et al., arXiv 2102.05295.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from sagc_verl.control.utility import UTILITIES

if TYPE_CHECKING:
    from sagc_verl.control.config import SagcConfig


class Rule(Protocol):
    """Holds the queue; picks a size."""

    queue: float
    """Q_t, in the rule's own unit."""
    unit: float
    """u: how many steps of the full cost (an event in every group) one unit of the queue stands for."""

    def __init__(self, config: SagcConfig) -> None: ...

    def choose(self, sizes: np.ndarray, risk: np.ndarray) -> int:
        """Index into ``sizes`` (int (S,), ascending) of the size wanted, ``risk`` float64 (S,) being p_t of each."""
        ...

    def update(self, cost: float) -> float:
        """Take in s_t; returns what the upper clip cut off, times ``unit``."""
        ...


class Feasible:
    """The largest size whose risk fits the corrected budget."""

    def __init__(self, config: SagcConfig):
        self.budget = config.budget
        self.gain = 20.0 if config.gain is None else config.gain
        self.cap = 3.0 if config.queue_cap is None else config.queue_cap
        self.unit = 1.0
        self.queue = 0.0

    def choose(self, sizes: np.ndarray, risk: np.ndarray) -> int:
        fits = np.flatnonzero(risk <= self.budget - self.queue / self.gain)
        return int(fits[-1]) if fits.size else 0

    def update(self, cost: float) -> float:
        wanted = self.queue + cost - self.budget
        self.queue = float(np.clip(wanted, -self.cap, self.cap))
        return max(0.0, wanted - self.cap)


class DriftPenalty:
    """Utility of the size against its risk, priced by the queue."""

    def __init__(self, config: SagcConfig):
        self.budget = config.budget
        self.gain = 10.0 if config.gain is None else config.gain
        self.cap = 30.0 if config.queue_cap is None else config.queue_cap
        self.unit = config.budget
        self.utility = UTILITIES[config.utility]
        self.rho = config.utility_rho
        self.queue = 0.0

    def choose(self, sizes: np.ndarray, risk: np.ndarray) -> int:
        worth = self.utility(sizes.astype(np.float64), int(sizes[-1]), self.rho)
        score = self.gain * worth - self.queue * risk / self.budget
        return len(sizes) - 1 - int(np.argmax(score[::-1]))

    def update(self, cost: float) -> float:
        wanted = self.queue + cost / self.budget - 1
        self.queue = float(np.clip(wanted, 0.0, self.cap))
        return max(0.0, wanted - self.cap) * self.unit


RULES: dict[str, type[Rule]] = {
    "feasible": Feasible,
    "drift_penalty": DriftPenalty,
}
