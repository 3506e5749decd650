"""Replays and tunings in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagc_verl.control import CONSTRAINTS
from sagc_verl.replay.advice import verdict
from sagc_verl.replay.comparison import Comparison
from sagc_verl.replay.tune import YARDSTICK, Tuning
from sagc_verl.replay.whatif import Outcome
from sagc_verl.report.numbers import count, plain, share

if TYPE_CHECKING:
    from rich.console import Console

MOVES_SHOWN = 8


def size_path(outcome: Outcome) -> str:
    """The sizes played, e.g. "16 to step 5, 11 to step 40, 8 from then on"."""
    if not outcome.first_moves:
        return f"{next(iter(outcome.sizes))} throughout"
    shown = outcome.first_moves[:MOVES_SHOWN]
    parts = [f"{before} to step {step}" for step, before, _ in shown]
    if outcome.moves > len(shown):
        return ", ".join(parts) + f", ... ({outcome.moves} moves)"
    return ", ".join(parts) + f", {shown[-1][2]} from then on"


def drawn_how(comparison: Comparison) -> str:
    """How the groups were drawn."""
    recorded = comparison.workload.recorded
    if recorded is None:
        return "groups of any n from the stated law"
    if recorded < 2:
        return "all groups from a fitted law"
    return f"groups of up to {recorded} from samples on record (no law assumed), larger ones filled from a fitted law"


def show_comparison(comparison: Comparison, time_lines: list[str], console: Console) -> None:
    from rich.table import Table

    plan, workload = comparison.plan, comparison.workload
    label = CONSTRAINTS[plan.config.constraint].label
    console.print(
        f"[bold]{workload.name}[/bold]: {plan.steps} steps of {plan.prompts} prompts, threshold "
        f"{plan.config.threshold:g}, "
        f"budget {plan.config.budget:g} ({label}), sizes {' '.join(map(str, plan.sizes))}, seed {plan.seed}"
    )
    console.print(f"lengths: {drawn_how(comparison)}; unit: {workload.unit}")
    console.print(f"step time: {comparison.time.origin}")
    for line in time_lines:
        console.print(f"  {line}")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    heads = (
        "mean n",
        "straggler rate",
        "largest excess",
        "moves",
        "rollouts/step",
        "gen s",
        "step s",
        "rollouts/s",
        "waiting",
    )
    extra = {
        "silent": any(o.mean("silent") == o.mean("silent") for o in comparison.outcomes),
        "length bias": any(o.kind == "first" for o in comparison.outcomes),
        "modelled": any(o.modelled for o in comparison.outcomes),
    }
    for head in (*heads, *(name for name, used in extra.items() if used)):
        table.add_column(head, justify="right")
    for outcome in comparison.outcomes:
        over = "" if outcome.cost <= outcome.budget else " *"
        cells = [
            outcome.name,
            f"{outcome.mean_n:.1f}",
            plain(outcome.rate) + (over if label == "straggler rate" else ""),
            plain(outcome.largest_excess, 2),
            count(outcome.moves),
            count(outcome.rollouts_per_step),
            plain(outcome.generation_per_step),
            plain(outcome.seconds_per_step),
            plain(outcome.rollouts_per_second),
            share(outcome.mean("waiting")) + (over if label == "waiting share" else ""),
        ]
        if extra["silent"]:
            cells.append(share(outcome.mean("silent")))
        if extra["length bias"]:
            cells.append(f"{outcome.mean('bias'):.3f}")
        if extra["modelled"]:
            cells.append(share(outcome.modelled_share))
        table.add_row(*cells, style="bold" if outcome.kind == "sagc" else None)
    console.print(table)
    console.print(
        "* above the budget; largest excess in steps; waiting: share of slot time that rollouts of a group wait for "
        "its longest"
    )
    if comparison.true_risk:
        risks = "  ".join(f"{size}: {risk:.3f}" for size, risk in comparison.true_risk.items())
        console.print(f"true {label} by size: {risks}")
    console.print(f"sizes SAGC played: {size_path(comparison.sagc)}")
    for line in verdict(comparison):
        console.print(line)
    for note in comparison.notes:
        console.print(f"note: {note}")


def show_tuning(tuning: Tuning, workload: str, console: Console) -> None:
    from rich.table import Table

    front = sorted(tuning.front, key=lambda candidate: -candidate.outcome.rollouts_per_step)
    largest = max(c.worth for c in tuning.candidates if c.is_static and round(c.outcome.mean_n) == tuning.rollout_n)
    console.print(f"[bold]{workload}[/bold]: {len(tuning.candidates)} settings tried, {len(front)} on the front")
    table = Table(box=None, pad_edge=False)
    table.add_column("setting")
    columns = ("sizes", "mean n", f"rate at {YARDSTICK:g}", "own cost", "rollouts/step", "step s", "worth/s")
    for head in columns:
        table.add_column(head, justify="right")
    shown = [
        *front,
        *([tuning.recommended] if tuning.recommended is not None and tuning.recommended not in front else []),
    ]
    for candidate in shown:
        outcome = candidate.outcome
        chosen = candidate is tuning.recommended
        table.add_row(
            ("> " if chosen else "  ") + candidate.name,
            " ".join(map(str, candidate.sizes)) or "-",
            f"{outcome.mean_n:.1f}",
            plain(candidate.rate),
            "-" if candidate.is_static else plain(outcome.cost),
            count(outcome.rollouts_per_step),
            plain(outcome.seconds_per_step),
            f"{candidate.worth / largest - 1:+.1%}",
            style="bold" if chosen else None,
        )
    console.print(table)
    console.print(
        f"worth/s: worth of the groups per second against static {tuning.rollout_n}; own cost: what its budget limits"
    )
    for reason in tuning.reasons:
        console.print(reason)
    for note in tuning.notes:
        console.print(f"note: {note}")
    if tuning.recommended is not None:
        console.print("Paste:")
        console.print(f"  {tuning.recommended.line(tuning.rollout_n)}", soft_wrap=True, markup=False, highlight=False)
