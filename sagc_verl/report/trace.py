"""Steps on a timeline: JSON in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format. Times are
microseconds. Process 1 holds the phases of the steps and a counter of running rollouts; every further process is an
agent loop worker, with one thread (lane) per slot that its rollouts took up at once. Where the engine told how long a
rollout waited for its slot, the rollout's slice starts after the wait.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sagc_verl.report.measures import OTHER_PHASE, floats, phase_seconds
from sagc_verl.report.source import batches

if TYPE_CHECKING:
    import pandas as pd

    from sagc_verl.records.reader import Run

STEP_PROCESS = 1
PHASE_LANE = 1
FIRST_WORKER_PROCESS = 10

# Named colours of chrome://tracing. Perfetto colours by the slice's name instead, digits left out.
_GROUP_COLOURS = (
    "thread_state_running", "rail_response", "rail_animation", "rail_load", "thread_state_iowait", "cq_build_running",
    "cq_build_passed", "vsync_highlight_color", "generic_work", "thread_state_runnable",
)  # fmt: skip
_STRAGGLER_COLOUR = "terrible"

_COLUMNS = (
    "step", "uid", "prompt_index", "data_source", "session", "n", "prompt_tokens", "response_tokens", "truncated",
    "start_s", "end_s", "queue_s", "generate_s", "tool_s", "reward_s", "turns", "preempted", "reward", "exceeds",
    "status", "cause", "worker",
)  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """A timeline, ready for `json.dump`.

    Attributes:
        events: the `traceEvents`.
        steps: the steps shown.
        rollouts: rollouts shown.
        untimed: rollouts left out because their start or end is not on record.
    """

    events: list[dict[str, Any]]
    steps: tuple[int, ...]
    rollouts: int
    untimed: int

    def as_dict(self, run: str) -> dict[str, Any]:
        """The whole file."""
        return {
            "traceEvents": self.events,
            "displayTimeUnit": "ms",
            "otherData": {"run": run, "steps": ", ".join(str(step) for step in self.steps)},
        }


def build_trace(run: Run, first: int | None, last: int | None) -> Trace:
    """The timeline of the steps `first` to `last`, both included.

    Raises:
        ValueError: no such step, or no rollout times on record for it.
    """
    wanted = slice(first, None if last is None else last + 1)
    steps = run.table("steps", steps=wanted).sort_values("step", kind="stable").reset_index(drop=True)
    if len(steps) == 0:
        raise ValueError(f"{run.name}: {_no_such_step(run, first, last)}")
    starts = dict(zip(steps["step"].tolist(), _step_starts(steps), strict=True))
    rollouts = _timed_rollouts(run, wanted)
    untimed = rollouts["start_s"].isna() | rollouts["end_s"].isna()
    timed = cast("pd.DataFrame", rollouts[~untimed & rollouts["step"].isin(list(starts))].reset_index(drop=True))
    if len(timed) == 0:
        raise ValueError(f"{run.name}: no rollout times on record for these steps")
    offset = np.array([starts[step] for step in timed["step"].tolist()])
    waited = np.nan_to_num(floats(timed["queue_s"]))
    begin = offset + floats(timed["start_s"])
    end = np.maximum(offset + floats(timed["end_s"]), begin)
    running = np.minimum(begin + waited, end)
    events = [*_phase_events(steps, starts), *_counter_events(begin, running, end)]
    events.extend(_rollout_events(timed, _microseconds(running), _microseconds(end)))
    return Trace(events, tuple(int(step) for step in starts), len(timed), int(untimed.sum()))


def pack(starts: Sequence[float], ends: Sequence[float]) -> list[int]:
    """Lane of each interval so that no two in a lane overlap: always the lowest lane that is free.

    Uses as few lanes as there are intervals at once.
    """
    lanes = [0] * len(starts)
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    opened = 0
    for item in sorted(range(len(starts)), key=lambda place: (starts[place], ends[place])):
        while busy and busy[0][0] <= starts[item]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, opened = opened, opened + 1
        lanes[item] = lane
        heapq.heappush(busy, (ends[item], lane))
    return lanes


def _no_such_step(run: Run, first: int | None, last: int | None) -> str:
    there = run.table("steps", columns=["step"])["step"]
    asked = f"step {first}" if first == last else f"steps {first or ''}:{last or ''}"
    return f"no {asked} on record" + (f" (there are {there.min()} to {there.max()})" if len(there) else "")


def _timed_rollouts(run: Run, wanted: slice) -> pd.DataFrame:
    import pandas as pd

    found = list(batches(run, "rollouts", _COLUMNS, wanted))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(_COLUMNS))


def _step_starts(steps: pd.DataFrame) -> list[float]:
    """Seconds from the first step's start to each step's start: by the clock where it is on record."""
    wall = np.nan_to_num(floats(steps["wall_s"]))
    ended = floats(steps["time"])
    starts: list[float] = []
    done = 0.0
    for row in range(len(steps)):
        by_clock = ended[row] - wall[row] - (ended[0] - wall[0])
        start = max(by_clock, done) if math.isfinite(by_clock) else done
        starts.append(start)
        done = start + wall[row]
    return starts


def _phase_events(steps: pd.DataFrame, starts: dict[int, float]) -> Iterator[dict[str, Any]]:
    """Phases one after another in veRL's order; the gaps between them are not on record."""
    yield _name("process_name", STEP_PROCESS, None, "step")
    yield _order("process_sort_index", STEP_PROCESS, None, 0)
    yield _name("thread_name", STEP_PROCESS, PHASE_LANE, "phases")
    phases = phase_seconds(steps)
    for row, (step, start) in enumerate(starts.items()):
        played = {key: _plain(steps[key].iloc[row]) for key in ("n", "straggler_rate", "tail_s", "rollouts", "tokens")}
        yield _instant(
            f"step {step}", int(_microseconds(start)), STEP_PROCESS, PHASE_LANE, "p", {"step": step, **_known(played)}
        )
        shown = {str(phase): seconds for phase, seconds in phases.iloc[row].items() if seconds > 0}
        shown.pop(OTHER_PHASE, None)
        edges = _microseconds(start + np.cumsum([0.0, *shown.values()])).tolist()
        for place, phase in enumerate(shown):
            yield _slice(phase, "phase", edges[place], edges[place + 1], STEP_PROCESS, PHASE_LANE, {"step": step})


