"""One run in the terminal."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sagc_verl.report import numbers
from sagc_verl.report.measures import RunMeasures, moves, tenth
from sagc_verl.report.settings import short_path
from sagc_verl.report.statistics import finite_mean, finite_sum, last_finite

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Summary:
    """The numbers of one run. nan (null in JSON) where the records do not say.

    Attributes:
        run, policy, sizes, constraint, budget, threshold, model, data, hardware, seed: what it was.
        steps: steps on record; `first_step`, `last_step` their numbers.
        wall_seconds: sum of the steps' wall times. Time between a crash and the resume does not count.
        mean_n: mean group size over steps.
        straggler_rate: mean over steps of the share of groups with a straggler.
        waiting_share: mean over steps of the share of a group's slot time spent waiting for its longest rollout.
        moves: how often the size changed.
        rollouts, tokens: generated, filtered ones included; tokens are response tokens.
        reward_first, reward_last: mean reward of the first and last tenth of the steps.
        reward_per_second: (reward_last - reward_first) / wall_seconds.
        tail_seconds, idle_share: means over steps.
        truncated_share: share of responses stopped by the length limit.
        thrown_away_share: share of rollouts filtered or too late.
        silent_share: share of groups whose rewards are all equal.
        queue_share: share of the rollouts' engine time spent waiting for a slot.
        phases: seconds per step of each phase.
        causes: straggling rollouts by cause.
        prompts: prompts with most stragglers.
        validation: the last score of each validation metric.
    """

    run: str
    policy: str | None
    sizes: tuple[int, ...]
    constraint: str | None
    budget: float
    threshold: float | None
    model: str | None
    data: str | None
    hardware: str | None
    seed: str
    imported: bool
    steps: int
    first_step: int
    last_step: int
    wall_seconds: float
    mean_n: float
    straggler_rate: float
    waiting_share: float
    moves: int
    rollouts: float
    tokens: float
    reward_first: float
    reward_last: float
    reward_per_second: float
    tail_seconds: float
    idle_share: float
    truncated_share: float
    thrown_away_share: float
    silent_share: float
    queue_share: float
    preempted: int | None
    refills: float
    phases: dict[str, float]
    causes: dict[str, int]
    reasons: dict[str, int]
    prompts: list[dict[str, Any]]
    validation: dict[str, float]
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON."""
        return asdict(self)


def summarise(measures: RunMeasures) -> Summary:
    """The summary of a run that `measure_run` has read."""
    settings = measures.settings
    step = measures.column("step")
    first, last = finite_mean(tenth(measures, "reward", last=False)), finite_mean(tenth(measures, "reward", last=True))
    wall = finite_sum(measures.column("wall_s"))
    return Summary(
        run=measures.name,
        policy=settings.policy,
        sizes=settings.sizes,
        constraint=settings.constraint,
        budget=budget_of(measures),
        threshold=settings.threshold,
        model=settings.model,
        data=settings.data,
        hardware=settings.hardware,
        seed=settings.seed_text,
        imported=settings.imported,
        steps=len(step),
        first_step=int(step[0]),
        last_step=int(step[-1]),
        wall_seconds=wall,
        mean_n=finite_mean(measures.column("n")),
        straggler_rate=finite_mean(measures.column("straggler_rate")),
        waiting_share=finite_mean(measures.column("waiting_share")),
        moves=moves(measures),
        rollouts=finite_sum(measures.column("rollouts")),
        tokens=finite_sum(measures.column("tokens")),
        reward_first=first,
        reward_last=last,
        reward_per_second=(last - first) / wall if wall > 0 else math.nan,
        tail_seconds=finite_mean(measures.column("tail_s")),
        idle_share=finite_mean(measures.column("idle_share")),
        truncated_share=finite_mean(measures.column("truncated_share")),
        thrown_away_share=finite_mean(measures.column("thrown_away_share")),
        silent_share=finite_mean(measures.column("silent_share")),
        queue_share=measures.queue_share,
        preempted=measures.preempted,
        refills=finite_sum(measures.column("refills")),
        phases={str(name): float(value) for name, value in measures.phases.mean().items()},
        causes=dict(measures.causes),
        reasons=dict(measures.reasons),
        prompts=[asdict(prompt) for prompt in measures.prompts],
        validation={str(name): last_finite(measures.validation[name].to_numpy()) for name in measures.validation},
        warnings=list(measures.warnings),
    )


def render_summary(summary: Summary, console: Console) -> None:
    """Prints a summary as a few short tables."""
    from rich.text import Text

    console.print(Text(summary.run, style="bold"))
    for label, text in _identity(summary):
        _line(console, label, text)
    console.print()
    for label, text in _figures(summary):
        _line(console, label, text)
    _render_shares(console, "Seconds per step", summary.phases, numbers.plain)
    _render_shares(console, "Straggling rollouts by cause", summary.causes, numbers.count)
    if summary.prompts:
        console.print("\nPrompts with most stragglers")
        for prompt in summary.prompts[:5]:
            console.print(
                Text(
                    f"  {prompt['name']}: {prompt['stragglers']} of its groups,"
                    f" longest {numbers.count(prompt['longest'])}"
                    f" ({numbers.plain(prompt['largest_ratio'], 2)} x its reference)"
                )
            )
    if summary.validation:
        console.print("\nLast validation")
        for name, value in summary.validation.items():
            _line(console, name, numbers.plain(value), width=max(map(len, summary.validation)) + 2)
    for warning in summary.warnings:
        console.print(Text(f"\nnote: {warning}", style="yellow"))


