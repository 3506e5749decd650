"""Groups of any size from a few samples per prompt.

A group of n takes n different samples of its prompt, every subset being equally likely: no law is assumed. Where a
prompt has fewer than n samples, all are used and the rest comes from a fitted law; the draw counts how many did:

    log L      = mu_p + sigma_p * z
    mu_p       mean log length of the prompt
    sigma_p^2  the prompt's own variance, shrunk towards the mean variance as if that were WEIGHT further samples
    z          pooled standardised residuals of all prompts; beyond the 98th percentile exponential (L: Pareto tail)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sagc_verl.control import GroupBatch

WEIGHT = 8.0
TAIL_FROM = 0.98
UNITS = ("tokens", "characters", "seconds")


@dataclass(frozen=True)
class Draw:
    """The rollouts of one step: P groups of n."""

    lengths: np.ndarray
    """float64 (P, n), in the workload's unit."""
    truncated: np.ndarray
    """bool (P, n): stopped by the cap."""
    scores: np.ndarray | None
    """float64 (P, n), or None where no scores are on record."""
    keys: np.ndarray
    """object (P,): the prompt's key, or None."""
    sources: np.ndarray
    """object (P,): its data source, or None."""
    cap: float | None
    modelled: int
    """Rollouts that came from a fitted law rather than from the record."""

    def batch(self) -> GroupBatch:
        """What the controller sees of it."""
        return as_batch(self.lengths, self)

    def take(self, rows: np.ndarray) -> Draw:
        """Some of its groups."""
        scores = None if self.scores is None else self.scores[rows]
        share = len(rows) / max(1, len(self.keys))
        return Draw(
            self.lengths[rows],
            self.truncated[rows],
            scores,
            self.keys[rows],
            self.sources[rows],
            self.cap,
            round(self.modelled * share),
        )


def as_batch(lengths: np.ndarray, draw: Draw, truncated: np.ndarray | None = None) -> GroupBatch:
    """Groups of equal size, float64 (P, n), with the prompts of ``draw``, as the controller takes them."""
    groups, n = lengths.shape
    flags = draw.truncated if truncated is None else truncated
    return GroupBatch(
        lengths=lengths.ravel(),
        offsets=np.arange(0, groups * n + 1, n, dtype=np.int64),
        truncated=flags.ravel(),
        prompts=draw.keys,
        sources=draw.sources,
        cap=draw.cap,
    )


def join(draws: Sequence[Draw]) -> Draw:
    """Groups of several draws of one size in one."""
    if len(draws) == 1:
        return draws[0]
    scores = [draw.scores for draw in draws]
    caps = {draw.cap for draw in draws}
    return Draw(
        np.concatenate([draw.lengths for draw in draws]),
        np.concatenate([draw.truncated for draw in draws]),
        None if any(s is None for s in scores) else np.concatenate([s for s in scores if s is not None]),
        np.concatenate([draw.keys for draw in draws]),
        np.concatenate([draw.sources for draw in draws]),
        caps.pop() if len(caps) == 1 else None,
        sum(draw.modelled for draw in draws),
    )


