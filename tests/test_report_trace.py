from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import write_run

from sagc_verl.records.reader import Run
from sagc_verl.report.trace import FIRST_WORKER_PROCESS, STEP_PROCESS, Trace, build_trace, pack


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(write_run(tmp_path_factory.mktemp("run"), steps=6, seed=5) / "sagc")


@pytest.fixture(scope="module")
def trace(run: Run) -> Trace:
    return build_trace(run, 2, 4)


def slices(trace: Trace) -> list[dict[str, Any]]:
    return [event for event in trace.events if event["ph"] == "X" and event["pid"] >= FIRST_WORKER_PROCESS]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50)), min_size=1, max_size=60))
def test_lanes_never_overlap_and_are_as_few_as_can_be(intervals: list[tuple[int, int]]) -> None:
    starts = [float(start) for start, _ in intervals]
    ends = [float(start + length) for start, length in intervals]
    lanes = pack(starts, ends)
    by_lane = defaultdict(list)
    for start, end, lane in sorted(zip(starts, ends, lanes, strict=True)):
        assert all(start >= before for before in by_lane[lane])
        by_lane[lane].append(end)
    at_once = max(sum(s <= moment < e for s, e in zip(starts, ends, strict=True)) for moment in starts)
    assert max(lanes) + 1 == at_once


def test_events_are_valid_trace_events(trace: Trace) -> None:
    for event in json.loads(json.dumps(trace.as_dict("r"), allow_nan=False))["traceEvents"]:
        assert event["ph"] in {"X", "M", "C", "i"}
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert isinstance(event["tid"], int)
        if event["ph"] == "i":
            assert event["s"] in {"g", "p", "t"}
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())


def test_every_rollout_has_a_slice_and_slices_of_a_lane_do_not_overlap(run: Run, trace: Trace) -> None:
    assert len(slices(trace)) == trace.rollouts == len(run.table("rollouts", steps=[2, 3, 4]))
    last: dict[tuple[int, int], int] = {}
    for event in sorted(slices(trace), key=lambda event: event["ts"]):
        lane = (event["pid"], event["tid"])
        assert event["ts"] >= last.get(lane, 0)
        last[lane] = event["ts"] + event["dur"]


def test_stragglers_are_marked_and_groups_share_a_name_and_colour(run: Run, trace: Trace) -> None:
    marks = [event for event in trace.events if event["name"].startswith("straggler: ")]
    assert len(marks) == int(run.table("rollouts", steps=[2, 3, 4])["exceeds"].sum()) > 0
    calm = [event for event in slices(trace) if event["cat"] == "rollout"]
    names, colours = defaultdict(set), defaultdict(set)
    for event in calm:
        names[event["args"]["uid"]].add(event["name"].split()[0])
        colours[event["args"]["uid"]].add(event["cname"])
    assert all(len(found) == 1 for found in (*names.values(), *colours.values()))
    # Perfetto leaves digits out of what it colours by.
    assert not any(char.isdigit() for found in names.values() for name in found for char in name)


def test_the_counter_starts_and_ends_with_nothing_running(trace: Trace) -> None:
    counts = [event["args"] for event in trace.events if event["ph"] == "C"]
    assert counts[-1] == {"running": 0, "waiting for a slot": 0}
    assert max(count["running"] for count in counts) > 1


def test_phases_follow_one_another_and_steps_do_not_overlap(trace: Trace) -> None:
    phases = [event for event in trace.events if event["ph"] == "X" and event["pid"] == STEP_PROCESS]
    assert [event["name"] for event in phases] == ["gen", "update_actor"] * 3
    for before, after in itertools.pairwise(phases):
        assert after["ts"] >= before["ts"] + before["dur"]
    assert trace.steps == (2, 3, 4)


def test_what_cannot_be_shown_is_said(run: Run) -> None:
    with pytest.raises(ValueError, match=r"no step 99 on record \(there are 1 to 6\)"):
        build_trace(run, 99, 99)


def test_a_run_without_rollout_times_is_refused(tmp_path: Path) -> None:
    from sagc_verl.records.writer import RecordWriter

    writer = RecordWriter(tmp_path / "sagc", {})
    writer.write_step(1, {"uid": ["a"], "response_tokens": [3]}, {}, {"wall_s": 1.0})
    writer.close()
    with pytest.raises(ValueError, match="no rollout times"):
        build_trace(Run(tmp_path / "sagc"), 1, 1)
