"""Rewards for tests: one that tells nothing apart, and one that a model of any skill meets half the time."""

from __future__ import annotations


def constant(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    return 0.5


def parity(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> float:
    return float(len(solution_str.split()) % 2)