def _counter_events(begin: np.ndarray, running: np.ndarray, end: np.ndarray) -> Iterator[dict[str, Any]]:
    times = np.concatenate([begin, running, end])
    one = np.ones(len(begin))
    waiting = np.concatenate([one, -one, 0 * one])
    active = np.concatenate([0 * one, one, -one])
    moments, place = np.unique(times, return_inverse=True)
    waiting = np.cumsum(np.bincount(place, waiting, minlength=len(moments)))
    active = np.cumsum(np.bincount(place, active, minlength=len(moments)))
    for moment, busy, queued in zip(_microseconds(moments).tolist(), active, waiting, strict=True):
        yield {
            "name": "rollouts",
            "ph": "C",
            "ts": moment,
            "pid": STEP_PROCESS,
            "args": {"running": int(busy), "waiting for a slot": int(queued)},
        }


def _rollout_events(rollouts: pd.DataFrame, starts: np.ndarray, ends: np.ndarray) -> Iterator[dict[str, Any]]:
    workers = rollouts["worker"].fillna("worker").astype(str)
    codes = {uid: place for place, uid in enumerate(rollouts["uid"].unique())}
    facts = rollouts.to_dict("records")
    ends = np.maximum(ends, starts + 1)  # an empty slice would not be drawn
    for number, (worker, rows) in enumerate(sorted(rollouts.groupby(workers).indices.items())):
        process = FIRST_WORKER_PROCESS + number
        yield _name("process_name", process, None, str(worker))
        yield _order("process_sort_index", process, None, number + 1)
        lanes = pack(starts[rows].tolist(), ends[rows].tolist())
        for lane in range(max(lanes) + 1):
            yield _name("thread_name", process, lane + 1, f"slot {lane}")
            yield _order("thread_sort_index", process, lane + 1, lane)
        for row, lane in zip(rows.tolist(), lanes, strict=True):
            yield from _one_rollout(facts[row], codes, int(starts[row]), int(ends[row]), process, lane + 1)


def _one_rollout(
    rollout: dict[Any, Any], codes: dict[str, int], start: int, end: int, process: int, lane: int
) -> Iterator[dict[str, Any]]:
    code = codes[rollout["uid"]]
    facts = _known({"group": _letters(code), **{key: _plain(rollout[key]) for key in _COLUMNS}})
    straggler = bool(facts.get("exceeds"))
    label = f"{facts['group']} {facts.get('session', '')}".strip()
    event = _slice(label, "straggler" if straggler else "rollout", start, end, process, lane, facts)
    yield {**event, "cname": _STRAGGLER_COLOUR if straggler else _GROUP_COLOURS[code % len(_GROUP_COLOURS)]}
    if straggler:
        name = f"straggler: {facts.get('cause', 'long')}"
        yield _instant(name, end, process, lane, "t", {"group": facts["group"]})


def _slice(
    name: str, category: str, start: int, end: int, process: int, lane: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start,
        "dur": end - start,
        "pid": process,
        "tid": lane,
        "args": args,
    }


def _instant(name: str, at: int, process: int, lane: int, scope: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "i", "ts": at, "pid": process, "tid": lane, "s": scope, "args": args}


def _name(kind: str, process: int, lane: int | None, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane or 0, "args": {"name": name}}


def _order(kind: str, process: int, lane: int | None, place: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane or 0, "args": {"sort_index": place}}


def _microseconds(seconds: Any) -> np.ndarray:
    return np.rint(np.asarray(seconds, dtype=float) * 1_000_000).astype(np.int64)


def _letters(place: int) -> str:
    """A, B, ..., Z, AA, AB, ...: digits would all get one colour in Perfetto."""
    text = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def _plain(value: Any) -> Any:
    import pandas as pd

    if value is None or value is pd.NA:
        return None
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None and value != ""}
