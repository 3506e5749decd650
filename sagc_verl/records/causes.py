"""Why a rollout was a straggler: its own length, or something that happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from sagc_verl.records.timeline import seconds


def classify(
    rollouts: Mapping[str, ArrayLike], threshold: float = 2.5, signal: Literal["tokens", "seconds"] = "tokens"
) -> np.ndarray:
    """The column `cause` of a step's rollouts: object (R,) of str, "" for those that are no stragglers.

    rollouts: columns of the rollouts table, R values each: uid, exceeds, response_tokens; truncated, preempted,
        start_s, end_s, queue_s, generate_s, tool_s, reward_s where known (NaN or missing where not).
    threshold: how many times as long as the others of its group a rollout must take to be slow.
    signal: what `exceeds` is about.

    Two kinds of rollouts are stragglers. Those that exceed in tokens: `truncated` if the limit stopped them, else
    `long_response`. And the slow ones:

    - they exceed in seconds,
    - or their time (end - start - queue) is more than `threshold` times the median of the others of their group, and
      more than the step's median,
    - or generating took more than `threshold` times as long as the length explains, at the step's median of seconds per
      token, and more than the step's median.

    For the slow ones the part of the time that is furthest above the median of the others decides: `slow_tool`,
    `slow_reward`, or generating. If generating, a length above `threshold` times the others' explains it (`truncated`,
    `long_response`), else the engine threw it out (`preempted`), else it is an `engine_stall`.
    """
    exceeds = _flags(rollouts, "exceeds")
    count = len(exceeds)
    causes = np.full(count, "", dtype=object)
    if not count:
        return causes
    groups = _numbered(rollouts["uid"])
    tokens = seconds(rollouts, "response_tokens", count)
    tool, reward = (np.nan_to_num(seconds(rollouts, name, count)) for name in ("tool_s", "reward_s"))
    generate = seconds(rollouts, "generate_s", count)
    taken = seconds(rollouts, "end_s", count) - seconds(rollouts, "start_s", count)
    taken -= np.nan_to_num(seconds(rollouts, "queue_s", count))
    taken = np.where(np.isnan(taken), generate + tool + reward, taken)
    generate = np.where(np.isnan(generate), taken - tool - reward, generate)

    with np.errstate(divide="ignore", invalid="ignore"):
        slow = (taken > threshold * median_of_others(taken, groups)) & (taken > _median(taken))
        explained = np.where(tokens > 0, tokens, np.nan)
        explained *= _median(generate / explained)
        slow |= (generate > threshold * explained) & (generate > _median(generate))
        long = tokens > threshold * median_of_others(tokens, groups)
    if signal == "tokens":
        long |= exceeds
        by_length = exceeds
    else:
        slow |= exceeds
        by_length = np.zeros(count, dtype=bool)

    longest_part = np.zeros(count, dtype=np.intp)
    near = np.isin(groups, groups[slow])
    parts = [part[near] for part in (generate, tool, reward)]
    above = [part - np.nan_to_num(median_of_others(part, groups[near])) for part in parts]
    longest_part[near] = np.argmax(np.nan_to_num(above, nan=-np.inf), axis=0)
    length_cause = np.where(_flags(rollouts, "truncated", count), "truncated", "long_response")
    preempted = seconds(rollouts, "preempted", count) > 0
    engine_cause = np.where(long, length_cause, np.where(preempted, "preempted", "engine_stall"))
    slow_cause = np.choose(longest_part, [engine_cause, np.full(count, "slow_tool"), np.full(count, "slow_reward")])
    causes[slow] = slow_cause[slow]
    causes[by_length] = length_cause[by_length]
    return causes


def median_of_others(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """For each of R values the median of the other values of its group, float64 (R,); NaN values are no members.

    groups: int (R,), any order. NaN in groups of one and at NaN values.
    """
    others = np.full(len(values), np.nan)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.lexsort((values[known], groups[known]))]
    ordered, group = values[order], groups[order]
    if not len(order):
        return others
    first = np.r_[0, np.flatnonzero(np.diff(group)) + 1]
    size = np.diff(np.r_[first, len(group)])
    first, size = np.repeat(first, size), np.repeat(size, size)
    rank = np.arange(len(group)) - first
    left = size - 1
    # The others, in order, are the group's values with place `rank` left out: places at or behind it move up by one.
    low, high = np.maximum(left - 1, 0) // 2, left // 2
    several = size > 1
    low = np.where(several, first + low + (low >= rank), 0)
    high = np.where(several, first + high + (high >= rank), 0)
    others[order] = np.where(several, (ordered[low] + ordered[high]) / 2, np.nan)
    return others


def _numbered(labels: ArrayLike) -> np.ndarray:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in np.asarray(labels).tolist()], dtype=np.intp)


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else np.nan


def _flags(rollouts: Mapping[str, Any], name: str, count: int = 0) -> np.ndarray:
    values = rollouts.get(name)
    return np.zeros(count, dtype=bool) if values is None else np.asarray(values, dtype=bool)
