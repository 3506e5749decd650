"""Rewards for tests: one that tells nothing apart."""

from __future__ import annotations


def constant(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    return 0.5
