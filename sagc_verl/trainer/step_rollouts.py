"""The rollouts of one step, as columns: drained from our workers, or read from veRL's tags where others are used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sagc_verl.control.groups import GroupBatch

QUEUE_FIELD = "sagc_queue_s"
"""Key in a rollout's `extra_fields`: seconds from arriving at the engine to being scheduled, of its last turn."""

# Rows of `sagc_verl.trainer.rollout_worker.Trajectory`, in its order; kept here so that this module needs no veRL.
FIELDS = (
    "uid",
    "session",
    "worker",
    "prompt_index",
    "data_source",
    "start",
    "end",
    "prompt_tokens",
    "response_tokens",
    "truncated",
    "generate_s",
    "queue_s",
    "tool_s",
    "reward_s",
    "turns",
    "preempted",
    "reward",
    "filter_value",
    "failed",
)


@dataclass
class StepRollouts:
    """R trajectories of one training step, sorted by group: every session of every group that was generated.

    Attributes:
        columns: one array of R entries per name in `FIELDS`, `start` and `end` in seconds since the step's start.
        stamped: whether times, truncation and failures are known (from our worker) or only lengths (from veRL's tags).
    """

    columns: dict[str, np.ndarray]
    stamped: bool

    def __len__(self) -> int:
        return len(self.columns["uid"])

    @property
    def counted(self) -> np.ndarray:
        """bool (R,): rollouts that came back; failed ones never count."""
        return ~self.columns["failed"]

    def groups(self) -> Iterator[tuple[str, slice]]:
        """Each group's uid and rows."""
        uids = self.columns["uid"]
        bounds = [0, *(np.flatnonzero(uids[1:] != uids[:-1]) + 1), len(uids)]
        for start, end in itertools.pairwise(bounds if len(uids) else []):
            yield str(uids[start]), slice(int(start), int(end))

    def batch(self, signal: str, cap: float | None, known_prompts: bool) -> GroupBatch | None:
        """What the controller sees; None when no rollout came back.

        Args:
            signal: "tokens" or "seconds" (generation and tools, without waiting for a slot where that is known).
            cap: `max_response_length`, the cap of `tokens`.
            known_prompts: whether `prompt_index` tells prompts apart.
        """
        keep = self.counted
        if not keep.any():
            return None
        columns = {name: values[keep] for name, values in self.columns.items()}
        if signal == "seconds":
            lengths = columns["generate_s"] + np.nan_to_num(columns["tool_s"]) - np.nan_to_num(columns["queue_s"])
            cap = None
        else:
            lengths = columns["response_tokens"].astype(float)
        prompts = None
        if known_prompts:
            prompts = [
                None if index is None else f"{source}:{index}"
                for source, index in zip(columns["data_source"], columns["prompt_index"], strict=True)
            ]
        return GroupBatch.from_rows(
            columns["uid"], lengths, columns["truncated"], prompts=prompts, sources=columns["data_source"], cap=cap
        )

    def prompts_are_known(self) -> bool:
        """Whether `prompt_index` tells this step's groups apart: veRL puts 0 where the data has no extra_info.index."""
        first = np.unique(self.columns["uid"], return_index=True)[1]
        keys = {
            (source, index)
            for source, index in zip(
                self.columns["data_source"][first], self.columns["prompt_index"][first], strict=True
            )
        }
        # Duplicate prompts in a batch do happen; all the same index does not. A single group tells nothing.
        return len(first) > 1 and len(keys) > len(first) // 2 and (None not in {index for _, index in keys})


_INTEGERS = {"session", "prompt_tokens", "response_tokens", "turns", "preempted"}
_FLOATS = {"start", "end", "generate_s", "queue_s", "tool_s", "reward_s", "reward", "filter_value"}
_FLAGS = {"truncated", "failed"}


def _columns(rows: Sequence[Sequence[Any]]) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for name, values in zip(FIELDS, zip(*rows, strict=True) if rows else [()] * len(FIELDS), strict=True):
        if name in _INTEGERS:
            columns[name] = np.array(values, dtype=np.int64)
        elif name in _FLOATS:
            columns[name] = np.array(values, dtype=np.float64)
        elif name in _FLAGS:
            columns[name] = np.array(values, dtype=bool)
        else:
            columns[name] = np.array(values, dtype=object)
    return columns


def from_workers(drained: Iterable[tuple[float, Sequence[Sequence[Any]], float]], step_start: float) -> StepRollouts:
    """Join what the workers drained.

    Args:
        drained: per worker: its monotonic clock when it answered, its rows, and the driver's monotonic clock half-way
            between asking and answering. The difference of the two clocks puts all stamps on the driver's clock,
            whatever node a worker is on and however wall clocks jump.
        step_start: the driver's monotonic clock when the step began.
    """
    rows: list[Sequence[Any]] = []
    start, end = FIELDS.index("start"), FIELDS.index("end")
    for worker_clock, worker_rows, driver_clock in drained:
        shift = driver_clock - worker_clock - step_start
        for row in worker_rows:
            moved = list(row)
            moved[start] += shift
            moved[end] += shift
            rows.append(moved)
    rows.sort(key=lambda row: (row[0], row[1]))
    return StepRollouts(_columns(rows), stamped=True)


_UNSTAMPED: dict[str, Any] = {
    "worker": "",
    "prompt_index": None,
    "data_source": None,
    "prompt_tokens": 0,
    "response_tokens": 0,
    "truncated": False,
    "turns": 0,
    "preempted": -1,
    "failed": False,
}


def _unstamped(uid: str, session: int) -> list[Any]:
    """A row of `FIELDS` of which only the lengths will be known."""
    known = {**_UNSTAMPED, "uid": uid, "session": session}
    return [known.get(name, math.nan) for name in FIELDS]


def from_tags(keys: Sequence[str], tags: Sequence[Mapping[str, Any]], cap: int) -> StepRollouts:
    """Read lengths from the tags of the trained batch, keys `{uid}_{session}_{index}` (veRL 0.9.1, replay_buffer.py).

    Padding rows are left out and the outputs of a session are added up.
    """
    sessions: dict[tuple[str, int], list[Any]] = {}
    for key, tag in zip(keys, tags, strict=True):
        if tag.get("is_padding", False):
            continue
        uid, session, _ = key.rsplit("_", 2)
        row = sessions.setdefault((uid, int(session)), _unstamped(uid, int(session)))
        row[FIELDS.index("prompt_tokens")] = int(tag.get("prompt_len") or 0)
        row[FIELDS.index("response_tokens")] += int(tag.get("response_len") or 0)
    rows = [sessions[key] for key in sorted(sessions)]
    columns = _columns(rows)
    columns["truncated"] = columns["response_tokens"] >= cap
    return StepRollouts(columns, stamped=False)
