"""What a step costs, and fitting it."""

from __future__ import annotations

import heapq
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.steptime import HEAP_BELOW, StepTime, makespan
from sagc_verl.replay.timefit import fit_step_time


def by_heap(lengths: np.ndarray, slots: int) -> float:
    ends = [0.0] * slots
    for length in lengths.tolist():
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


@given(
    st.lists(st.floats(0.5, 1e4), min_size=1, max_size=300),
    st.sampled_from([1, 2, 7, HEAP_BELOW - 1, HEAP_BELOW, HEAP_BELOW + 9, 128]),
)
def test_makespan_is_that_of_continuous_batching(lengths: list[float], slots: int):
    array = np.array(lengths)
    assert makespan(array, slots) == pytest.approx(by_heap(array, slots), rel=1e-12)


def test_generation_is_a_times_longest_plus_b_times_tokens():
    time = StepTime(a=2.0, b=0.5, overhead=1.0, engines=1, slots=0)
    assert time.generation(np.array([1.0, 4.0, 3.0])) == 1 + 2 * 4 + 0.5 * 8
    two = StepTime(a=2.0, b=0.5, engines=2, slots=0)
    assert two.generation(np.array([1.0, 4.0, 3.0])) == max(2 * 3 + 0.5 * 4, 2 * 4 + 0.5 * 4)
    waits = StepTime(a=1.0, b=0.0, engines=1, slots=1)
    assert waits.generation(np.array([1.0, 4.0, 3.0])) == 8
    assert waits.queues(2) and not two.queues(1000)
    assert StepTime(logprob=1, update=2, sync=5, other=1, prompt_tokens=10).rest(100, 4) == 3 * 140 + 6


def test_longest_first_helps_only_where_rollouts_wait():
    lengths = np.array([1.0] * 8 + [8.0])
    order = np.argsort(-lengths)
    queued = StepTime(a=1.0, b=0.0, engines=1, slots=2)
    assert queued.generation(lengths) == 12
    assert queued.generation(lengths, order) == 8
    free = StepTime(a=1.0, b=0.0, engines=1, slots=0)
    assert free.generation(lengths) == free.generation(lengths, order) == 8


def recorded(steps: int = 200, noise: float = 0.02) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rollouts = np.full(steps, 512.0)
    mean, longest = rng.uniform(200, 600, steps), rng.uniform(1500, 4000, steps)
    tokens = mean * rollouts
    gen = (3 + 0.01 * longest + 2e-4 * tokens) * (1 + noise * rng.standard_normal(steps))
    gen[[3, 50]] *= 8  # a hiccup of the machine
    total = tokens + 100 * rollouts
    return pd.DataFrame(
        {
            "step": np.arange(1, steps + 1),
            "response_length/mean": mean,
            "response_length/max": longest,
            "prompt_length/mean": 100.0,
            "perf/total_num_tokens": total,
            "timing_s/gen": gen,
            "timing_s/old_log_prob": 1e-5 * total,
            "timing_s/update_actor": 3e-5 * total,
            "timing_s/testing": np.where(np.arange(steps) % 10 == 0, 99.0, np.nan),
            "timing_s/step": gen + 4e-5 * total + 2 + np.where(np.arange(steps) % 10 == 0, 99.0, 0.0),
        }
    )


def test_a_fit_finds_the_constants_and_says_its_error():
    fit = fit_step_time(recorded(), "log", engines=4)
    assert fit.model.a == pytest.approx(0.01, rel=0.05)
    assert fit.model.b == pytest.approx(4 * 2e-4, rel=0.05)
    assert fit.model.update == pytest.approx(3e-5)
    assert fit.model.logprob == pytest.approx(1e-5)
    assert fit.model.other == pytest.approx(2, abs=0.5)
    assert fit.model.prompt_tokens == 100
    assert fit.held_back == 40
    assert fit.generation_error < 0.03 < fit.constant_error
    assert fit.step_error < 0.03


def test_a_fit_says_what_it_lacks():
    frame = recorded()
    with pytest.raises(SourceError, match=r"does not record timing_s/gen$"):
        fit_step_time(frame.drop(columns="timing_s/gen"), "log")
    with pytest.raises(SourceError, match="timings of 9 steps, at least 10 needed"):
        fit_step_time(frame.head(9), "log")
    capped = frame.assign(**{"response_length/max": 4000.0})
    fit = fit_step_time(capped, "log")
    assert fit.model.a == 0
    assert any("cannot be told" in note for note in fit.notes)


def test_a_model_is_saved_and_read(tmp_path: Path):
    model = StepTime(a=0.5, engines=3, origin="mine")
    model.save(tmp_path / "m.json")
    assert StepTime.load(tmp_path / "m.json") == model
    (tmp_path / "bad.json").write_text('{"a": 1, "speed": 2}')
    with pytest.raises(SourceError, match="unknown speed; legal: a, b"):
        StepTime.load(tmp_path / "bad.json")
    with pytest.raises(SourceError, match="engines=0: must be a number of at least 1"):
        StepTime(engines=0)
    assert "set by hand: slots=7" in model.adjusted(slots=7, engines=None).origin
