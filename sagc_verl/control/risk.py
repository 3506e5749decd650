"""The risk that a group of n rollouts straggles, learnt from the groups of every size at once.

``risk=beta_binomial`` (default). A group of n rollouts has k exceedances; prompts differ in how prone they are to them:

    k | n  ~  BetaBinomial(n; a, b),        a = mean * conc,  b = (1 - mean) * conc

    posterior on a grid: 72 means, log-spaced 1e-3 .. 0.4, times 12 concentrations, log-spaced 2 .. 200
    prior                uniform on that grid (so log-uniform in mean and in concentration)
    each step            lp <- gamma * lp + sum_g loglik(k_g | n_g; a, b)        (gamma .98: half forgotten in 34 steps)

    P(straggler | n) = 1 - E_posterior[ prod_{i<n} (b + i) / (a + b + i) ]          for every n, played or not

Each factor is below 1, so the risk rises with n whatever the data. One posterior serves every size, since it knows only
rollouts: what is learnt at n = 16 tells of n = 4, and a changed list of sizes loses nothing.

``risk=hazard``. Every rollout alone, one rate: P(straggler | n) = 1 - exp(-lambda * n), lambda on a log-spaced grid of
96 points 1e-5 .. 1, uniform prior, the same forgetting; learns from whether a group had an event, not from how many.

To add one: write a class with the methods of ``RiskModel`` here and name it in ``RISKS``.
Discounted posteriors: Raj and Kalyani, arXiv 1707.09727.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from sagc_verl.control.event import GroupEvents
    from sagc_verl.control.groups import GroupBatch


class RiskModel(Protocol):
    """Learns from the groups of each step, predicts what a group of any size costs (P(straggler), unless another
    constraint asks for another cost: constraint.py)."""

    def learn(self, batch: GroupBatch, events: GroupEvents) -> None:
        """Take in the groups of one step, at least one of which counts, and what was found of them."""
        ...

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        """float64 (S,): the expected cost at each int size, within [0, 1] and never falling as the size grows."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError, KeyError or TypeError, and changes nothing, when the state is not one of this model."""
        ...


class _GridPosterior(ABC):
    """A log-posterior over a fixed grid, with forgetting; what both models share."""

    def __init__(self, points: int, gamma: float):
        self.gamma = gamma
        self.log_posterior = np.zeros(points)

    def learn(self, batch: GroupBatch, events: GroupEvents) -> None:
        self.update(events.exceeding[events.counted], events.usable[events.counted])

    @abstractmethod
    def update(self, exceeding: np.ndarray, sizes: np.ndarray) -> None:
        """Learn one step: int (G,) exceedances k_g and int (G,) sizes n_g >= 1 of its groups."""

    def add(self, loglik: np.ndarray) -> None:
        lp = self.gamma * self.log_posterior + loglik
        self.log_posterior = lp - lp.max()

    def expect(self, values: np.ndarray) -> np.ndarray:
        """Posterior mean of values (S, points) -> (S,)."""
        weights = np.exp(self.log_posterior - self.log_posterior.max())
        return values @ (weights / weights.sum())

    def state_dict(self) -> dict[str, Any]:
        return {"log_posterior": self.log_posterior.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        lp = np.asarray(state["log_posterior"], dtype=np.float64)
        if lp.shape != self.log_posterior.shape or not np.isfinite(lp).all():
            raise ValueError(f"log_posterior must hold {self.log_posterior.size} finite numbers")
        self.log_posterior = lp


class BetaBinomial(_GridPosterior):
    """Pooled beta-binomial risk on a grid; see the module's box for the law."""

    # With thousands of groups the posterior settles on one point; steps of 9% in the mean keep it near the truth.
    MEANS = np.geomspace(1e-3, 0.4, 72)
    CONCENTRATIONS = np.geomspace(2.0, 200.0, 12)

    def __init__(self, gamma: float):
        mean, conc = (axis.ravel() for axis in np.meshgrid(self.MEANS, self.CONCENTRATIONS, indexing="ij"))
        super().__init__(mean.size, gamma)
        self._a, self._b = mean * conc, (1 - mean) * conc
        self._extend_tables(64)

    def _extend_tables(self, largest: int) -> None:
        # row j of each table: log of the rising factorial x (x+1) .. (x+j-1); differences of rows give every likelihood
        steps = np.arange(largest)[:, None]
        self._rising_a, self._rising_b, self._rising_ab = (
            np.vstack([np.zeros(x.size), np.cumsum(np.log(x + steps), axis=0)])
            for x in (self._a, self._b, self._a + self._b)
        )

    def _reach(self, largest: int) -> None:
        if largest >= len(self._rising_a):
            self._extend_tables(2 * largest)

    def update(self, exceeding: np.ndarray, sizes: np.ndarray) -> None:
        self._reach(int(sizes.max()))
        # sum_g log [ a^(k) b^(n-k) / (a+b)^(n) ]; the binomial coefficient is the same for every (a, b)
        loglik = np.zeros(self._a.size)
        for counts, table, sign in (
            (exceeding, self._rising_a, 1),
            (sizes - exceeding, self._rising_b, 1),
            (sizes, self._rising_ab, -1),
        ):
            histogram = np.bincount(counts)
            loglik += sign * (histogram @ table[: len(histogram)])
        self.add(loglik)

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        self._reach(int(np.max(sizes)))
        none_exceeds = np.exp(self._rising_b[sizes] - self._rising_ab[sizes])
        return np.clip(1 - self.expect(none_exceeds), 0.0, 1.0)


class Hazard(_GridPosterior):
    """One pooled rate per rollout; see the module's box for the law."""

    RATES = np.geomspace(1e-5, 1.0, 96)

    def __init__(self, gamma: float):
        super().__init__(self.RATES.size, gamma)

    def update(self, exceeding: np.ndarray, sizes: np.ndarray) -> None:
        loglik = np.zeros(self.RATES.size)
        for n in np.unique(sizes):
            events = np.count_nonzero(exceeding[sizes == n])
            quiet = np.count_nonzero(sizes == n) - events
            loglik += events * np.log(-np.expm1(-self.RATES * n)) - quiet * self.RATES * n
        self.add(loglik)

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        return np.clip(self.expect(-np.expm1(-np.outer(sizes, self.RATES))), 0.0, 1.0)


RISKS: dict[str, Callable[[float], RiskModel]] = {
    "beta_binomial": BetaBinomial,
    "hazard": Hazard,
}
"""Name in the configuration -> what makes the model from gamma."""


def subset_risk(exceeding: int, size: int, smaller: int) -> float:
    """P(a random subset of ``smaller`` rollouts holds an exceedance), from a group of ``size`` that held ``exceeding``.

    1 - C(n-k, n') / C(n, n'): without bias for a reference that does not depend on the group, n' <= n.

    Raises:
        ValueError: not 0 <= exceeding <= size, or not 0 <= smaller <= size.
    """
    if not 0 <= exceeding <= size or not 0 <= smaller <= size:
        raise ValueError(f"need 0 <= exceeding, smaller <= size; got {exceeding}, {smaller} and {size}")
    return 1 - math.comb(size - exceeding, smaller) / math.comb(size, smaller)
