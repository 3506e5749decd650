"""Which groups straggle: those with a rollout much longer than is usual for its group.

    exceeds_i  = L_i > tau * ref_g                                                         (tau: ``threshold``)
    k_g        = how many rollouts of group g exceed;    group event: k_g >= 1
    s_t        = share of the step's groups with an event

``reference=shrunk`` (default): the group's median without its longest rollout, shrunk towards its kind.

    log lmo_g  = median of the group's log lengths, its longest left out
    y_g        = log lmo_g + c_n sigma_w      c_n: what leaving the maximum out takes off the median of n normal values
    ref_g      = exp( w y_g + (1 - w) m )
    w          = sigma_b^2 / (sigma_b^2 + v_n),         v_n = (pi / 2) sigma_w^2 / n

    kind of g  = its data_source,  else all that are unlabelled;      a prompt with history is a kind of its own
    m          = running mean of y
    sigma_b    = running spread of y about m, less the noise v_n; apart for each source and the unlabelled
    sigma_w    = running spread of log lengths within groups, from quartiles, so that stragglers do not widen it

    prompt     remembered as (m, P): the log reference of its last group and how uncertain that is (a variance)
    with       P'   = P + q
    history    w    = P' / (P' + v_n)                         P' takes the place of sigma_b^2
               then   m <- log ref_g,   P <- (1 - w) P'       (a Kalman filter of a random walk)
    q          = running mean of (y - m)^2 - P - v_n over groups with history, at least 0: how far prompts drift

Why so: a plain max / median cannot see small groups (at n = 2 it stays below 2). Leaving the maximum out cures that
but makes the median noisy, and low (a third too low at n = 2 and sigma_w = .7): shrinking takes out the noise, c_n the
rest, so that one threshold means the same at every n. A prompt's groups are averaged while lengths stay as they are
(q = 0), and followed as fast as they move.

Running means weigh groups alike and forget by gamma a step. A step's own groups enter m, sigma_b and sigma_w before
they are judged, so that the first step is judged too; only a known prompt's m and P are always from earlier steps.

``reference=max_median``: ref_g is the group's plain median, the paper's statistic; recorded as ``ratio`` in any case.

Blind groups: cap <= tau * ref_g, no rollout can be seen to exceed. ``count_truncated`` makes a truncated rollout exceed
where the cap is at least 1.5 ref_g. Rollouts whose length is NaN, infinite or not above zero are left out; groups left
with fewer than two never count.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from sagc_verl.control.groups import GroupBatch
from sagc_verl.control.memory import PromptMemory

TRUNCATED_THRESHOLD = 1.5
"""With ``count_truncated`` a truncated rollout exceeds where the cap is at least this many references."""
MAX_SOURCES = 1_000
"""Data sources told apart; groups of any further source count as unlabelled."""

# What spreads are taken to be until groups have been seen, with the weight of how many groups.
PRIOR_SIGMA = 0.5
PRIOR_GROUPS = 4.0


@dataclass(frozen=True)
class GroupEvents:
    """What the lengths of one step say, per rollout (R,) or group (G,) of its batch, in the batch's order."""

    exceeds: np.ndarray
    """bool (R,)."""
    max: np.ndarray
    """float64 (G,): longest usable rollout, in the unit of the lengths; NaN where there is none."""
    median: np.ndarray
    """float64 (G,): plain median, longest included; NaN as for ``max``."""
    ratio: np.ndarray
    """float64 (G,): max / median."""
    waiting: np.ndarray
    """float64 (G,): 1 - mean / max, the share of its slot time in which a group waits for its longest rollout."""
    reference: np.ndarray
    """float64 (G,): ref_g, in the unit of the lengths; NaN for groups that do not count."""
    exceeding: np.ndarray
    """int64 (G,): k_g."""
    straggler: np.ndarray
    """bool (G,): k_g >= 1."""
    blind: np.ndarray
    """bool (G,): the cap leaves no room to exceed."""
    used: np.ndarray
    """bool (R,): a finite length above zero; the other rollouts are left out."""
    usable: np.ndarray
    """int64 (G,): rollouts used."""
    counted: np.ndarray
    """bool (G,): at least two usable rollouts. Other groups enter no rate."""
    step_straggler: bool
    """The longest rollout of the whole step exceeds against the median of its references. Logged, never constrained."""

    @property
    def rate(self) -> float:
        """s_t: share of counted groups with an event; NaN where no group counts."""
        return float(self.straggler[self.counted].mean()) if self.counted.any() else math.nan


