"""What a step costs, in seconds.

    generation    max over engines e of  ( overhead + a * I_e + b * tokens_e )
        I_e       decode iterations of the engine: its longest rollout, when all run at once; with more rollouts than
                  slots, the makespan of continuous batching (a freed slot takes the next rollout in order)
        a         seconds of an iteration however few rollouts run
        b         seconds per token on one engine
    log-prob      logprob * trained tokens      (prompt tokens included)
    update        update * trained tokens       (prompt tokens included)
    sync, other   constants (weight sync; reward, advantages and the rest)

Rollouts go to the engines in turn. Lengths are in the workload's unit; with seconds as unit a = 1 and b = 0.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sagc_verl.replay.errors import SourceError

HEAP_BELOW = 48
"""With fewer slots than this a heap is faster than whole-array rounds."""


@dataclass(frozen=True)
class StepTime:
    """The constants of the module's box. The defaults are ours (an 8B model on eight engines, about)."""

    a: float = 0.012
    b: float = 4e-5
    overhead: float = 0.0
    logprob: float = 3e-6
    update: float = 9e-6
    sync: float = 4.0
    other: float = 2.0
    prompt_tokens: float = 0.0
    """Mean prompt length, counted for log-prob and update."""
    engines: int = 8
    slots: int = 1024
    """Rollouts that one engine runs at once; 0: no limit."""
    origin: str = "defaults (ours, not fitted)"

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "origin":
                continue
            low = 1 if item.name == "engines" else 0
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not math.isfinite(value)
                or value < low
            ):
                raise SourceError(f"step time: {item.name}={value}: must be a number of at least {low}")

    def generation(self, lengths: np.ndarray, order: np.ndarray | None = None) -> float:
        """Seconds to generate rollouts of these lengths, float64 (R,), in this order or in ``order`` (indices)."""
        if order is not None:
            lengths = lengths[order]
        per_engine = _deal(lengths, self.engines)
        tokens = per_engine.sum(axis=0)
        rows = len(per_engine)
        if self.slots and rows > self.slots:
            iterations = np.array([makespan(per_engine[:, e], self.slots) for e in range(per_engine.shape[1])])
        else:
            iterations = per_engine.max(axis=0)
        return self.overhead + float((self.a * iterations + self.b * tokens).max())

    def rest(self, tokens: float, rollouts: int) -> float:
        """Seconds of a step beside generation, for what it trains on."""
        return (self.logprob + self.update) * (tokens + self.prompt_tokens * rollouts) + self.sync + self.other

    def queues(self, rollouts: int) -> bool:
        """Some of so many rollouts must wait for a slot."""
        return bool(self.slots) and math.ceil(rollouts / self.engines) > self.slots

    def save(self, path: str | Path) -> None:
        from sagc_verl.report.output import binary_output

        with binary_output(path) as file:
            file.write(json.dumps(asdict(self), indent=2).encode() + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> StepTime:
        """Raises SourceError for a file that is not a saved model."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise SourceError(f"{path}: not a step-time model: {error}") from None
        return cls.from_mapping(values, str(path))

    @classmethod
    def from_mapping(cls, values: Any, name: str) -> StepTime:
        legal = [item.name for item in fields(cls)]
        if not isinstance(values, Mapping) or (unknown := [key for key in values if key not in legal]):
            what = f"unknown {', '.join(map(str, unknown))}" if isinstance(values, Mapping) else "not a mapping"
            raise SourceError(f"{name}: not a step-time model: {what}; legal: {', '.join(legal)}")
        return cls(**{"origin": name, **values})

    def adjusted(self, **changes: float | int | None) -> StepTime:
        """With some constants set by hand; None leaves one as it is."""
        given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
        if not given:
            return self
        said = ", ".join(f"{key}={value:g}" for key, value in given.items())
        return replace(self, **given, origin=f"{self.origin}; set by hand: {said}")


def seconds_model() -> StepTime:
    """For lengths that are seconds already: generation lasts as long as its longest rollout."""
    return StepTime(
        a=1.0, b=0.0, logprob=0.0, update=0.0, sync=0.0, other=0.0, origin="lengths are seconds: only generation"
    )


def _deal(lengths: np.ndarray, engines: int) -> np.ndarray:
    """(rows, engines): rollouts dealt out in turn, zeros at the end."""
    rows = -(-len(lengths) // engines)
    if rows * engines == len(lengths):
        return lengths.reshape(rows, engines)
    padded = np.zeros(rows * engines)
    padded[: len(lengths)] = lengths
    return padded.reshape(rows, engines)


def makespan(lengths: np.ndarray, slots: int) -> float:
    """When the last of these jobs ends, each started in order as soon as one of ``slots`` is free."""
    if len(lengths) <= slots:
        return float(lengths.max(initial=0.0))
    if slots < HEAP_BELOW:
        ends = sorted(lengths[:slots].tolist())
        for length in lengths[slots:].tolist():
            heapq.heapreplace(ends, ends[0] + length)
        return float(max(ends))
    # Whole rounds: the next c jobs start at the c earliest ends, as long as none of them ends before the c-th of those.
    free = np.sort(lengths[:slots])
    at = slots
    while at < len(lengths):
        taken = min(slots, len(lengths) - at)
        ends = free[:taken] + lengths[at : at + taken]
        too_early = np.flatnonzero(np.minimum.accumulate(ends[:-1]) < free[1:taken])
        if too_early.size:
            taken = int(too_early[0]) + 1
        free = np.sort(np.concatenate((free[taken:], ends[:taken])), kind="stable")
        at += taken
    return float(free[-1])
