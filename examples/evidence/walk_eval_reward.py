"""The quickstart's reward as an evaluation wants it: with `acc`, and the benchmark's name (examples/eval/score.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_SPEC = importlib.util.spec_from_file_location(
    "walk_reward", Path(__file__).resolve().parent.parent / "quickstart" / "reward.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_REWARD = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_REWARD)


def compute_score(data_source: str, solution_str: str, ground_truth: str, **kwargs: Any) -> dict[str, Any]:
    """1 for a walk from 0 to its goal, else 0."""
    score = _REWARD.compute_score(data_source, solution_str, ground_truth)
    return {"score": score, "acc": score, "pred": "", "benchmark": data_source}
