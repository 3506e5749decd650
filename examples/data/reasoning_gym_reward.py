"""Reward for reasoning-gym tasks, for veRL's custom reward function:

    reward.custom_reward_function.path=examples/data/reasoning_gym_reward.py

The answer is what stands between the last <answer> and </answer>; the task's own scorer in reasoning-gym judges it.
Rows of any other data source go to veRL's own scorers, so files may be mixed.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

PREFIX = "reasoning_gym/"  # data_source is PREFIX + the task's name
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """Scores one answer.

    Returns:
        score: the task's own score, 0 to 1, partial credit included; acc: 1.0 where the score is full, else 0.0;
        pred: the answer found, "" for none. Without an answer the score is 0.
    """
    if not data_source.startswith(PREFIX):
        return _verl_score(data_source, solution_str, ground_truth, extra_info, **kwargs)
    answer = extract_answer(solution_str)
    score = 0.0
    if answer is not None:
        entry = json.loads((extra_info or {}).get("info") or "{}")
        entry.setdefault("answer", ground_truth)
        try:
            score = float(_scorer(data_source.removeprefix(PREFIX))(answer, entry))
        except Exception:  # a scorer that trips over a malformed answer has not been given a right one
            score = 0.0
    return {"score": score, "acc": float(score >= 1.0), "pred": answer or ""}


def extract_answer(text: str) -> str | None:
    """What stands between the last <answer> and </answer>, stripped; None where there is no such pair."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


@functools.cache
def _scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    return load_reasoning_gym().get_score_answer_fn(task)


def load_reasoning_gym() -> Any:
    """The package, without the warnings about other people's syntax that its imports print."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym
    return reasoning_gym


def _verl_score(*arguments: Any, **kwargs: Any) -> dict[str, Any]:
    from verl.utils.reward_score import default_compute_score

    result = default_compute_score(*arguments, **kwargs)
    if isinstance(result, dict):
        return result
    return {"score": float(result), "acc": float(result), "pred": ""}
