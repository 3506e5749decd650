"""Which group sizes a run may use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sagc_verl.control.config import ConfigError, SagcConfig

LADDER_STEP = 1.4
"""About what each default size is to the one below it."""


@dataclass(frozen=True)
class SizePlan:
    """What the controller may choose from."""

    sizes: tuple[int, ...]
    """Ascending, each at least 2."""
    start: int
    """The size of the first step; one of ``sizes``."""
    messages: list[str]
    """What the user should know: sizes left out, nothing to choose from."""


def ladder(n_min: int, n_max: int) -> tuple[int, ...]:
    """Sizes from n_min to n_max, each about 1.4 times the one below: 4 6 8 11 16, or 3 4 6 8, or 3 4 5.

    Raises:
        ValueError: not 2 <= n_min <= n_max.
    """
    if not 2 <= n_min <= n_max:
        raise ValueError(f"need 2 <= n_min <= n_max, got {n_min} and {n_max}")
    steps = max(1, round(math.log(n_max / n_min) / math.log(LADDER_STEP)))
    return tuple(sorted({round(n_min * (n_max / n_min) ** (i / steps)) for i in range(steps + 1)}))


def default_n_min(n_max: int) -> int:
    """max(3, n_max / 4), and never above n_max."""
    return min(n_max, max(3, math.floor(n_max / 4 + 0.5)))


def resolve_sizes(
    config: SagcConfig, rollout_n: int, allowed: Callable[[int], str | None] = lambda size: None
) -> SizePlan:
    """The sizes of a run.

    Sizes named by the user (``sizes``, ``start``, ``schedule``) are kept or refused; a default ladder leaves out what
    veRL cannot run. ``policy=static`` asks only that its one size can run: the others are there to report their risk.

    Args:
        config: from ``parse_config``.
        rollout_n: veRL's ``actor_rollout_ref.rollout.n``.
        allowed: None when veRL can run this size, else the reason why not.

    Raises:
        ConfigError: a size named by the user cannot be run, or none is left.
    """
    n_max = rollout_n if config.n_max is None else config.n_max
    n_min = default_n_min(n_max) if config.n_min is None else config.n_min
    messages: list[str] = []

    def require(key: str, value: object, size: int) -> None:
        reason = allowed(size)
        if reason is not None:
            raise ConfigError(
                f"sagc.{key}={value}: size {size} cannot be run: {reason}; legal: sizes that veRL can split"
            )

    if config.schedule is not None:
        named = set(config.schedule.values())
        for size in sorted(named):
            require("schedule", dict(config.schedule), size)
        first = min(config.schedule)
        start = config.schedule[first] if first <= 1 else (n_max if config.start is None else config.start)
        require("start", start, start)
        return SizePlan(tuple(sorted(named | {start} | set(config.sizes or ()))), start, messages)

    if config.sizes is not None:
        start = config.sizes[-1] if config.start is None else config.start
        for size in (start,) if config.policy == "static" else config.sizes:
            require("sizes", list(config.sizes), size)
        sizes = config.sizes
    else:
        left_out = {}
        for size in ladder(n_min, n_max):
            if (reason := allowed(size)) is not None:
                left_out[size] = reason
        kept = set(ladder(n_min, n_max)) - set(left_out)
        if left_out:
            reasons = "; ".join(f"{size} ({reason})" for size, reason in left_out.items())
            messages.append(f"sizes left out of the default list because veRL cannot run them: {reasons}")
        if config.policy == "static" or config.start is not None:
            start = n_max if config.start is None else config.start
            require("start", start, start)
            kept.add(start)
        elif not kept:
            raise ConfigError(
                f"sagc.n_max={n_max}: none of the default sizes {list(ladder(n_min, n_max))} can be run: "
                f"{left_out[n_max]}; legal: name sizes that veRL can split with sagc.sizes"
            )
        else:
            start = max(kept)
        sizes = tuple(sorted(kept))
    if len(sizes) == 1 and config.policy == "sagc":
        messages.append(f"only one size, {sizes[0]}, can be played: the group size will not move")
    return SizePlan(sizes, start, messages)
