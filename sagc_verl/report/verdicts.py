"""Plain sentences on what the numbers support, and on what they do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sagc_verl.report import numbers
from sagc_verl.report.comparison import Comparison, Setting, difference, differences_between, spoiled_by
from sagc_verl.report.metrics import BY_KEY
from sagc_verl.report.statistics import Estimate


@dataclass(frozen=True)
class Measure:
    """How a difference in one metric is told: as a share of the reference (`relative`) or as it is."""

    key: str
    name: str
    less: str
    more: str
    relative: bool = False


MEASURES = (
    Measure("step_seconds", "seconds per step", "fewer seconds per step", "more seconds per step", relative=True),
    Measure("straggler_rate", "straggler rate", "lower straggler rate", "higher straggler rate"),
    Measure("tail_seconds", "tail seconds", "fewer tail seconds", "more tail seconds", relative=True),
    Measure("reward", "reward in the last tenth", "lower reward in the last tenth", "higher reward in the last tenth"),
    Measure("reward_mean", "reward over the run", "lower reward over the run", "higher reward over the run"),
    Measure("length_mean", "response length", "shorter responses", "longer responses", relative=True),
)


@dataclass(frozen=True)
class Contrast:
    """One setting against another.

    Attributes:
        spoiled: what makes the two incomparable ("data", "seed", ...).
        others: further configuration keys on which they differ, which may be what made the difference.
        changes: `subject` less `reference`, in MEASURES' order; relative measures as a share of the reference.
    """

    subject: Setting
    reference: Setting
    spoiled: tuple[str, ...]
    others: tuple[str, ...]
    changes: tuple[tuple[Measure, Estimate], ...]

    def sentence(self, brief: bool = False) -> str:
        """All changes in one sentence: those shown, those not shown, those without an interval.

        `brief` leaves out the numbers of what is not shown, for readers who have them in a table.
        """
        unclear = [pair for pair in self.changes if pair[1].has_interval and not pair[1].excludes_zero]
        bare = [pair for pair in self.changes if not pair[1].has_interval]
        parts = [_told(measure, change) for measure, change in self.changes if change.excludes_zero]
        if unclear:
            parts.append("no difference shown in " + ", ".join(_named(pair, brief) for pair in unclear))
        if bare:
            parts.append("too few steps or seeds for an interval: " + ", ".join(_named(pair, brief) for pair in bare))
        head = f"{self.subject.label} against {described(self.reference)}"
        if self.spoiled:
            head += f" (not comparable: other {', '.join(self.spoiled)})"
        elif self.others:
            head += f" (they also differ in {_some(self.others)})"
        return f"{head}: {'; '.join(parts) if parts else 'too little on record to say anything'}."


def contrasts(comparison: Comparison) -> list[Contrast]:
    """SAGC against every other setting, largest fixed size first; without a SAGC run, the rest against the first."""
    return [
        Contrast(
            subject,
            reference,
            tuple(spoiled_by(comparison, subject, reference)),
            tuple(one.key for one in differences_between(comparison, subject, reference) if not one.kind),
            tuple(_changes(comparison, subject, reference)),
        )
        for subject, reference in _pairs(comparison)
    ]


def verdicts(comparison: Comparison) -> list[str]:
    """Every sentence, in reading order: each subject against each comparator, what that means, the caveats."""
    return [*(contrast.sentence() for contrast in contrasts(comparison)), *conclusions(comparison)]


def conclusions(comparison: Comparison) -> list[str]:
    """What the contrasts add up to: the budget, whether adapting helped, the reward reached, and the caveats."""
    if len(comparison.settings) < 2:
        return ["One run alone shows what happened, not what SAGC changed: compare it with a static run."]
    sentences = [*_budget_sentences(comparison), *_adapting_sentences(comparison)]
    sentences += [_reached_sentence(comparison), _caveat(comparison)]
    return [sentence for sentence in sentences if sentence]


def described(setting: Setting) -> str:
    """The label, with the fixed size where the label does not tell it."""
    size = setting.static_size
    if size is None or f"n={size}" in setting.label.replace(" ", ""):
        return setting.label
    return f"{setting.label} (static n={size})"


def change_text(measure: Measure, change: Estimate) -> str:
    """A difference with sign and interval, e.g. "-12.0% (-15.0 to -9.0)"."""
    unit = "%" if measure.relative else " points" if BY_KEY[measure.key].form is numbers.share else ""
    form = _one_decimal if unit else numbers.plain
    change = change.scaled(100) if unit else change
    text = f"{_with_sign(change.value, form)}{unit}"
    if change.has_interval:
        text += f" ({_with_sign(change.low, form)} to {_with_sign(change.high, form)})"
    return text


def _some(names: tuple[str, ...], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more keys" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def _pairs(comparison: Comparison) -> Iterator[tuple[Setting, Setting]]:
    subjects = [setting for setting in comparison.settings if setting.policy == "sagc"]
    others = [setting for setting in comparison.settings if setting.policy != "sagc"]
    if not subjects or not others:
        first, *rest = comparison.settings
        yield from ((setting, first) for setting in rest)
        return
    others.sort(key=lambda setting: -(setting.static_size or 0))
    for subject in subjects:
        yield from ((subject, other) for other in others)


def _changes(comparison: Comparison, subject: Setting, reference: Setting) -> Iterator[tuple[Measure, Estimate]]:
    kinds = {one.kind for one in differences_between(comparison, subject, reference)}
    for measure in MEASURES:
        if measure.key == "straggler_rate" and "straggler event" in kinds:
            continue  # rates of different events
        change = difference(subject, reference, BY_KEY[measure.key], measure.relative)
        if math.isfinite(change.value):
            yield measure, change


def _told(measure: Measure, change: Estimate) -> str:
    """A difference that is shown: "12.0% fewer seconds per step (9.0 to 15.0)"."""
    sized = Estimate(abs(change.value), *sorted((abs(change.low), abs(change.high))))
    text = change_text(measure, sized).replace("+", "")
    amount, _, interval = text.partition(" (")
    return f"{amount} {measure.less if change.value < 0 else measure.more} ({interval}"


def _named(pair: tuple[Measure, Estimate], brief: bool) -> str:
    measure, change = pair
    if brief:
        return measure.name
    amount, _, interval = change_text(measure, change).partition(" (")
    return f"{measure.name} ({amount}{', ' + interval if interval else ')'}"


def _with_sign(value: float, form: Callable[[float], str]) -> str:
    return form(value) if value < 0 else f"+{form(value)}"


def _one_decimal(value: float) -> str:
    return f"{value:.1f}"


def _budget_sentences(comparison: Comparison) -> Iterator[str]:
    for setting in comparison.settings:
        rate, budget = setting.values[setting.cost_key], setting.budget
        if setting.policy != "sagc" or not math.isfinite(rate.value) or not math.isfinite(budget):
            continue
        interval = f" ({numbers.share(rate.low)} to {numbers.share(rate.high)})" if rate.has_interval else ""
        told = f"{setting.label}: {BY_KEY[setting.cost_key].label} {numbers.share(rate.value)}{interval}"
        told += f" against a budget of {numbers.share(budget)}"
        if rate.value <= budget:
            yield f"{told}: kept."
        elif rate.has_interval and rate.low <= budget:
            yield f"{told}: over, but by no more than the noise of its steps."
        else:
            yield f"{told}: not kept. Either the run is too short for the controller to settle, or no size fits."


def _adapting_sentences(comparison: Comparison) -> Iterator[str]:
    """Is it adapting that helped, or merely smaller groups? Only a fixed size near the mean can tell."""
    for subject in comparison.settings:
        mean = subject.values["mean_n"].value
        if subject.policy != "sagc" or not math.isfinite(mean):
            continue
        near = [
            other
            for other in comparison.settings
            if other.static_size is not None
            and abs(other.static_size - mean) < 1
            and not spoiled_by(comparison, subject, other)
        ]
        if not near:
            yield (
                f"No comparable run here has a fixed size near the mean of {subject.label}, {numbers.plain(mean)}:"
                " these runs cannot tell whether adapting the size helped, or smaller groups alone would have done it."
            )
            continue
        better = [other for other in near if _shows_better(subject, other)]
        if not better:
            yield (
                f"Nothing here shows that {subject.label} did better than {_listed(near)}, which spent about as many"
                " rollouts a step: what it saved over a larger size, a smaller fixed size may save as well."
            )
        elif len(better) == len(near):
            yield f"{subject.label} did better than {_listed(near)}: smaller groups alone do not explain that."
        else:
            worse = [other for other in near if other not in better]
            yield (
                f"{subject.label} did better than {_listed(better)}, but nothing shows that it did better than"
                f" {_listed(worse)}."
            )


def _listed(settings: list[Setting]) -> str:
    return " and ".join(described(setting) for setting in settings)


def _shows_better(subject: Setting, other: Setting) -> bool:
    seconds = difference(subject, other, BY_KEY["step_seconds"])
    rewards = [difference(subject, other, BY_KEY[key]) for key in ("reward", "reward_mean")]
    faster = seconds.excludes_zero and seconds.value < 0
    slower = seconds.excludes_zero and seconds.value > 0
    higher = any(reward.excludes_zero and reward.value > 0 for reward in rewards)
    lower = any(reward.excludes_zero and reward.value < 0 for reward in rewards)
    return (faster and not lower) or (higher and not slower)


def _reached_sentence(comparison: Comparison) -> str:
    told = []
    for setting in comparison.settings:
        if not math.isfinite(setting.reached["steps"].value):
            continue
        costs = [f"{numbers.count(setting.reached['steps'].value)} steps"]
        for name, unit in (("seconds", "s"), ("rollouts", "rollouts")):
            if math.isfinite(setting.reached[name].value):
                costs.append(f"{numbers.count(setting.reached[name].value)} {unit}")
        told.append(f"{setting.label} after {', '.join(costs)}")
    if not told:
        return ""
    target = f"{numbers.plain(comparison.target)} (mean of {comparison.window} steps)"
    late = (
        f" It is {comparison.target_run}'s own best, which that run reaches late by construction."
        if comparison.target_run
        else ""
    )
    return f"The highest reward that all runs reach, {target}: {'; '.join(told)}.{late}"


def _caveat(comparison: Comparison) -> str:
    seeds = [len(setting.runs) for setting in comparison.settings]
    if max(seeds) == 1:
        return "One seed per setting: the 95% intervals are over steps. Another seed may turn small differences around."
    if min(seeds) == 1:
        return "Some settings have one seed only: differences to them are given without an interval."
    return (
        f"The 95% intervals are between seeds, {min(seeds)} or more per setting. Of differences that are not there, one"
        " in twenty shows by chance: where many are looked at, some do."
    )
