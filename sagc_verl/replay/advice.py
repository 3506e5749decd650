"""What a replay supports, in plain sentences, and when SAGC is not worth turning on."""

from __future__ import annotations

import math

import numpy as np

from sagc_verl.control import CONSTRAINTS, UTILITIES
from sagc_verl.replay.comparison import Comparison
from sagc_verl.replay.whatif import Outcome

LITTLE = 0.02
"""Gains below this share are called none."""
TOLERANCE = 0.01
"""A cost this far above its budget still counts as kept, or further where so few groups cannot tell."""


def worth(outcome: Outcome, n_max: int, utility: str = "snr", rho: float = 4.0) -> float:
    """Mean worth of its groups (``control.UTILITIES``) per second of training."""
    sizes = np.array(list(outcome.sizes), dtype=np.float64)
    counts = np.array(list(outcome.sizes.values()), dtype=np.float64)
    value = float(counts @ UTILITIES[utility](sizes, n_max, rho) / counts.sum())
    return value / outcome.seconds_per_step if outcome.seconds_per_step > 0 else 0.0


def keeps_budget(outcome: Outcome) -> bool:
    """The cost is within the budget, up to TOLERANCE or two standard errors of its groups."""
    chance = 2 * math.sqrt(outcome.budget * (1 - outcome.budget) / max(1, outcome.groups))
    return outcome.cost <= outcome.budget + max(TOLERANCE, chance)


def verdict(comparison: Comparison) -> list[str]:
    """A few lines: did it bind, was the budget kept, what was gained, does a static size do as well, what hides."""
    sagc, largest, sizes = comparison.sagc, comparison.largest, comparison.plan.sizes
    config = comparison.plan.config
    label = CONSTRAINTS[config.constraint].label
    lines: list[str] = []
    saved = 1 - sagc.seconds_per_step / largest.seconds_per_step if largest.seconds_per_step > 0 else 0.0
    lost = 1 - sagc.rollouts_per_step / largest.rollouts_per_step
    at_largest = sagc.sizes.get(sizes[-1], 0) / sagc.steps
    if at_largest > 0.98:
        lines.append(
            f"Not worth turning on with these settings: static {sizes[-1]} has a {label} of {largest.cost:.3f}, "
            f"within the budget of {sagc.budget:g}, so SAGC keeps the largest size and changes nothing."
        )
    elif sagc.infeasible > sagc.steps / 2:
        lines.append(
            f"The budget cannot be met: even n={sizes[0]} has a {label} of {_smallest_cost(comparison):.3f} (budget "
            f"{sagc.budget:g}). SAGC plays the smallest size; raise the budget"
            f"{' or the threshold' if config.constraint == 'straggler' else ''}, or allow smaller sizes."
        )
    else:
        within = ", as far as so few groups can tell" if sagc.cost > sagc.budget + TOLERANCE else ""
        kept = f"is kept{within}" if keeps_budget(sagc) else "is NOT kept"
        lines.append(
            f"The budget {kept}: {label} {sagc.cost:.3f} (budget {sagc.budget:g}, static {sizes[-1]}: "
            f"{largest.cost:.3f}). Steps are {saved:.1%} shorter with {lost:.1%} fewer rollouts."
        )
        lines += _against_static(comparison, saved)
    if config.constraint == "straggler" and (blind := sagc.mean("blind")) > 0.2:
        lines.append(f"In {blind:.0%} of groups the cap hides any straggler: the rate is a lower bound.")
    modelled = max(comparison.outcomes, key=lambda outcome: outcome.modelled_share)
    if modelled.modelled and comparison.workload.recorded:
        lines.append(
            f"Groups of up to {comparison.workload.recorded} were drawn from samples on record; larger ones partly "
            f"from a fitted "
            f"law ({modelled.name}: {modelled.modelled_share:.0%} of rollouts)."
        )
    return lines


def _smallest_cost(comparison: Comparison) -> float:
    return comparison.of(f"static {comparison.plan.sizes[0]}").cost


def _against_static(comparison: Comparison, saved: float) -> list[str]:
    sagc, label = comparison.sagc, CONSTRAINTS[comparison.plan.config.constraint].label
    near = min(comparison.statics(), key=lambda outcome: abs(outcome.mean_n - sagc.mean_n))
    lines = []
    if saved < LITTLE:
        lines.append(f"Not worth it for speed: less than {LITTLE:.0%} of the step time is saved.")
    faster = sagc.seconds_per_step / near.seconds_per_step - 1
    if abs(faster) < LITTLE and abs(near.cost - sagc.cost) < 2 * TOLERANCE:
        lines.append(
            f"{near.name} would do the same here: {near.seconds_per_step:.4g} s a step at a {label} of "
            f"{near.cost:.3f}. SAGC finds that size by itself and follows when lengths change; on lengths that stay as "
            "they are it is not faster."
        )
    else:
        lines.append(
            f"Nearest static size: {near.name} takes {near.seconds_per_step:.4g} s a step at a {label} of "
            f"{near.cost:.3f} (SAGC {sagc.seconds_per_step:.4g} s, {sagc.cost:.3f})."
        )
    return lines
