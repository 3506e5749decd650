"""How one step's rollout phase went: its tail, the idle share of the engine's slots, what the last few rollouts cost.

Plain functions of times in seconds on one clock; entries with a NaN in them (failed rollouts) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

TOP_PERCENTS = (1, 2, 5)


def step_columns(rollouts: Mapping[str, ArrayLike]) -> dict[str, float]:
    """The columns of the steps table that follow from the times of the step's rollouts.

    rollouts: columns of the rollouts table, R values each: start_s and end_s; queue_s and reward_s where known (they do
        not count as running); cause for the share of stalls.
    Returns tail_s, idle_share, stall and gen_share_top1, 2, 5; NaN where there is too little to tell.
    """
    start, end = seconds(rollouts, "start_s"), seconds(rollouts, "end_s")
    ran_from = start + np.nan_to_num(seconds(rollouts, "queue_s", len(start)))
    ran_to = end - np.nan_to_num(seconds(rollouts, "reward_s", len(start)))
    causes = rollouts.get("cause")
    stall = float(np.mean(np.asarray(causes) == "engine_stall")) if causes is not None and len(start) else np.nan
    return {
        "tail_s": tail_seconds(end),
        "idle_share": idle_share(ran_from, ran_to),
        "stall": stall,
        **{f"gen_share_top{top}": generation_share_of_longest(start, end, top) for top in TOP_PERCENTS},
    }


def seconds(rollouts: Mapping[str, Any], name: str, count: int = 0) -> np.ndarray:
    """A column as float64 (R,); NaN for None and for all `count` rows of a missing column."""
    values = rollouts.get(name)
    return np.full(count, np.nan) if values is None else np.asarray(values, dtype=np.float64)


def tail_seconds(end: ArrayLike, done: float = 0.9) -> float:
    """Seconds from the moment the share `done` of the rollouts is done to the last one. NaN for none."""
    ends = _finite(end)[0]
    if not len(ends):
        return np.nan
    ends.sort()
    return float(ends[-1] - ends[int(np.ceil(done * len(ends))) - 1])


def most_at_once(start: ArrayLike, end: ArrayLike) -> int:
    """The largest number of the intervals [start, end) that hold one moment: the slots that were in use at the peak."""
    starts, ends = _finite(start, end)
    starts.sort()
    ends.sort()
    # Before the i-th start, i others have started; those that have ended by then are gone.
    running = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    return int(running.max(initial=0))


def idle_share(start: ArrayLike, end: ArrayLike) -> float:
    """Share of slot time in which no rollout ran: 1 - sum(end - start) / (slots * makespan).

    slots: most intervals at once; makespan: first start to last end. An engine that could hold more than ever ran at
    once is idler than this says. NaN where nothing ran.
    """
    starts, ends = _finite(start, end)
    ends = np.maximum(starts, ends)
    if not len(starts) or ends.max() <= starts.min():
        return np.nan
    slots = max(most_at_once(starts, ends), 1)
    busy = float(np.sum(ends - starts))
    return 1.0 - busy / (slots * float(ends.max() - starts.min()))


def generation_share_of_longest(start: ArrayLike, end: ArrayLike, percent: float) -> float:
    """Share of the rollout phase that its longest `percent` % of R rollouts cost: how much sooner it would end without.

    The longest are those that end last (all start together). With k = ceil(percent / 100 * R): (last end - end of the
    k+1-th last) / (last end - first start). In [0, 1], growing with `percent`. NaN where no rollout would be left or
    nothing took time.
    """
    starts, ends = _finite(start, end)
    without = int(np.ceil(percent / 100 * len(ends)))
    if without >= len(ends) or ends.max() <= starts.min():
        return np.nan
    last = ends.max()
    return float((last - np.partition(ends, -without - 1)[-without - 1]) / (last - starts.min()))


def _finite(*columns: ArrayLike) -> list[np.ndarray]:
    """Copies as float64, less the rows in which any of them is NaN or infinite."""
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    keep = np.logical_and.reduce([np.isfinite(array) for array in arrays])
    return [array[keep] for array in arrays]
