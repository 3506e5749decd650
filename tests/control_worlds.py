"""Made-up workloads for the controller's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sagc_verl.control import Controller, GroupBatch, StepReport


@dataclass
class World:
    """Prompts with log-normal medians; each rollout is ``tail`` times longer with probability ``hazard``.

    With the default spreads and a threshold of 2.5 hardly any other rollout exceeds, so that a group of n straggles
    with probability close to 1 - (1 - hazard) ** n.
    """

    groups: int = 64
    hazard: float = 0.03
    between: float = 0.3
    within: float = 0.2
    tail: float = 8.0
    source: str | None = "math"
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def batch(self, n: int) -> GroupBatch:
        medians = np.exp(self.rng.normal(6.0, self.between, (self.groups, 1)))
        lengths = medians * np.exp(self.rng.normal(0.0, self.within, (self.groups, n)))
        lengths *= np.where(self.rng.random((self.groups, n)) < self.hazard, self.tail, 1.0)
        return batch_of(lengths, [self.source] * self.groups)

    def risk(self, n: int) -> float:
        return 1 - (1 - self.hazard) ** n


def batch_of(
    lengths: np.ndarray,
    sources: Sequence[str | None] | None = None,
    prompts: Sequence[str | None] | None = None,
    truncated: np.ndarray | None = None,
    cap: float | None = None,
) -> GroupBatch:
    """A batch from lengths (G, n), with one source and prompt per group."""
    groups, n = lengths.shape

    def rows(values: Sequence[str | None] | None) -> list[str | None] | None:
        return None if values is None else [value for value in values for _ in range(n)]

    return GroupBatch.from_rows(
        np.repeat(np.arange(groups), n),
        lengths.ravel(),
        truncated=None if truncated is None else truncated.ravel(),
        prompts=rows(prompts),
        sources=rows(sources),
        cap=cap,
    )


def play(controller: Controller, batch: Callable[[int], GroupBatch | None], steps: int) -> list[StepReport]:
    return [controller.observe(batch(controller.size)) for _ in range(steps)]
