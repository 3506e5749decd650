"""Workloads that should upset the controller, about 10^5 simulated steps in all: what it then does is stated here."""

from __future__ import annotations

import gc
import itertools
import json
import math
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sagc_verl.control import CONSTRAINTS, RULES, Controller, GroupBatch, StepReport, ladder, parse_config

SIZES = (3, 4, 6, 8, 11, 16)


def controller_of(sizes: Sequence[int] = SIZES, **settings: Any) -> Controller:
    return Controller(parse_config({"sizes": list(sizes), "constraint": "straggler", **settings}, max(sizes)), sizes)


@dataclass
class Workload:
    """Groups of log-normal lengths, drawn once for every size and dealt out again and again: fast enough for 10^5.

    A rollout is `tail` times as long with probability `hazard`: a group of n straggles with probability close to
    1 - (1 - hazard) ** n.
    """

    hazard: float
    groups: int = 16
    sizes: Sequence[int] = SIZES
    tail: float = 8.0
    within: float = 0.2
    drawn: int = 128
    seed: int = 0
    rng: np.random.Generator = field(init=False)
    deck: dict[int, list[GroupBatch]] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.deck = {n: [self._draw(n) for _ in range(self.drawn)] for n in self.sizes}

    def _draw(self, n: int) -> GroupBatch:
        lengths = np.exp(self.rng.normal(6.0, self.within, (self.groups, n)))
        lengths *= np.where(self.rng.random((self.groups, n)) < self.hazard, self.tail, 1.0)
        return batch_of(lengths)

    def __call__(self, n: int) -> GroupBatch:
        return self.deck[n][self.rng.integers(self.drawn)]


def batch_of(
    lengths: np.ndarray,
    truncated: bool = False,
    cap: float | None = None,
    prompts: Sequence[str] | None = None,
    source: str = "math",
) -> GroupBatch:
    """Groups of one size, lengths (G, n)."""
    groups, n = lengths.shape
    names = np.empty(groups, dtype=object)
    names[:] = prompts
    return GroupBatch(
        lengths=lengths.ravel(),
        offsets=np.arange(groups + 1) * n,
        truncated=np.full(groups * n, truncated),
        prompts=names,
        sources=np.full(groups, source, dtype=object),
        cap=cap,
    )


def play(controller: Controller, world: Callable[[int], GroupBatch], steps: int) -> list[StepReport]:
    """Play, and check what holds whatever the data."""
    reports = [controller.observe(world(controller.size)) for _ in range(steps)]
    assert {report.size for report in reports} <= set(controller.sizes)
    assert all(report.fault == "" for report in reports)
    assert all(math.isfinite(report.queue) and abs(report.queue) <= 30 for report in reports)
    assert all(np.diff(list(report.risk.values())).min(initial=0) >= -1e-12 for report in reports)
    last = reports[-1]
    debt = last.queue * controller.rule.unit + last.debt_forgiven
    assert last.cumulative_excess <= debt + 1e-6 * steps  # the bound of rules.py, for any data
    state = json.dumps(controller.state_dict(), allow_nan=False)
    assert json.loads(state) == controller.state_dict()
    return reports


def moves_of(reports: Sequence[StepReport]) -> list[int]:
    return [step for step, report in enumerate(reports) if report.next_size != report.size]


# ---- no size is right


@pytest.mark.parametrize("rule", list(RULES))
def test_a_budget_no_size_can_meet_keeps_the_smallest_says_so_and_remembers_a_bounded_debt(rule: str) -> None:
    controller = controller_of(rule=rule, budget=0.05)
    reports = play(controller, Workload(hazard=0.1), 5_000)
    settled = reports[300:]
    assert {report.size for report in settled} == {3}
    assert all(report.infeasible for report in settled)
    assert {report.reason for report in settled} == {"infeasible"}
    assert settled[-1].straggler_rate_mean == pytest.approx(1 - 0.9**3, abs=0.03)  # not kept, and not hidden
    assert settled[-1].debt_forgiven == pytest.approx(settled[-1].cumulative_excess, abs=5)
    # The spell ends: n comes back within hundreds of steps, however long it lasted.
    back = play(controller, Workload(hazard=0.0), 600)
    assert back[-1].size == 16
    assert not back[-1].infeasible


each_constraint = pytest.mark.parametrize("constraint", list(CONSTRAINTS))


