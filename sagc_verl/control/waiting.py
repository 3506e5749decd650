"""How much of its slot time a group of n spends waiting, learnt from the groups of every size at once.

    w_g    = 1 - mean / longest  of the group's lengths: rollouts start together, a slot whose rollout is done waits

    z_i    = log (L_i / ref_g), kept as a histogram over all rollouts that fades by gamma a step
    E(n)   = 1 - E[mean / longest] of n independent draws from the histogram
           = 1 - sum_j exp(-z_j) (m_j c_j^(n-1) - m_{j-1} c_{j-1}^(n-1))
                                                      c_j = P(z <= z_j),  m_j = E[exp(z); z <= z_j]
    kappa  = mean of w_g shown / mean of E(n_g) at the same groups; fading, and 1 until groups have been seen

    expected waiting share of a group of n  =  min(1, kappa E(n))          for every n, played or not

kappa mends what independence gets wrong: the reference is made of the group's own lengths, and prompts differ in
spread. E rises with n whatever the histogram: of n + 1 draws, a random n of them have on average the same mean and no
larger a maximum. The reference only lays groups of different prompts over one another; no threshold is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sagc_verl.control.event import PRIOR_SIGMA, GroupEvents
from sagc_verl.control.groups import GroupBatch

BINS_PER_UNIT = 16
LARGEST_Z = 4.0
"""Rollouts further than a factor exp(4) from their reference count as that far."""
PRIOR_ROLLOUTS = 16.0
PRIOR_GROUPS = 8.0
"""What the first histogram (log-normal, PRIOR_SIGMA) and the first kappa weigh."""


class WaitingShare:
    """Expected waiting share of a group of any size (``risk.RiskModel``); see the module's box for the law."""

    Z = (np.arange(2 * int(LARGEST_Z * BINS_PER_UNIT)) + 0.5) / BINS_PER_UNIT - LARGEST_Z

    def __init__(self, gamma: float):
        self.gamma = gamma
        prior = np.exp(-0.5 * (self.Z / PRIOR_SIGMA) ** 2)
        self._histogram = PRIOR_ROLLOUTS * prior / prior.sum()
        self._shown = self._expected = PRIOR_GROUPS * float(self._independent(np.array([8]))[0])

    def learn(self, batch: GroupBatch, events: GroupEvents) -> None:
        sizes = np.diff(batch.offsets)
        used = events.used & np.repeat(events.counted, sizes)
        z = np.log(batch.lengths[used] / np.repeat(events.reference, sizes)[used])
        bins = np.clip((z + LARGEST_Z) * BINS_PER_UNIT, 0, len(self.Z) - 1).astype(np.int64)
        self._histogram = self.gamma * self._histogram + np.bincount(bins, minlength=len(self.Z))
        played, groups = np.unique(events.usable[events.counted], return_counts=True)
        self._shown = self.gamma * self._shown + float(events.waiting[events.counted].sum())
        self._expected = self.gamma * self._expected + float(groups @ self._independent(played))

    def _independent(self, sizes: np.ndarray) -> np.ndarray:
        """E(n) of each size, float64 (S,)."""
        share = self._histogram / self._histogram.sum()
        below, moment = np.cumsum(share), np.cumsum(share * np.exp(self.Z))
        sums = moment * below ** (sizes[:, None] - 1)  # E[mean of n draws; all in bin j or below], (S, bins)
        return 1 - np.diff(sums, axis=1, prepend=0.0) @ np.exp(-self.Z)

    def predict(self, sizes: np.ndarray) -> np.ndarray:
        return np.clip(self._shown / self._expected * self._independent(np.asarray(sizes)), 0.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"histogram": self._histogram.tolist(), "shown": self._shown, "expected": self._expected}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        histogram = np.asarray(state["histogram"], dtype=np.float64)
        shown, expected = float(state["shown"]), float(state["expected"])
        if histogram.shape != self.Z.shape or not np.isfinite(histogram).all() or histogram.min() < 0:
            raise ValueError(f"histogram must hold {self.Z.size} finite numbers, none below 0")
        if not (histogram.sum() > 0 and 0 <= shown < np.inf and 0 < expected < np.inf):
            raise ValueError("the waiting shares shown and expected must be finite and above 0")
        self._histogram, self._shown, self._expected = histogram, shown, expected