@dataclass
class _Pool:
    """Running statistics of one kind of groups; ``weight`` counts groups and fades by gamma a step."""

    weight: float = 0.0
    log_median: float = 0.0
    between: float = 0.0
    within: float = 0.0

    @property
    def sigma_w(self) -> float:
        return (self.weight * self.within + PRIOR_GROUPS * PRIOR_SIGMA) / (self.weight + PRIOR_GROUPS)

    def sigma_b2(self, prior: float) -> float:
        """sigma_b^2; as seen it may fall below zero by chance."""
        return max(0.0, (self.weight * self.between + PRIOR_GROUPS * prior) / (self.weight + PRIOR_GROUPS))

    def learn(self, n: np.ndarray, log_lmo: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take in groups of one step; returns y_g and v_n of each."""
        self.weight += len(n)
        new = len(n) / self.weight
        self.within += new * (float(spread.mean()) - self.within)
        y = log_lmo + _left_out_bias(n) * self.sigma_w
        noise = _median_noise(n, self.sigma_w)
        self.log_median += new * (float(y.mean()) - self.log_median)
        self.learn_between(y - self.log_median, noise, new)
        return y, noise

    def learn_between(self, deviation: np.ndarray, noise: np.ndarray, new: float) -> None:
        self.between += new * (float((deviation**2 - noise).mean()) - self.between)

    def state(self) -> list[float]:
        return [self.weight, self.log_median, self.between, self.within]

    @classmethod
    def from_state(cls, state: Any) -> _Pool:
        weight, log_median, between, within = (float(value) for value in state)
        pool = cls(weight, log_median, between, within)
        if not all(map(math.isfinite, pool.state())) or pool.weight < 0 or pool.within < 0:
            raise ValueError(f"damaged reference statistics {state!r}")
        return pool


class EventModel:
    """Judges the groups of each step and keeps the running statistics that the references need.

    Args:
        threshold: tau, above 1.
        reference: "shrunk" or "max_median".
        count_truncated: truncated rollouts may exceed (see the module's box).
        gamma: forgetting per step, in (0, 1].
    """

    def __init__(self, threshold: float, reference: str, count_truncated: bool, gamma: float):
        self.threshold = threshold
        self.reference = reference
        self.count_truncated = count_truncated
        self.gamma = gamma
        self._sources: dict[str | None, _Pool] = {}  # None: the unlabelled
        self._known = _Pool()  # prompts with history; only weight and between, their q, are used
        self._prompts = PromptMemory()  # prompt -> m, P

    def observe(self, batch: GroupBatch) -> GroupEvents:
        """Judge a step's groups and learn from them.

        Raises:
            ValueError: the arrays of the batch do not fit together; nothing is learnt then.
        """
        group_of = _check(batch)
        used = np.isfinite(batch.lengths) & (batch.lengths > 0)
        shape = _shape(batch, group_of, used)
        counted = shape.usable >= 2
        if self.reference == "max_median":
            reference = np.where(counted, shape.median, np.nan)
        else:
            reference = self._shrunk(shape, np.flatnonzero(counted), batch)

        limit = self.threshold * reference
        exceeds = used & (batch.lengths > limit[group_of])  # a NaN limit compares as False
        visible_from = limit
        if self.count_truncated:
            cut_off = TRUNCATED_THRESHOLD * reference
            at_cap = batch.lengths if batch.cap is None else batch.cap
            exceeds |= batch.truncated & used & (at_cap >= cut_off[group_of])
            visible_from = np.minimum(limit, cut_off)
        exceeding = np.bincount(group_of[exceeds], minlength=batch.num_groups)
        blind = np.zeros(batch.num_groups, dtype=bool) if batch.cap is None else batch.cap <= visible_from
        longest = shape.max[counted].max(initial=0.0)
        return GroupEvents(
            exceeds=exceeds,
            max=shape.max,
            median=shape.median,
            ratio=shape.max / shape.median,
            waiting=1 - shape.mean / shape.max,
            reference=reference,
            exceeding=exceeding,
            straggler=exceeding > 0,
            blind=blind,
            used=used,
            usable=shape.usable,
            counted=counted,
            step_straggler=bool(counted.any() and longest > self.threshold * np.median(reference[counted])),
        )

    def _shrunk(self, shape: _Shape, index: np.ndarray, batch: GroupBatch) -> np.ndarray:
        """ref_g float64 (G,), NaN outside ``index`` (the counted groups); updates every running statistic."""
        if not index.size:
            return np.full(batch.num_groups, np.nan)
        for pool in (*self._sources.values(), self._known):
            pool.weight *= self.gamma
        y, noise, m, variance = (np.full(batch.num_groups, np.nan) for _ in range(4))
        for source, groups in self._by_source(batch.sources, index):
            pool = self._sources.setdefault(source, _Pool())
            y[groups], noise[groups] = pool.learn(shape.usable[groups], shape.log_lmo[groups], shape.spread[groups])
            m[groups] = pool.log_median
            variance[groups] = pool.sigma_b2(prior=pool.sigma_w**2)

        slots = self._prompts.slots([None if key is None else _short(key) for key in batch.prompts[index].tolist()])
        last, uncertain = self._prompts.recall(slots)
        has_history = ~np.isnan(last)
        known, last, uncertain = index[has_history], last[has_history], uncertain[has_history]
        if known.size:
            m[known] = last
            self._known.weight += known.size
            self._known.learn_between(y[known] - last, uncertain + noise[known], known.size / self._known.weight)
            variance[known] = uncertain + self._known.sigma_b2(prior=0.0)

        weight = variance / (variance + noise)
        log_reference = weight * y + (1 - weight) * m
        self._prompts.remember(slots, log_reference[index], ((1 - weight) * variance)[index])
        return np.exp(log_reference)

    def _by_source(self, sources: np.ndarray, index: np.ndarray) -> Iterator[tuple[str | None, np.ndarray]]:
        """The counted groups of each data source known or still to be known, the rest as unlabelled (None)."""
        members: dict[object, list[int]] = {}
        for group, source in zip(index.tolist(), sources[index].tolist(), strict=True):
            members.setdefault(source, []).append(group)
        unlabelled = members.pop(None, [])
        for source, groups in members.items():
            name = _short(source)
            if name in self._sources or len(self._sources) < MAX_SOURCES:
                yield name, np.array(groups)
            else:
                unlabelled += groups
        if unlabelled:
            yield None, np.array(unlabelled)

    def state_dict(self) -> dict[str, Any]:
        """The running statistics in plain JSON types."""
        return {
            "sources": [[source, pool.state()] for source, pool in self._sources.items()],
            "known": self._known.state(),
            "prompts": self._prompts.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError, KeyError or TypeError, and changes nothing, when the state is damaged."""
        sources = {None if name is None else str(name): _Pool.from_state(pool) for name, pool in state["sources"]}
        known = _Pool.from_state(state["known"])
        prompts = PromptMemory.from_state(state["prompts"])
        self._sources, self._known, self._prompts = sources, known, prompts


@dataclass(frozen=True)
class _Shape:
    """What the references need of each group, from its usable rollouts; float64 (G,) but for ``usable``."""

    usable: np.ndarray  # int64
    max: np.ndarray
    mean: np.ndarray
    median: np.ndarray
    log_lmo: np.ndarray
    spread: np.ndarray  # sigma_w as this group alone shows it


def _shape(batch: GroupBatch, group_of: np.ndarray, used: np.ndarray) -> _Shape:
    if used.all():
        lengths, usable = batch.lengths, np.diff(batch.offsets)
    else:
        lengths, usable = batch.lengths[used], np.bincount(group_of[used], minlength=batch.num_groups)
    starts = np.cumsum(usable) - usable
    longest, mean, median, log_lmo, spread = (np.full(batch.num_groups, np.nan) for _ in range(5))
    for n in np.unique(usable[usable > 0]).tolist():  # groups of one size at a time: few sizes, whole-array work
        groups = np.flatnonzero(usable == n)
        if len(groups) == len(usable):
            x = np.sort(lengths.reshape(-1, n), axis=1)  # the usual case: one size for the whole step
        else:
            x = np.sort(lengths[starts[groups][:, None] + np.arange(n)], axis=1)
        longest[groups] = x[:, -1]
        mean[groups] = x.mean(axis=1)
        median[groups] = (x[:, (n - 1) // 2] + x[:, n // 2]) / 2
        if n >= 2:
            log_lmo[groups] = np.log(x[:, [(n - 2) // 2, (n - 1) // 2]]).mean(axis=1)
            low, high, width = _quartiles(n)
            spread[groups] = (np.log(x[:, high]) - np.log(x[:, low])) / width
    return _Shape(usable, longest, mean, median, log_lmo, spread)


def _check(batch: GroupBatch) -> np.ndarray:
    """The group of each rollout, int64 (R,)."""
    sizes = np.diff(batch.offsets)
    rows = len(batch.lengths)
    if len(batch.offsets) < 1 or batch.offsets[0] != 0 or batch.offsets[-1] != rows or (sizes < 0).any():
        raise ValueError(f"offsets must rise from 0 to the number of rollouts, {rows}")
    if len(batch.truncated) != rows or len(batch.prompts) != len(sizes) or len(batch.sources) != len(sizes):
        raise ValueError("truncated must have one entry per rollout, prompts and sources one per group")
    return np.repeat(np.arange(len(sizes)), sizes)


def _short(key: object) -> str:
    """A key of bounded length (whole prompts may be passed as keys)."""
    text = key if isinstance(key, str) else str(key)
    return text if len(text) <= 64 else hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _normal_order(i: int, n: int) -> float:
    """Expected i-th smallest (from 0) of n standard normal values, by Blom's formula."""
    return NormalDist().inv_cdf((i + 0.625) / (n + 0.25))


@lru_cache(maxsize=4096)
def _quartiles(n: int) -> tuple[int, int, float]:
    """Indices of two order statistics near the quartiles and how far apart they are for sigma_w = 1."""
    low, high = n // 4, n - 1 - n // 4
    return low, high, _normal_order(high, n) - _normal_order(low, n)


@lru_cache(maxsize=4096)
def _bias_of_size(n: int) -> float:
    return -(_normal_order((n - 2) // 2, n) + _normal_order((n - 1) // 2, n)) / 2


def _left_out_bias(n: np.ndarray) -> np.ndarray:
    """c_n: how far leaving the maximum out lowers the median of n normal values, in units of sigma_w."""
    sizes, where = np.unique(n, return_inverse=True)
    return np.array([_bias_of_size(size) for size in sizes.tolist()])[where]


def _median_noise(n: np.ndarray, sigma_w: float) -> np.ndarray:
    """v_n."""
    return (math.pi / 2) * sigma_w**2 / n