@each_constraint
def test_everything_straggles_and_still_the_smallest_size_is_played(constraint: str) -> None:
    def halves(n: int) -> GroupBatch:
        return batch_of(np.tile([100.0] * (n - 1) + [10_000.0], (8, 1)))

    reports = play(controller_of(constraint=constraint), halves, 1_000)
    assert reports[-1].straggler_rate == 1.0
    assert reports[-1].infeasible
    assert {report.size for report in reports[100:]} == {3}
    assert all(0 <= risk <= 1 for risk in reports[-1].risk.values())


# ---- nothing straggles


@each_constraint
@pytest.mark.parametrize("count_truncated", [False, True])
def test_everything_truncated_is_blind_not_dangerous(count_truncated: bool, constraint: str) -> None:
    """All as long as the limit: none is longer than the others, so none straggles; blind_share says why."""
    controller = controller_of(count_truncated=count_truncated, constraint=constraint)
    reports = play(controller, lambda n: batch_of(np.full((8, n), 512.0), truncated=True, cap=512.0), 700)
    assert {report.size for report in reports} == {16}
    assert reports[-1].straggler_rate_mean == 0
    assert (reports[-1].blind_share, reports[-1].truncated_share) == (1.0, 1.0)


@each_constraint
def test_lengths_of_one_token(constraint: str) -> None:
    reports = play(controller_of(constraint=constraint), lambda n: batch_of(np.ones((8, n)), cap=512.0), 700)
    assert {report.size for report in reports} == {16}
    assert reports[-1].ratio_mean == 1.0
    assert reports[-1].straggler_rate_mean == 0


def test_a_threshold_nothing_reaches_keeps_the_largest_size() -> None:
    reports = play(controller_of(threshold=1e9), Workload(hazard=0.2), 4_000)
    assert {report.size for report in reports} == {16}
    assert {report.reason for report in reports[20:]} == {"hold"}
    assert not any(report.infeasible for report in reports)
    # A long quiet does not save up a licence to straggle later: the credit is capped.
    assert reports[-1].queue == -3


def test_after_a_long_quiet_a_shift_is_answered_within_the_dwell() -> None:
    controller = controller_of(dwell=10)
    play(controller, Workload(hazard=0.0), 4_000)
    reports = play(controller, Workload(hazard=0.15, seed=1), 400)
    assert reports[-1].size == 3
    assert next(step for step, report in enumerate(reports) if report.next_size < 16) <= 100
    assert len(moves_of(reports)) >= len(SIZES) - 1


# ---- odd shapes


def test_one_prompt_per_step_keeps_the_budget() -> None:
    """s_t is 0 or 1 then; the warm-up waits for 2 / budget groups, and the long run holds all the same."""
    reports = play(controller_of(), Workload(hazard=0.04, groups=1, drawn=2_000), 15_000)
    warm = [report.reason for report in reports].index("first_jump")
    assert warm + 1 >= 2 / 0.2
    assert {report.straggler_rate for report in reports} == {0.0, 1.0}
    assert reports[-1].straggler_rate_mean <= 0.2 + 0.01
    assert np.mean([report.size for report in reports]) > 4


def test_sizes_from_2_to_512() -> None:
    sizes = ladder(2, 512)
    controller = controller_of(sizes)
    reports = play(controller, Workload(hazard=0.004, groups=8, sizes=sizes, drawn=32), 4_000)
    assert reports[-1].straggler_rate_mean <= 0.2 + 0.01
    assert 16 <= np.mean([report.size for report in reports[500:]]) <= 128  # a risk of 0.2 lies at n = 56
    for step in moves_of(reports)[1:]:  # after the first jump to neighbours only
        here, there = (sizes.index(size) for size in (reports[step].size, reports[step].next_size))
        assert abs(here - there) == 1


def test_a_step_of_a_hundred_thousand_groups() -> None:
    rng = np.random.default_rng(0)
    controller = controller_of((4, 8), warmup=0)
    took = []
    for step in range(3):
        lengths = np.exp(rng.normal(6.0, 0.2, (100_000, controller.size)))
        batch = batch_of(lengths, prompts=[f"{step}-{group}" for group in range(100_000)])
        began = time.process_time()
        report = controller.observe(batch)
        took.append(time.process_time() - began)
        assert (report.groups, report.fault) == (100_000, "")
    assert min(took) < 3  # seconds; about 0.3 on an idle core
    assert len(json.dumps(controller.state_dict(), allow_nan=False)) < 8_000_000


