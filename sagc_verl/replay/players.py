"""Who chooses the size, and how the rollouts of a step are collected.

Every player observes through a real ``Controller``.

    sagc            the controller as configured
    static n        policy=static
    oracle          rule=feasible told the true risk, no warm-up, free to move at every step: the rest is what learning
                    costs
    n + dynamic     dynamic sampling (DAPO): groups whose scores are all equal are thrown away, the batch is refilled
    first k of n    over-sampling: n rollouts are started, a group is complete with its k first finishers, the others
                    are stopped; it trains on short answers, so its length bias is shown
    longest first   the rollouts of static n, submitted by predicted length; differs only where rollouts wait for slots
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from sagc_verl.control import Controller, GroupBatch, SagcConfig
from sagc_verl.replay.lengths import Draw, as_batch, join
from sagc_verl.replay.steptime import StepTime
from sagc_verl.replay.truth import KnownRisk
from sagc_verl.replay.workloads import Workload


@dataclass(frozen=True)
class Collected:
    """What a step brought in and what it cost."""

    batch: GroupBatch
    """What the controller observes."""
    made: int
    """Rollouts generated, thrown away ones included."""
    tokens: float
    """Generated, in the workload's unit."""
    generation_s: float
    trained: int
    """Rollouts trained on."""
    trained_tokens: float
    modelled: int
    silent: float
    """Share of generated groups whose scores are all equal; NaN without scores."""
    bias: float
    """Mean length of what is kept over mean length of what was started, were it finished."""
    refills: int
    gave_up: bool


class Collector(Protocol):
    """Makes the rollouts of one step."""

    def collect(self, workload: Workload, step: int, prompts: int, n: int, seed: int, time: StepTime) -> Collected: ...


class Plain:
    """All rollouts of all prompts."""

    def collect(self, workload: Workload, step: int, prompts: int, n: int, seed: int, time: StepTime) -> Collected:
        draw = workload.draw(step, prompts, n, seed)
        return self._finish(draw, time, self._order(draw))

    def _order(self, draw: Draw) -> np.ndarray | None:
        return None

    def _finish(self, draw: Draw, time: StepTime, order: np.ndarray | None) -> Collected:
        flat = draw.lengths.reshape(-1)
        tokens = float(flat.sum())
        return Collected(
            batch=draw.batch(),
            made=flat.size,
            tokens=tokens,
            generation_s=time.generation(flat, order),
            trained=flat.size,
            trained_tokens=tokens,
            modelled=draw.modelled,
            silent=silent_share(draw),
            bias=1.0,
            refills=0,
            gave_up=False,
        )