def _identity(summary: Summary) -> list[tuple[str, str]]:
    policy = "read from a log" if summary.imported else (summary.policy or "unknown")
    if summary.sizes:
        policy += ", sizes " + " ".join(str(size) for size in summary.sizes)
    if summary.policy == "sagc" and math.isfinite(summary.budget):
        policy += f", {budget_of_summary(summary)}"
    if summary.threshold is not None:
        policy += f", threshold {summary.threshold:g}"
    return [
        ("policy", policy),
        ("model", short_path(summary.model)),
        ("data", short_path(summary.data)),
        ("hardware", summary.hardware or "unknown"),
        ("seed", summary.seed or "unknown"),
    ]


def _figures(summary: Summary) -> list[tuple[str, str]]:
    steps = numbers.count(summary.steps)
    if summary.steps != summary.last_step - summary.first_step + 1 or summary.first_step != 1:
        steps += f" (steps {summary.first_step} to {summary.last_step})"
    rate = f"{numbers.share(summary.straggler_rate)} of groups"
    waiting = f"{numbers.share(summary.waiting_share)} of a group's slot time"
    if summary.constraint == "waiting":
        waiting += _against_budget(summary.waiting_share, summary.budget)
    else:
        rate += _against_budget(summary.straggler_rate, summary.budget)
    per_step = summary.wall_seconds / summary.steps if summary.steps else math.nan
    reward = (
        f"{numbers.plain(summary.reward_first)} in the first tenth, {numbers.plain(summary.reward_last)} in the last"
    )
    rows = [
        (summary.steps, "steps", steps),
        (
            summary.wall_seconds,
            "wall seconds",
            f"{numbers.seconds(summary.wall_seconds)}, {numbers.plain(per_step)} a step",
        ),
        (summary.mean_n, "mean n", f"{numbers.plain(summary.mean_n)}, {summary.moves} moves"),
        (summary.straggler_rate, "straggler rate", rate),
        (summary.waiting_share, "waiting share", waiting),
        (summary.rollouts, "rollouts", numbers.count(summary.rollouts)),
        (summary.tokens, "response tokens", numbers.count(summary.tokens)),
        (summary.reward_last, "reward", reward),
        (summary.reward_per_second, "reward per second", numbers.plain(summary.reward_per_second)),
        (
            summary.tail_seconds,
            "tail seconds",
            f"{numbers.plain(summary.tail_seconds)} a step, from 90% of rollouts done",
        ),
        (summary.idle_share, "idle share", f"{numbers.share(summary.idle_share)} of the rollout phase"),
        (summary.queue_share, "waiting for a slot", f"{numbers.share(summary.queue_share)} of the engine time"),
        (summary.truncated_share, "truncated", f"{numbers.share(summary.truncated_share)} of responses"),
        (summary.silent_share, "silent groups", f"{numbers.share(summary.silent_share)}, all rewards equal"),
        (
            summary.thrown_away_share or math.nan,
            "thrown away",
            f"{numbers.share(summary.thrown_away_share)} of rollouts, filtered or too late",
        ),
        (summary.preempted or math.nan, "preempted", f"{numbers.count(summary.preempted)} rollouts"),
        (summary.refills or math.nan, "refills", f"{numbers.count(summary.refills)} prompts sent again"),
    ]
    return [(label, text) for value, label, text in rows if math.isfinite(value)]


def _against_budget(cost: float, budget: float) -> str:
    if not (math.isfinite(cost) and math.isfinite(budget)):
        return ""
    return f", {'within' if cost <= budget else 'over'} the budget of {numbers.share(budget)}"


def budget_of_summary(summary: Summary) -> str:
    """The budget with what it limits, where that is not the straggler rate."""
    what = "" if summary.constraint != "waiting" else " of slot time waiting"
    return f"budget {numbers.share(summary.budget)}{what}"


def _render_shares(console: Console, title: str, values: dict[str, Any], form: Any) -> None:
    whole = sum(values.values())
    if whole <= 0:
        return
    console.print(f"\n{title}")
    width = max(map(len, values)) + 2
    for name, value in sorted(values.items(), key=lambda item: -item[1]):
        bar = "#" * round(30 * value / whole)
        console.print(
            f"  {name:<{width}}{form(value):>10}  {numbers.share(value / whole):>6}  {bar}",
            markup=False,
            highlight=False,
        )


def _line(console: Console, label: str, text: str, width: int = 20) -> None:
    console.print(f"  {label:<{width}}{text}", markup=False, highlight=False)


def budget_of(measures: RunMeasures) -> float:
    """The budget the run was held against: what the last step says, else the configuration."""
    budget = last_finite(measures.column("budget"))
    if not math.isfinite(budget) and measures.settings.budget is not None:
        return measures.settings.budget
    return budget
