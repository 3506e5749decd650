"""What a group of n rollouts is worth, U(n) in [0, 1] and rising in n; used by ``rule=drift_penalty``.

    log       log n / log n_max              each doubling is worth the same
    snr       (n - 1) / (n - 1 + rho)        signal to noise of the group's mean reward; saturates past rho
    mixed     (n - 1) / (n + 1)              expected share of groups with both outcomes, solve rates spread evenly
    baseline  1 - 1 / n                      scale of an advantage centred by its own group's mean

To add one: write the function here and name it in ``UTILITIES``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Utility = Callable[[np.ndarray, int, float], np.ndarray]
"""(sizes float64 (S,), largest size, rho) -> float64 (S,), each in [0, 1]."""


def log_utility(n: np.ndarray, n_max: int, rho: float) -> np.ndarray:
    return np.log(n) / np.log(n_max)


def snr_utility(n: np.ndarray, n_max: int, rho: float) -> np.ndarray:
    return (n - 1) / (n - 1 + rho)


def mixed_utility(n: np.ndarray, n_max: int, rho: float) -> np.ndarray:
    # E[1 - p^n - (1-p)^n] for p uniform on (0, 1) is 1 - 2/(n+1)
    return (n - 1) / (n + 1)


def baseline_utility(n: np.ndarray, n_max: int, rho: float) -> np.ndarray:
    return 1 - 1 / n


UTILITIES: dict[str, Utility] = {
    "log": log_utility,
    "snr": snr_utility,
    "mixed": mixed_utility,
    "baseline": baseline_utility,
}
