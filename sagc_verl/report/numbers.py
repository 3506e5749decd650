"""Numbers as readers see them."""

from __future__ import annotations

import math

from sagc_verl.report.statistics import Estimate

UNKNOWN = "-"


def plain(value: float | int | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, thousands separated; "-" where unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - magnitude)
    return f"{value:,.{decimals}f}"


def count(value: float | int | None) -> str:
    """A whole number, thousands separated."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in per cent with one decimal."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{100 * value:.1f}%"


def seconds(value: float | None) -> str:
    """Seconds in seconds, from an hour on with hours and minutes beside them."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value < 100:
        return f"{value:.1f}"
    text = f"{value:,.0f}"
    if value >= 3600:
        hours, minutes = divmod(round(value / 60), 60)
        text += f" ({hours}h{minutes:02d})"
    return text


def with_interval(estimate: Estimate, digits: int = 3) -> str:
    """The number and its interval, e.g. "0.21 [0.18, 0.24]"."""
    if not estimate.has_interval:
        return plain(estimate.value, digits)
    return f"{plain(estimate.value, digits)} [{plain(estimate.low, digits)}, {plain(estimate.high, digits)}]"
