"""The reward function of an evaluation: any data source, and its name noted beside the score.

veRL's dump of a validation holds the prompt, the answer and what the reward function returns, but not the data source;
score.py needs it to report one line per benchmark.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

_SPEC = importlib.util.spec_from_file_location(
    "reasoning_gym_reward", Path(__file__).resolve().parent.parent / "data" / "reasoning_gym_reward.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_REWARD = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_REWARD)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """veRL's own scorer for the data source, or the task's for reasoning-gym.

    Returns:
        score and acc (float, acc 1.0 for a right answer), pred (str), benchmark (the data source, str).
    """
    result = _REWARD.compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs)
    return {
        "score": float(result["score"]),
        "acc": float(result["acc"]),
        "pred": str(result.get("pred", "")),
        "benchmark": data_source,
    }