class LongestFirst(Plain):
    """Prompts by predicted length: the mean of what they were seen to need, or of all prompts where they are new."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}
        self._overall = 0.0
        self._seen = 0

    def _order(self, draw: Draw) -> np.ndarray:
        predicted = np.array([self._mean.get(key, self._overall) for key in draw.keys])
        order = np.argsort(-np.repeat(predicted, draw.lengths.shape[1]), kind="stable")
        means = draw.lengths.mean(axis=1)
        self._seen += 1
        self._overall += (float(means.mean()) - self._overall) / self._seen
        for key, mean in zip(draw.keys.tolist(), means.tolist(), strict=True):
            if key is not None:
                self._mean[key] = (self._mean.get(key, mean) + mean) / 2
        return order


class DynamicSampling:
    """Groups with equal scores are replaced by fresh ones, round by round."""

    def __init__(self, max_refills: int):
        self.max_refills = max_refills

    def collect(self, workload: Workload, step: int, prompts: int, n: int, seed: int, time: StepTime) -> Collected:
        draws: list[Draw] = []
        kept_tokens = seconds = 0.0
        kept = 0
        while kept < prompts and len(draws) <= self.max_refills:
            draw = workload.draw(step, prompts, n, seed, refill=len(draws))
            draws.append(draw)
            seconds += time.generation(draw.lengths.reshape(-1))
            mixed = np.flatnonzero(~silent(draw))[: prompts - kept]
            kept += len(mixed)
            kept_tokens += float(draw.lengths[mixed].sum())
        everything = join(draws)
        return Collected(
            batch=everything.batch(),
            made=everything.lengths.size,
            tokens=float(everything.lengths.sum()),
            generation_s=seconds,
            trained=kept * n,
            trained_tokens=kept_tokens,
            modelled=everything.modelled,
            silent=silent_share(everything),
            bias=1.0,
            refills=len(draws) - 1,
            gave_up=kept < prompts,
        )


class FirstFinishers:
    """Of each group the ``keep`` shortest; the others are stopped when those are there."""

    def __init__(self, keep: int):
        self.keep = keep

    def collect(self, workload: Workload, step: int, prompts: int, n: int, seed: int, time: StepTime) -> Collected:
        draw = workload.draw(step, prompts, n, seed)
        keep = min(self.keep, n)
        order = np.argsort(draw.lengths, axis=1, kind="stable")[:, :keep]
        kept = np.take_along_axis(draw.lengths, order, axis=1)
        flags = np.take_along_axis(draw.truncated, order, axis=1)
        spent = np.minimum(draw.lengths, kept[:, -1:])
        scores = None if draw.scores is None else np.take_along_axis(draw.scores, order, axis=1)
        return Collected(
            batch=as_batch(kept, draw, flags),
            made=draw.lengths.size,
            tokens=float(spent.sum()),
            generation_s=time.generation(spent.reshape(-1)),
            trained=kept.size,
            trained_tokens=float(kept.sum()),
            modelled=draw.modelled,
            silent=silent_share(replace(draw, scores=scores)),
            bias=float(kept.mean() / draw.lengths.mean()),
            refills=0,
            gave_up=False,
        )


def silent(draw: Draw) -> np.ndarray:
    """bool (P,): all scores of the group are equal."""
    assert draw.scores is not None, "scores are needed"
    return (draw.scores == draw.scores[:, :1]).all(axis=1)


def silent_share(draw: Draw) -> float:
    return float("nan") if draw.scores is None else float(silent(draw).mean())


@dataclass
class Player:
    """One line of a comparison."""

    name: str
    kind: str
    """sagc, static, oracle, dynamic, first or order."""
    controller: Controller
    collector: Collector


def sagc_player(config: SagcConfig, sizes: Sequence[int], start: int | None = None, name: str = "sagc") -> Player:
    return Player(name, "sagc", Controller(config, sizes, start), Plain())


def static_player(config: SagcConfig, n: int) -> Player:
    return Player(f"static {n}", "static", _static(config, n), Plain())


def oracle_player(
    config: SagcConfig, sizes: Sequence[int], start: int | None, first_steps: np.ndarray, risk: np.ndarray
) -> Player:
    """risk float64 (K, S): the true risk of ``sizes`` from each of ``first_steps`` on (truth.py)."""
    told = replace(config, policy="sagc", rule="feasible", gain=None, queue_cap=None, warmup=0, dwell=1, schedule=None)
    controller = Controller(told, sizes, start)
    controller.risk = KnownRisk(first_steps, sizes, risk)
    return Player("oracle", "oracle", controller, Plain())


def dynamic_player(config: SagcConfig, n: int) -> Player:
    return Player(f"static {n} + dynamic", "dynamic", _static(config, n), DynamicSampling(config.max_refills))


def dynamic_sagc_player(config: SagcConfig, sizes: Sequence[int], start: int | None) -> Player:
    return Player("sagc + dynamic", "dynamic", Controller(config, sizes, start), DynamicSampling(config.max_refills))


def first_finishers_player(config: SagcConfig, n: int, keep: int) -> Player:
    return Player(f"first {keep} of {n}", "first", _static(config, n), FirstFinishers(keep))


def longest_first_player(config: SagcConfig, n: int) -> Player:
    return Player(f"static {n}, longest first", "order", _static(config, n), LongestFirst())


def _static(config: SagcConfig, n: int) -> Controller:
    return Controller(replace(config, policy="static", schedule=None, sizes=None, start=None), [n])
