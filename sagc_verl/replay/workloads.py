"""Where lengths come from, step by step: the interface, tables, mixtures, and one workload after another.

A draw depends on (seed, step, refill) alone, so that every policy meets the same prompts at the same step and a replay
is the same to the bit whenever it is repeated. Prompts come as a data loader gives them: all once, in a shuffled order,
then anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sagc_verl.replay.errors import SourceError
from sagc_verl.replay.lengths import Draw, LengthTable, join

REFILL_STRIDE = 100_003
"""Refills of a step take the prompts of a step that far ahead."""


class Workload(Protocol):
    """A policy being trained, as far as lengths tell."""

    name: str
    unit: str
    """tokens, characters or seconds."""
    prompts_per_step: int
    """What it is replayed with unless the user says otherwise."""
    recorded: int | None
    """The largest n drawn from samples on record at every step; None: from a stated law at any n."""
    steps_on_record: int | None
    """Steps after which it repeats itself; None: it does not."""
    played_n: int | None
    """The largest group size that was really played, where that is known."""
    has_scores: bool
    notes: list[str]
    """What the user should know about the lengths, one line each."""

    def draw(self, step: int, prompts: int, n: int, seed: int, refill: int = 0) -> Draw:
        """Groups of n for ``prompts`` prompts of a step counted from 1."""
        ...

    def breaks(self, steps: int) -> list[int]:
        """First steps (from 1) of spells within which the workload stays about the same, for the oracle's true risk."""
        ...


def generator(seed: int, *parts: int) -> np.random.Generator:
    """A generator that depends on its arguments only."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *parts])))


def even_breaks(steps: int, spells: int) -> list[int]:
    """First steps of about equally long spells."""
    return sorted({1 + i * steps // spells for i in range(spells)})


class Epochs:
    """Shuffled passes over prompts, by position."""

    KEPT = 4

    def __init__(self, num_prompts: int):
        self.num_prompts = num_prompts
        self._orders: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()

    def take(self, start: int, count: int, seed: int) -> np.ndarray:
        """Rows int64 (count,) of the prompts from position ``start`` on."""
        parts = []
        while count > 0:
            epoch, at = divmod(start, self.num_prompts)
            part = self._order(seed, epoch)[at : at + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _order(self, seed: int, epoch: int) -> np.ndarray:
        key = (seed, epoch)
        if key not in self._orders:
            self._orders[key] = generator(seed, epoch, 1).permutation(self.num_prompts)
            if len(self._orders) > self.KEPT:
                self._orders.popitem(last=False)
        return self._orders[key]


class TableWorkload:
    """A table of lengths per prompt, the same at every step."""

    played_n: int | None = None
    steps_on_record: int | None = None

    def __init__(self, name: str, table: LengthTable, unit: str = "tokens", notes: Sequence[str] = ()):
        self.name = name
        self.unit = unit
        self.table = table
        self.prompts_per_step = min(64, table.num_prompts)
        self.recorded: int | None = table.recorded
        self.has_scores = table.has_scores
        self.notes = list(notes)
        self._epochs = Epochs(table.num_prompts)

    def draw(self, step: int, prompts: int, n: int, seed: int, refill: int = 0) -> Draw:
        rows = self._epochs.take((step - 1 + refill * REFILL_STRIDE) * prompts, prompts, seed)
        return self.table.draw(rows, n, generator(seed, step, refill, 2))

    def breaks(self, steps: int) -> list[int]:
        return [1]


def _shared(workloads: Sequence[Workload]) -> tuple[str, int | None]:
    """The common unit and the largest n that all have on record. Raises SourceError for mixed units."""
    units = {workload.unit for workload in workloads}
    if len(units) > 1:
        named = ", ".join(f"{workload.name} in {workload.unit}" for workload in workloads)
        raise SourceError(f"mixed units: {named}; lengths of one replay must share a unit (--unit)")
    known = [workload.recorded for workload in workloads if workload.recorded is not None]
    return units.pop(), min(known) if known else None


class Mixture:
    """Several workloads in every batch, in equal parts; prompts know their part as their data source."""

    played_n: int | None = None
    steps_on_record: int | None = None

    def __init__(self, parts: Sequence[Workload], labelled: bool = True):
        self.parts = list(parts)
        self.name = " + ".join(part.name for part in parts)
        self.unit, self.recorded = _shared(parts)
        self.prompts_per_step = max(part.prompts_per_step for part in parts)
        self.has_scores = all(part.has_scores for part in parts)
        self.notes = [note for part in parts for note in part.notes]
        self.labelled = labelled

    def draw(self, step: int, prompts: int, n: int, seed: int, refill: int = 0) -> Draw:
        draws = []
        for i, part in enumerate(self.parts):
            share = (prompts * (i + 1)) // len(self.parts) - (prompts * i) // len(self.parts)
            if share:
                draws.append(_marked(part.draw(step, share, n, seed + 7919 * i, refill), part.name, self.labelled))
        return join(draws)

    def breaks(self, steps: int) -> list[int]:
        return sorted({step for part in self.parts for step in part.breaks(steps)})


def _marked(draw: Draw, name: str, labelled: bool) -> Draw:
    """A part's draw with keys of its own and, if ``labelled``, the part as data source."""
    keys = np.array([None if key is None else f"{name}/{key}" for key in draw.keys], dtype=object)
    sources = np.full(len(keys), name if labelled else None, dtype=object)
    return Draw(draw.lengths, draw.truncated, draw.scores, keys, sources, draw.cap, draw.modelled)


class Succession:
    """One workload, then another: prompts come from the second with a share that rises from 0 at step ``at`` to 1 at
    ``at + ramp`` (at once for ramp 0). Keys are kept, so the same prompt in both is one prompt."""

    played_n: int | None = None
    steps_on_record: int | None = None

    def __init__(self, first: Workload, second: Workload, at: int, ramp: int = 0):
        if at < 1 or ramp < 0:
            raise SourceError(
                f"the change must begin at step 1 or later and take no negative time, got {at} and {ramp}"
            )
        self.first, self.second, self.at, self.ramp = first, second, at, ramp
        self.name = f"{first.name} -> {second.name}"
        self.unit, self.recorded = _shared((first, second))
        self.prompts_per_step = min(first.prompts_per_step, second.prompts_per_step)
        self.has_scores = first.has_scores and second.has_scores
        self.notes = [*first.notes, *second.notes]

    def draw(self, step: int, prompts: int, n: int, seed: int, refill: int = 0) -> Draw:
        share = float(np.clip((step - self.at) / self.ramp, 0, 1)) if self.ramp else float(step >= self.at)
        later = round(share * prompts)
        draws = []
        if later < prompts:
            draws.append(self.first.draw(step, prompts, n, seed, refill))
        if later:
            draws.append(self.second.draw(step, prompts, n, seed, refill))
        if len(draws) == 1:
            return draws[0]
        second = generator(seed, step, refill, 3).permutation(prompts) < later
        return join([draws[0].take(np.flatnonzero(~second)), draws[1].take(np.flatnonzero(second))])

    def breaks(self, steps: int) -> list[int]:
        during = [self.at + i * self.ramp // 8 for i in range(8)] if self.ramp else []
        every = {1, self.at + self.ramp, *during, *self.first.breaks(steps), *self.second.breaks(steps)}
        return sorted(step for step in every if step <= steps)
