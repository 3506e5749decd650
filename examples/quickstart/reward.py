"""Reward of the quickstart task: 1 for a walk from 0 to its goal, else 0 (veRL's custom reward function)."""

from __future__ import annotations

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float:
    """Score a walk written as positions, e.g. "1 2 1 2 3": each step goes one up or down, the last is the goal."""
    position = 0
    for word in solution_str.split():
        if not word.isdigit() or abs(int(word) - position) != 1:
            return 0.0
        position = int(word)
    return float(position == int(ground_truth))
