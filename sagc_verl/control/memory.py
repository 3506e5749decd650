"""What is remembered of each prompt between the steps in which it comes up: two numbers, of the prompts seen last."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

MAX_PROMPTS = 100_000
"""Prompts remembered; past that, those not seen for longest are forgotten."""
FORGOTTEN_AT_ONCE = 16
"""Then one part in this many is forgotten at once, so that it need not be done at every step."""


class PromptMemory:
    """Prompt key -> (log reference, its variance); see event.py for their law. None, an unknown prompt, is no key."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._slots: defaultdict[str | None, int] = defaultdict()  # in the order of the slots; 0 is for None
        self._slots.default_factory = self._slots.__len__
        self._entries = np.full((1, 2), math.nan)  # by slot; NaN: nothing remembered
        self._seen = np.zeros(1, np.int64)  # by slot; higher: seen later
        self._tick = 0
        self.slots([None])

    def slots(self, keys: Sequence[str | None]) -> np.ndarray:
        """Where prompts are kept, int64 (K,); valid until the next ``remember``."""
        found = np.fromiter(map(self._slots.__getitem__, keys), np.int64, len(keys))
        missing = len(self._slots) - len(self._seen)
        if missing > 0:
            more = missing + len(self._seen)  # at least twice the room, so that growing stays rare
            self._entries = np.vstack([self._entries, np.full((more, 2), math.nan)])
            self._seen = np.append(self._seen, np.zeros(more, np.int64))
        return found

    def recall(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log references and variances, float64 (K,) each; NaN where nothing is remembered."""
        entries = self._entries[slots]
        return entries[:, 0], entries[:, 1]

    def remember(self, slots: np.ndarray, log_references: np.ndarray, variances: np.ndarray) -> None:
        """Of a prompt that is there more than once, the last one counts."""
        self._entries[slots, 0], self._entries[slots, 1] = log_references, variances
        self._entries[0] = math.nan
        self._seen[slots] = self._tick + np.arange(len(slots))
        self._tick += len(slots)
        if len(self._slots) > MAX_PROMPTS:
            self._forget()

    def _forget(self) -> None:
        kept = list(self.state().items())[-(MAX_PROMPTS - MAX_PROMPTS // FORGOTTEN_AT_ONCE) :]
        self._clear()
        self._take(dict(kept))

    def _take(self, state: Mapping[str, Sequence[float]]) -> None:
        entries = np.array([(float(m), float(variance)) for m, variance in state.values()]).reshape(-1, 2)
        if not np.isfinite(entries).all() or (entries[:, 1] < 0).any():
            raise ValueError("what is remembered of a prompt must be a finite log reference and its variance")
        self.remember(self.slots([str(key) for key in state]), entries[:, 0], entries[:, 1])

    def state(self) -> dict[str, list[float]]:
        """Plain JSON types, the prompt seen last at the end."""
        keys, entries = list(self._slots), self._entries.tolist()
        by_age = np.argsort(self._seen[: len(keys)], kind="stable").tolist()
        remembered = [slot for slot in by_age if not math.isnan(entries[slot][0])]
        return {str(keys[slot]): entries[slot] for slot in remembered}

    @classmethod
    def from_state(cls, state: Mapping[str, Sequence[float]]) -> PromptMemory:
        """Raises ValueError, TypeError or AttributeError where the state is damaged."""
        memory = cls()
        memory._take(state)
        return memory