class LengthTable:
    """Samples per prompt.

    Args:
        prompt_of: int (R,) row of the prompt of each sample, 0..N-1, each prompt present.
        lengths: float (R,) above 0.
        scores: float (R,) or None.
        truncated: bool (R,) or None.
        keys: object (N,) keys of the prompts (None: not to be recognised when they come back).
        sources: object (N,) data sources or None entries.
        cap: the largest length possible, or None.
    """

    def __init__(
        self,
        prompt_of: np.ndarray,
        lengths: np.ndarray,
        scores: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        keys: np.ndarray | None = None,
        sources: np.ndarray | None = None,
        cap: float | None = None,
    ):
        order = np.argsort(prompt_of, kind="stable")
        prompt_of = prompt_of[order]
        self.counts = np.bincount(prompt_of)
        depth = int(self.counts.max())
        starts = np.cumsum(self.counts) - self.counts
        within = np.arange(len(prompt_of)) - starts[prompt_of]

        def spread(values: np.ndarray, dtype: type, empty: float) -> np.ndarray:
            grid = np.full((depth, len(self.counts)), empty, dtype=dtype)
            grid[within, prompt_of] = values[order]
            return grid

        self._lengths = spread(lengths, np.float64, np.nan)
        self._truncated = None if truncated is None or not truncated.any() else spread(truncated, np.bool_, False)
        self._scores = None if scores is None else spread(scores, np.float64, np.nan)
        empty = np.full(len(self.counts), None, dtype=object)
        self.keys = empty if keys is None else keys
        self.sources = empty if sources is None else sources
        self.cap = cap

    @property
    def num_prompts(self) -> int:
        return len(self.counts)

    @property
    def num_samples(self) -> int:
        return int(self.counts.sum())

    @property
    def recorded(self) -> int:
        """The largest n that every prompt can be drawn at without the fitted law."""
        return int(self.counts.min())

    @property
    def has_scores(self) -> bool:
        return self._scores is not None

    def draw(self, prompts: np.ndarray, n: int, rng: np.random.Generator) -> Draw:
        """One group of n for each of ``prompts``, int (P,) rows (a row may come twice)."""
        counts = self.counts[prompts]
        depth = len(self._lengths)
        taken = min(n, depth)
        columns = np.arange(len(prompts))
        # the first steps of a Fisher-Yates shuffle, in all groups at once: row j of `which` is the j-th sample taken
        which = np.repeat(np.arange(depth)[:, None], len(prompts), axis=1)
        if taken < depth or counts.min() < depth:
            uniform = rng.random((taken, len(prompts)))
            for j in range(taken):
                other = j + (uniform[j] * np.maximum(counts - j, 1)).astype(np.int64)
                np.minimum(other, depth - 1, out=other)
                here = which[j].copy()
                which[j] = which[other, columns]
                which[other, columns] = here
        which = which[:taken]
        lengths = self._lengths[which, prompts].T
        truncated = np.zeros(lengths.shape, bool) if self._truncated is None else self._truncated[which, prompts].T
        scores = None if self._scores is None else self._scores[which, prompts].T
        modelled = 0
        if counts.min() < n:
            lengths, truncated, scores = self._widen(n, lengths, truncated, scores)
            modelled = self._fill(lengths, truncated, scores, prompts, counts, rng)
        return Draw(
            np.ascontiguousarray(lengths),
            np.ascontiguousarray(truncated),
            scores,
            self.keys[prompts],
            self.sources[prompts],
            self.cap,
            modelled,
        )

    @staticmethod
    def _widen(
        n: int, lengths: np.ndarray, truncated: np.ndarray, scores: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        more = ((0, 0), (0, n - lengths.shape[1]))
        return (
            np.pad(lengths, more, constant_values=np.nan),
            np.pad(truncated, more),
            None if scores is None else np.pad(scores, more, constant_values=np.nan),
        )

    def _fill(
        self,
        lengths: np.ndarray,
        truncated: np.ndarray,
        scores: np.ndarray | None,
        prompts: np.ndarray,
        counts: np.ndarray,
        rng: np.random.Generator,
    ) -> int:
        """Puts rollouts of the fitted law where a prompt has no more samples; returns how many."""
        group, column = np.nonzero(np.arange(lengths.shape[1]) >= counts[:, None])
        drawn = self.law.draw(prompts[group], rng)
        if self.cap is not None:
            truncated[group, column] = drawn >= self.cap
            drawn = np.minimum(drawn, self.cap)
        lengths[group, column] = drawn
        if scores is not None:
            # a score like one of the prompt's own
            own = (rng.random(len(group)) * counts[group]).astype(np.int64)
            assert self._scores is not None
            scores[group, column] = self._scores[own, prompts[group]]
        return len(group)

    @cached_property
    def law(self) -> TailLaw:
        """The fitted law; made at first use."""
        return TailLaw.fit(self._lengths, self.counts)


@dataclass(frozen=True)
class TailLaw:
    """The law of the module's box."""

    mu: np.ndarray
    sigma: np.ndarray
    residuals: np.ndarray
    tail_start: float
    tail_mean: float

    @classmethod
    def fit(cls, lengths: np.ndarray, counts: np.ndarray) -> TailLaw:
        """lengths float64 (depth, N), NaN where a prompt has no sample; counts int (N,)."""
        log = np.log(lengths)
        mu = np.nanmean(log, axis=0)
        deviation = log - mu
        squares = np.nansum(deviation**2, axis=0)
        freedom = np.maximum(counts - 1, 0)
        pooled = float(squares.sum() / max(1, freedom.sum()))
        sigma = np.sqrt(np.maximum((squares + WEIGHT * pooled) / (freedom + WEIGHT), 1e-12))
        # the prompt's own mean takes a share of 1/count out of each deviation
        with np.errstate(divide="ignore", invalid="ignore"):
            z = deviation / sigma * np.sqrt(counts / freedom)
        residuals = np.sort(z[np.isfinite(z)])
        start = float(np.quantile(residuals, TAIL_FROM))
        beyond = residuals[residuals > start]
        return cls(mu, sigma, residuals, start, float((beyond - start).mean()) if beyond.size else 0.0)

    def draw(self, prompts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One length per entry of ``prompts``, int (K,) -> float64 (K,)."""
        z = self.residuals[rng.integers(0, len(self.residuals), len(prompts))]
        tail = z > self.tail_start
        z[tail] = self.tail_start + rng.exponential(self.tail_mean, int(tail.sum()))
        return np.maximum(np.exp(self.mu[prompts] + self.sigma[prompts] * z), 1.0)