# ---- a workload that changes faster than the group size may


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("period", [1, 7])
def test_regimes_that_alternate_faster_than_the_dwell(rule: str, period: int) -> None:
    """They cannot be followed. The size answers to their mix: few moves, never closer than `dwell`, the budget kept."""
    calm, wild = Workload(hazard=0.0), Workload(hazard=0.08, seed=1)
    clock = itertools.count()

    def world(n: int) -> GroupBatch:
        return (wild if (next(clock) // period) % 2 else calm)(n)

    reports = play(controller_of(rule=rule, dwell=10), world, 5_000)
    moves = moves_of(reports)
    assert min(np.diff(moves), default=10) >= 10
    assert reports[-1].straggler_rate_mean <= 0.2 + 0.02
    assert np.mean([report.size for report in reports]) > 4  # and not by hiding at the smallest size


@pytest.mark.parametrize("rule", list(RULES))
def test_a_workload_that_answers_every_move_against_us(rule: str) -> None:
    """Stragglers where the size did not fall, none where it did: the bound of `play` holds, nothing runs away."""
    calm, wild = Workload(hazard=0.0), Workload(hazard=0.3, seed=1)
    last = [16, 16]

    def world(n: int) -> GroupBatch:
        last.append(n)
        return (wild if n >= last[-2] and n > 4 else calm)(n)

    reports = play(controller_of(rule=rule, dwell=3), world, 4_000)
    assert min(np.diff(moves_of(reports))) >= 3
    assert reports[-1].straggler_rate_mean <= 0.2 + 0.02


# ---- weeks


def traced_growth(run: Callable[[int], None], settle: int, steps: int) -> tuple[int, int]:
    """Bytes held after `settle` steps, and how many more after `steps` further ones."""
    tracemalloc.start()
    try:
        held = []
        for count in (settle, steps):
            run(count)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        return held[0], held[1] - held[0]
    finally:
        tracemalloc.stop()


def test_state_and_memory_stay_flat_over_a_long_run() -> None:
    controller, world = controller_of(), Workload(hazard=0.03)
    play(controller, world, 1_000)
    early = len(json.dumps(controller.state_dict()))

    def run(steps: int) -> None:
        for _ in range(steps):
            controller.observe(world(controller.size))

    _, grown = traced_growth(run, 200, 400)
    assert grown < 50_000, f"{grown} bytes more after 400 steps"
    play(controller, world, 20_000)
    assert len(json.dumps(controller.state_dict())) < early * 1.1


def test_prompts_never_seen_again_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagc_verl.control.memory.MAX_PROMPTS", 2_000)
    rng = np.random.default_rng(0)
    controller = controller_of((4,), policy="static")
    clock = itertools.count()

    def run(steps: int) -> None:
        for step in itertools.islice(clock, steps):
            lengths = np.exp(rng.normal(6.0, 0.2, (100, 4)))
            prompts = [f"prompt {step}-{group} " + "x" * 200 for group in range(100)]
            controller.observe(batch_of(lengths, prompts=prompts))

    before, grown = traced_growth(run, 80, 120)
    assert grown < 0.1 * before, f"{before} bytes, then {grown} more"
    assert len(json.dumps(controller.state_dict())) < 250_000


def test_sources_that_never_end_are_told_apart_up_to_a_limit() -> None:
    controller = controller_of((4,), policy="static")
    for step in range(2_500):
        controller.observe(batch_of(np.full((1, 4), 10.0), source=f"source {step}"))
    assert len(json.dumps(controller.state_dict())) < 250_000


def test_a_run_resumed_every_hundred_steps_decides_as_one_that_never_stopped() -> None:
    world, again = Workload(hazard=0.03), Workload(hazard=0.03)
    whole, resumed = controller_of(), controller_of()
    for _ in range(20):
        one = [whole.observe(world(whole.size)).next_size for _ in range(100)]
        saved = json.loads(json.dumps(resumed.state_dict()))
        resumed = controller_of()
        assert resumed.load_state_dict(saved) == []
        assert [resumed.observe(again(resumed.size)).next_size for _ in range(100)] == one
    assert whole.state_dict() == resumed.state_dict()
